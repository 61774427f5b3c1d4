"""Slots that users get in turn."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

#: The pause of ``PacedSlots`` after some work, in multiples of its time, and its maximum in seconds.
_PAUSE, _LONGEST_PAUSE = 2.0, 2.0


class FairSlots:
    """A limit on concurrent work, in total and for each user.

    Waiting users get free slots in turn, however many requests each has. The requests of one user are served in
    order. For use in one event loop.
    """

    def __init__(self, *, total: int, per_user: int, kept: int = 0) -> None:
        """``kept`` of the ``total`` slots are only for users who hold none."""
        self._total = total
        self._per_user = per_user
        self._kept = kept
        self._taken: Counter[str] = Counter()
        #: Waiting requests by user; the user who is served next comes first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, user: str) -> AsyncGenerator[None]:
        """Wait for a slot, and hold it in the block."""
        await self.acquire(user)
        try:
            yield
        finally:
            self.release(user)

    async def acquire(self, user: str) -> None:
        """Wait for a slot. The caller must ``release`` it."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._forget(user, granted)
            else:
                self.release(user)
            raise

    def release(self, user: str) -> None:
        """Return a slot."""
        self._taken[user] -= 1
        if not self._taken[user]:
            del self._taken[user]
        if user in self._waiting:
            self._waiting.move_to_end(user)
        self._grant()

    def _grant(self) -> None:
        while (free := self._total - self._taken.total()) > 0:
            most = self._per_user if free > self._kept else 1
            user = next((user for user in self._waiting if self._taken[user] < most), None)
            if user is None:
                return
            granted = self._waiting[user].popleft()
            self._waiting.move_to_end(user)
            if not self._waiting[user]:
                del self._waiting[user]
            if not granted.cancelled():
                self._taken[user] += 1
                granted.set_result(None)

    def _forget(self, user: str, granted: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(user)
        if waiting is not None and granted in waiting:
            waiting.remove(granted)
            if not waiting:
                del self._waiting[user]


class PacedSlots:
    """A slot for each user, of which ``total`` are used at a time. After work that takes long it stays taken.

    Work that takes at most ``short`` seconds is not followed by a pause.
    """

    def __init__(self, *, total: int, short: float = 0.0) -> None:
        self._slots = FairSlots(total=total, per_user=1)
        self._short = short
        self._pausing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def slot(self, user: str) -> AsyncGenerator[None]:
        """Wait for the slot, and hold it in the block; it is free after the pause, for which nothing waits."""
        await self._slots.acquire(user)
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            if seconds <= self._short:
                self._slots.release(user)
            else:
                pausing = asyncio.create_task(self._release_later(user, min(_PAUSE * seconds, _LONGEST_PAUSE)))
                self._pausing.add(pausing)
                pausing.add_done_callback(self._pausing.discard)

    async def _release_later(self, user: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._slots.release(user)
