"""Limit the time, memory and concurrency of tools that compute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from torana.tools.base import ToolError
from torana.tools.shares import slot_within
from torana.workers.fair_slots import FairSlots
from torana.workers.pool import WorkerPool
from torana.workers.worker import CallFailed, MemoryExceeded, ProcessorTimeExceeded, WorkerLost

#: The maximum number of concurrent calls, in total and for each user.
_TOTAL = 2
_PER_USER = 1
#: Seconds of processor time for a call; the largest ordinary query of a table takes half a second.
_SECONDS = 2
#: Seconds until a call must have a slot, and until it must have its result on a busy machine.
_SLOT_TIMEOUT = 10.0
_RESULT_TIMEOUT = 30.0
_MEMORY = 512 * 1024 * 1024


class Computing:
    """Runs calls whose arguments determine their running time, in processes that are killed at their limits.

    Users take turns: the calls of one user run one after the other, and delay no other user's calls.
    """

    def __init__(
        self, *, seconds: int = _SECONDS, wait: float = _SLOT_TIMEOUT, patience: float = _RESULT_TIMEOUT
    ) -> None:
        """``seconds`` limits a call's processor time. ``wait`` and ``patience`` are seconds of real time."""
        self._seconds = seconds
        self._wait = wait
        self._patience = patience
        self._slots = FairSlots(total=_TOTAL, per_user=_PER_USER)
        self._workers = WorkerPool(memory=_MEMORY)

    async def close(self) -> None:
        """End the worker processes. Idempotent."""
        await self._workers.close()

    def slot(self, user: str) -> AbstractAsyncContextManager[None]:
        """Wait until the user may compute. Raises ``ToolError`` if that takes too long."""
        refusal = (
            f"Not run: the user's other calls took {self._wait:g} s. Too many calls were made at once; make "
            "fewer, or try again later."
        )
        return slot_within(self._wait, self._slots, user, refusal=refusal)

    async def run(self, function: Callable[..., Any], arguments: Mapping[str, Any], *, user: str) -> Any:
        """Call the function in a worker process. Raises its ``ToolError``, and ``ToolError`` at a limit."""
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
                    f"Stopped: the call used more than {self._seconds} s of processor time. Ask for less at a "
                    "time: a smaller text, or a simpler question."
                ) from None
            except MemoryExceeded:
                raise ToolError("Stopped: the call used too much memory. Ask for less at a time.") from None
            except WorkerLost:
                raise ToolError("The process of the call ended early; try again.") from None
            except TimeoutError:
                raise ToolError(
                    f"Stopped after {self._patience:g} s: the machine is busy. Ask for less, or try later."
                ) from None
