"""A turn's slot among the concurrent turns, and its time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from torana.workers.fair_slots import FairSlots


class Slot:
    """Limits the concurrency and the time of a turn. Raises ``TimeoutError`` after ``timeout`` seconds.

    Users with waiting turns receive free slots in rotation. While a turn only waits for approvals, its slot is
    released and its time limit is paused.
    """

    def __init__(self, *, slots: Sequence[FairSlots], user: str, timeout: float) -> None:
        """The turn needs one of each ``slots``. ``user`` is the user or, for a turn without one, its token."""
        self._slots = slots
        self._user = user
        self._limit = asyncio.timeout(None)
        #: Seconds left of the turn's time limit when it is paused.
        self._left = timeout
        self._taken: list[FairSlots] = []
        self._reacquisition = asyncio.Lock()
        #: Number of the turn's unfinished calls, and how many of these wait for approval.
        self.calls = 0
        self.waiting_calls = 0

    @property
    def is_idle(self) -> bool:
        """Return whether the turn only waits for approvals."""
        return 0 < self.calls <= self.waiting_calls

    @property
    def _has_slots(self) -> bool:
        return len(self._taken) == len(self._slots)

    @property
    def is_expired(self) -> bool:
        return self._limit.expired()

    def count(self, calls: int) -> None:
        """Add to the number of unfinished calls; a negative number subtracts."""
        self.calls += calls
        self._release_if_idle()

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        await self._acquire()

    async def __aexit__(self, *raised: Any) -> None:
        self._release()
        await self._limit.__aexit__(*raised)

    @asynccontextmanager
    async def release_while_waiting(self) -> AsyncGenerator[None]:
        """Mark one call as waiting for approval; at the exit, wait until the turn has a slot again."""
        self.waiting_calls += 1
        self._release_if_idle()
        try:
            yield
        finally:
            self.waiting_calls -= 1
        async with self._reacquisition:  # several calls share the turn's only slot
            if not self._has_slots:
                await self._acquire()

    def _release_if_idle(self) -> None:
        if self._has_slots and self.is_idle:
            self._pause_limit()
            self._release()

    async def _acquire(self) -> None:
        try:
            for slots in self._slots:
                await slots.acquire(self._user)
                self._taken.append(slots)
        except asyncio.CancelledError:
            self._release()
            raise
        if not self.is_expired:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left)

    def _release(self) -> None:
        while self._taken:
            self._taken.pop().release(self._user)

    def _pause_limit(self) -> None:
        end = self._limit.when()
        if end is not None and not self.is_expired:
            self._left = end - asyncio.get_running_loop().time()
            self._limit.reschedule(None)
