"""Slots for requests with large bodies. A slow upload loses its slot when another user waits for one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from torana.errors import RequestTimeout
from torana.workers.fair_slots import FairSlots


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Upload:
    user: str
    since: float
    limit: asyncio.Timeout


class UploadSlots:
    """A limit on concurrent uploads, in total and for each user.

    Whenever a user without an upload has waited for ``patience`` seconds, an upload that takes longer is ended:
    the oldest one of the user with the most uploads. Users who send slowly therefore cannot occupy all slots.
    """

    def __init__(
        self,
        *,
        total: int = 8,
        per_user: int = 2,
        patience: float = 5.0,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._slots = FairSlots(total=total, per_user=per_user)
        self._patience = patience
        self._pause = pause
        #: The uploads that have a slot, the oldest first.
        self._running: list[_Upload] = []

    @asynccontextmanager
    async def slot(self, user: str) -> AsyncGenerator[None]:
        """Wait for a slot, and hold it in the block. Raises ``RequestTimeout`` in an upload that is ended."""
        demand = asyncio.create_task(self._demand(user))
        try:
            await self._slots.acquire(user)
        finally:
            demand.cancel()
        now = asyncio.get_running_loop().time()
        upload = _Upload(user=user, since=now, limit=asyncio.timeout(None))
        self._running.append(upload)
        try:
            async with upload.limit:
                yield
        except TimeoutError:
            raise RequestTimeout(
                f"The body took more than {self._patience:g} s while another user waited; send it again.",
                headers={"Connection": "close"},
            ) from None
        finally:
            if upload in self._running:
                self._running.remove(upload)
            self._slots.release(user)

    async def _demand(self, user: str) -> None:
        """End one slow upload after each ``patience`` seconds."""
        while True:
            await self._pause(self._patience)
            self._make_room(user)

    def _make_room(self, user: str) -> None:
        now = asyncio.get_running_loop().time()
        held = Counter(upload.user for upload in self._running)
        slow = [upload for upload in self._running if now - upload.since >= self._patience]
        if not slow or held[user]:
            return
        ended = max(slow, key=lambda upload: held[upload.user])
        self._running.remove(ended)
        ended.limit.reschedule(now)
