"""Threads for synchronous tools."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from pydantic_ai import Agent

from torana.tools.shares import acquire_within
from torana.workers.fair_slots import FairSlots

T = TypeVar("T")

#: The maximum number of threads, in total and for each user.
_TOTAL = 32
_PER_USER = 4
#: Seconds until a call must have a thread.
_WAIT = 30.0


class ToolThreads:
    """Limits the threads of synchronous tools, and shares them fairly between users.

    A thread cannot be stopped: after its call was cancelled, it counts for its user until it ends.
    """

    def __init__(self, *, total: int = _TOTAL, per_user: int = _PER_USER, wait: float = _WAIT) -> None:
        self._slots = FairSlots(total=total, per_user=per_user)
        self._wait = wait

    async def run(self, call: Callable[[], Awaitable[T]], *, user: str) -> T:
        """Await the call, which passes at most one function to pydantic-ai to run in a thread.

        Raises ``ToolError`` if no thread becomes free in time.
        """
        refusal = f"Not run: earlier tool calls were still running after {self._wait:g} s; try again later."
        await acquire_within(self._wait, self._slots, user, refusal=refusal)
        executor = _OneThread()
        try:
            with Agent.using_thread_executor(executor):
                return await call()
        finally:
            executor.when_ended(lambda: self._slots.release(user))


class _OneThread(Executor):
    """Runs a function in a new thread. The end of the process does not wait for the thread."""

    def __init__(self) -> None:
        self._future: Future[Any] | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from now on it cannot be cancelled

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="tool", daemon=True).start()
        self._future = future
        return future

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call ``act`` in the event loop when the thread has ended, or at once if there is none."""
        if self._future is None or self._future.done():
            act()
            return
        loop = asyncio.get_running_loop()

        def on_done(_: Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(act)

        self._future.add_done_callback(on_done)
