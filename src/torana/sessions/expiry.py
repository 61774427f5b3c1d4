"""Expiry: sessions in which nothing was said or answered for long are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

from torana.errors import StoreUnavailable
from torana.messages import utc_now
from torana.store import deletion
from torana.store.database import Database

#: Seconds between two looks.
_PAUSE = 3_600.0

#: How many are looked up at once, and how many of them one transaction deletes.
_FOUND, _BATCH = 1_000, 10

_log = logging.getLogger(__name__)


class Expiry:
    """Deletes idle sessions, when it is started and then once an hour.

    None goes with a turn that has not ended, or whose reply is still to be delivered.
    """

    def __init__(
        self,
        *,
        database: Database,
        after: timedelta,
        forget: Callable[[Sequence[str]], None],
        clock: Callable[[], datetime] = utc_now,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """A session expires that was silent for ``after``; ``forget`` gets the ids of its turns."""
        self._database = database
        self._after = after
        self._forget = forget
        self._clock = clock
        self._pause = pause
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the background."""
        self._task = asyncio.create_task(self._keep_looking(), name="expiry of sessions")

    async def stop(self) -> None:
        """End; a deletion that has begun is finished by the database or not at all."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def sweep(self) -> int:
        """Delete what has expired, in small transactions; how many turns are gone."""
        before = self._clock() - self._after
        gone = 0
        while found := await self._database.run(partial(deletion.idle, before=before, limit=_FOUND)):
            for first in range(0, len(found), _BATCH):
                gone += await self._delete(found[first : first + _BATCH], before)
        return gone

    async def _delete(self, session_ids: Sequence[str], before: datetime) -> int:
        work = partial(deletion.delete_idle, session_ids=session_ids, before=before, at=self._clock())
        deleted = await self._database.run(work)
        self._forget(deleted.turns)
        return len(deleted.turns)

    async def _keep_looking(self) -> None:
        while True:
            try:
                if gone := await self.sweep():
                    _log.info("idle sessions were deleted", extra={"turns": gone})
            except StoreUnavailable as error:
                _log.warning("idle sessions could not be deleted", extra={"reason": error.detail})
            except Exception:  # noqa: BLE001 - nobody else would delete them
                _log.exception("idle sessions could not be deleted")
            await self._pause(_PAUSE)
