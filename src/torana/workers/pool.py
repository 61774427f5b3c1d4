"""A pool of reused workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from torana.workers.worker import CallFailed, Worker, WorkerLost


class WorkerPool:
    """Worker processes that start on demand and end after an idle time.

    A call takes an idle worker or starts one; callers limit the concurrency. A worker whose call was killed or
    cancelled is not reused. For use in one event loop.
    """

    def __init__(self, *, memory: int, idle_seconds: float = 60.0) -> None:
        """``memory`` is the address space of a worker in bytes."""
        self._memory = memory
        self._idle_seconds = idle_seconds
        #: Idle workers with the timers that end them; the last used one is last.
        self._idle: dict[Worker, asyncio.TimerHandle] = {}
        self._workers: set[Worker] = set()
        self._closed = False

    @property
    def pids(self) -> frozenset[int]:
        """Return the process ids of the workers."""
        return frozenset(worker.pid for worker in self._workers)

    async def run(self, function: Callable[..., Any], arguments: Mapping[str, Any], *, seconds: int) -> Any:
        """Call a function in a worker, as ``Worker.call`` does. A cancellation kills the worker."""
        worker = await self._take()
        usable = False
        try:
            result = await worker.call(function, arguments, seconds=seconds)
            usable = True
        except CallFailed:
            usable = True
            raise
        finally:
            await self._put_back(worker, usable=usable)
        return result

    async def close(self) -> None:
        """End all workers; later calls raise ``WorkerLost``. Idempotent."""
        self._closed = True
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        for worker in list(self._workers):
            await self._end(worker)

    async def _take(self) -> Worker:
        if self._closed:
            raise WorkerLost
        if self._idle:
            worker, timer = self._idle.popitem()
            timer.cancel()
            return worker
        worker = await Worker.start(memory=self._memory)
        self._workers.add(worker)
        return worker

    async def _put_back(self, worker: Worker, *, usable: bool) -> None:
        if not usable or self._closed:
            await self._end(worker)
            return
        loop = asyncio.get_running_loop()
        self._idle[worker] = loop.call_later(self._idle_seconds, self._expire, worker)

    def _expire(self, worker: Worker) -> None:
        del self._idle[worker]
        self._workers.discard(worker)
        worker.kill()

    async def _end(self, worker: Worker) -> None:
        self._workers.discard(worker)
        await worker.end()
