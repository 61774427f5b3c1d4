"""Helpers for asyncio: work that a cancellation does not interrupt, and waiting for the first of two events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds after which a task is cancelled again.
_CANCEL_AGAIN = 0.5


async def run_uncancellable(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread and return its result. A cancellation waits until the thread has finished."""
    # A future, not a task: the end of the event loop cancels tasks.
    return await wait_uncancellable(asyncio.get_running_loop().run_in_executor(None, work))


async def wait_uncancellable(work: asyncio.Future[T]) -> T:
    """Return the result of ``work``. A cancellation does not reach it, and is raised when ``work`` is done."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


async def complete(work: Coroutine[Any, Any, T], running: set[asyncio.Task[Any]]) -> T:
    """Return the result of ``work``, which continues in ``running`` if the caller is cancelled."""
    task = asyncio.create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return await asyncio.shield(task)


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended.

    Before Python 3.12 ``asyncio.wait_for``, which libraries call, may lose a cancellation.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN)


async def wait_first(event: asyncio.Event, pause: Awaitable[object]) -> None:
    """Wait until the event is set or ``pause`` is over. Both waits run under the name of the current task."""
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
