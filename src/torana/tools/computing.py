"""Tools that compute: bounds on their time, their memory, and how many run at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from torana.tools.base import ToolError
from torana.workers.fair_slots import FairSlots
from torana.workers.pool import WorkerPool
from torana.workers.worker import CallFailed, MemoryExceeded, ProcessorTimeExceeded, WorkerLost

#: Calls that compute at once, in all and for each user.
_TOTAL = 2
_PER_USER = 1
#: Seconds of the processor for one call; the largest ordinary question to a table takes half of one.
_SECONDS = 2
#: Seconds until a call must have its slot, and until it must have its result on a busy machine.
_WAIT = 10.0
_PATIENCE = 30.0
_MEMORY = 512 * 1024 * 1024


class Computing:
    """Runs calls whose arguments decide how long they compute, in processes that are killed at their bounds.

    Users take turns: the calls of one user run one after the other, and delay no other user's.
    """

    def __init__(self, *, seconds: int = _SECONDS, wait: float = _WAIT, patience: float = _PATIENCE) -> None:
        """``seconds`` bounds a call's processor time, ``wait`` and ``patience`` are seconds of the clock."""
        self._seconds = seconds
        self._wait = wait
        self._patience = patience
        self._slots = FairSlots(total=_TOTAL, per_user=_PER_USER)
        self._workers = WorkerPool(memory=_MEMORY)

    async def close(self) -> None:
        """End the worker processes. Idempotent."""
        await self._workers.close()

    @asynccontextmanager
    async def slot(self, user: str) -> AsyncGenerator[None]:
        """Wait until the user may compute. Raises ``ToolError`` when that takes too long."""
        try:
            async with asyncio.timeout(self._wait):
                await self._slots.acquire(user)
        except TimeoutError:
            raise ToolError(
                f"Not run: other calls computed for {self._wait:g} s. Too many calls were made at once; make "
                "fewer, or try again later."
            ) from None
        try:
            yield
        finally:
            self._slots.release(user)

    async def run(self, function: Callable[..., Any], arguments: Mapping[str, Any], *, user: str) -> Any:
        """Call the function in a worker process for the user. Raises ``ToolError``, its own or for a bound."""
        async with self.slot(user):
            try:
                async with asyncio.timeout(self._patience):
                    return await self._workers.run(function, arguments, seconds=self._seconds)
            except CallFailed as failure:
                if failure.kind == ToolError.__name__:
                    raise ToolError(failure.message) from None
                raise
            except ProcessorTimeExceeded:
                raise ToolError(
                    f"Stopped: the call took more than {self._seconds} s of processor time. Ask for less at a "
                    "time: a smaller text, or a simpler question."
                ) from None
            except MemoryExceeded:
                raise ToolError("Stopped: the call took too much memory. Ask for less at a time.") from None
            except WorkerLost:
                raise ToolError("The process that computed the call ended early; try it again.") from None
            except TimeoutError:
                raise ToolError(
                    f"Stopped after {self._patience:g} s: the machine is busy. Ask for less, or try later."
                ) from None
