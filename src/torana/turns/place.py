"""A turn's place among those that run at once, and its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Place:
    """Held while a turn runs, and given to others while all it does is to wait for somebody; its time stands
    still then.

    ``limit`` is entered inside of the place, as in ``async with place, limit``.
    """

    def __init__(self, *, slots: asyncio.Semaphore, limit: asyncio.Timeout) -> None:
        self._slots = slots
        self._limit = limit
        self._held = False
        self._coming_back = asyncio.Lock()
        self._left = 0.0
        #: How many of the turn's calls have begun and not ended, and how many of these wait for somebody.
        self.calls = 0
        self.away = 0

    @property
    def rests(self) -> bool:
        """Whether all that the turn does is to wait."""
        return 0 < self.calls <= self.away

    def count(self, calls: int) -> None:
        """Note that so many more calls have begun, or fewer."""
        self.calls += calls
        self._leave_if_at_rest()

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        self._give()

    @asynccontextmanager
    async def left(self) -> AsyncGenerator[None]:
        """In here one of the calls waits; behind it the turn has its place, as soon as there is room."""
        self.away += 1
        self._leave_if_at_rest()
        try:
            yield
        finally:
            self.away -= 1
        async with self._coming_back:  # of several calls one takes the turn's only place
            if not self._held:
                await self._come_back()

    def _leave_if_at_rest(self) -> None:
        if self._held and self.rests:
            self._stop_time()
            self._give()

    async def _come_back(self) -> None:
        await self._slots.acquire()
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
