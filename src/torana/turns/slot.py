"""A turn's slot among those that run at once, and its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType


class Slot:
    """Held while a turn runs, for ``timeout`` seconds at most, after which ``TimeoutError`` is raised.

    It is given to others while all that the turn does is to wait for somebody; its time stands still then.
    """

    def __init__(self, *, slots: asyncio.Semaphore, timeout: float) -> None:
        self._slots = slots
        self._limit = asyncio.timeout(None)
        #: Seconds that are left of the turn's time while it stands still.
        self._left = timeout
        self._held = False
        self._coming_back = asyncio.Lock()
        #: How many of the turn's calls have begun and not ended, and how many of these wait for somebody.
        self.calls = 0
        self.away = 0

    @property
    def rests(self) -> bool:
        """Whether all that the turn does is to wait."""
        return 0 < self.calls <= self.away

    @property
    def expired(self) -> bool:
        """Whether the turn's time is over."""
        return self._limit.expired()

    def count(self, calls: int) -> None:
        """Note that so many more calls have begun, or fewer."""
        self.calls += calls
        self._leave_if_at_rest()

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        await self._take()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give()
        await self._limit.__aexit__(kind, raised, trace)

    @asynccontextmanager
    async def left(self) -> AsyncGenerator[None]:
        """In here one of the calls waits; behind it the turn has its slot, as soon as there is room."""
        self.away += 1
        self._leave_if_at_rest()
        try:
            yield
        finally:
            self.away -= 1
        async with self._coming_back:  # of several calls one takes the turn's only slot
            if not self._held:
                await self._take()

    def _leave_if_at_rest(self) -> None:
        if self._held and self.rests:
            self._stop_time()
            self._give()

    async def _take(self) -> None:
        await self._slots.acquire()
        self._held = True
        if not self.expired:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left)

    def _give(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()

    def _stop_time(self) -> None:
        end = self._limit.when()
        if end is not None and not self.expired:
            self._left = end - asyncio.get_running_loop().time()
            self._limit.reschedule(None)
