"""A turn's place among those that run at once, and its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Place:
    """Held while a turn runs, and given to others while it waits for somebody; its time stands still then.

    ``limit`` is entered inside of the place, as in ``async with place, limit``.
    """

    def __init__(self, *, slots: asyncio.Semaphore, limit: asyncio.Timeout) -> None:
        self._slots = slots
        self._limit = limit
        self._held = False
        self._left = 0.0
        #: How many of the turn's calls wait for somebody.
        self.away = 0

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        self._give()

    @asynccontextmanager
    async def left(self) -> AsyncGenerator[None]:
        """Out of its place, with the others that are; the last of them comes back when there is room."""
        self.away += 1
        if self.away == 1:
            self._stop_time()
            self._give()
        try:
            yield
        finally:
            self.away -= 1
        if self.away == 0:
            await self._come_back()

    async def _come_back(self) -> None:
        await self._slots.acquire()
        if self._held or self.away:  # another call came back, or began to wait, meanwhile
            self._slots.release()
            return
        self._held = True
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left)

    def _give(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()

    def _stop_time(self) -> None:
        end = self._limit.when()
        if end is not None and not self._limit.expired():
            self._left = end - asyncio.get_running_loop().time()
            self._limit.reschedule(None)
