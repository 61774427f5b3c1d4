"""Waiting: for work that must come to its end whoever waits for it, and for the first of two things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def to_its_end(work: Callable[[], T]) -> T:
    """What ``work`` returns, from a thread. As that cannot be stopped, a cancellation waits for it."""
    # A plain future: the end of the event loop cancels tasks.
    return await finished(asyncio.get_running_loop().run_in_executor(None, work))


async def finished(work: asyncio.Future[T]) -> T:
    """What comes of ``work``. A cancellation does not reach it, and is raised when it is done."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


async def either(event: asyncio.Event, pause: Awaitable[object]) -> None:
    """Wait until the event is set or the pause is over; both waits run under the name of the current task."""
    current = asyncio.current_task()
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(pause)]
    for wait in waits:
        if current is not None:
            wait.set_name(current.get_name())
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
