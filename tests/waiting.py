"""Waiting for conditions that send no notification."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from torana.testing import Faults

#: Seconds to wait for anything: on a busy machine, starting a process takes long.
PATIENCE = 120.0

T = TypeVar("T")


def eventually(look: Callable[[], T | None]) -> T:
    """Return the result of ``look`` as soon as it is true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE:g} s in vain")


async def until_death(lived: Callable[[], Awaitable[None]], faults: Faults) -> None:
    """Run until the end, or until the crash that ``faults`` cause; raise earlier errors."""
    life, death = asyncio.ensure_future(lived()), asyncio.ensure_future(faults.death())
    ended, _ = await asyncio.wait({life, death}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert ended, "something is stuck"
    if life in ended:
        await life
    else:
        await _bury()


async def _bury() -> None:
    """End all tasks of the crashed run.

    Cancelling once, as ``asyncio.run`` does, is not enough: a turn that is being cut off takes it for that cut,
    and then waits until its end is stored.
    """
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=0.01)
