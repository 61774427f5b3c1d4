"""The loop of a task that works with Redis until the gateway stops."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from torana.aio import end_task
from torana.store.redis.server import RedisUnavailable

#: Seconds between two attempts while Redis fails.
_RETRY = 1.0

_log = logging.getLogger(__name__)


class RedisWorker(ABC):
    """Runs ``_work`` in the background, and again after a pause when it has failed."""

    #: The name of the task.
    _name: str
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_working(), name=self._name)

    async def stop(self) -> None:
        if self._task is not None:
            await end_task(self._task)

    @abstractmethod
    async def _work(self) -> None:
        """Work until Redis fails. Raises ``RedisUnavailable``."""

    async def _keep_working(self) -> None:
        while True:
            try:
                await self._work()
            except RedisUnavailable:
                pass
            except Exception:  # noqa: BLE001 - a bug must not end the sharing
                _log.exception("events_not_shared")
            await asyncio.sleep(_RETRY)
