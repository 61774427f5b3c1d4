"""Work that must come to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def to_its_end(work: Callable[[], T]) -> T:
    """What ``work`` returns, from a thread. As that cannot be stopped, a cancellation waits for it."""
    # A plain future: the end of the event loop cancels tasks.
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        raise
