"""Delete sessions that have been idle for a long time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from torana.aio import end_task
from torana.errors import StoreUnavailable
from torana.messages import utc_now
from torana.store.engine.database import Database
from torana.store.rows import session_deletion

#: Seconds between two sweeps.
_PAUSE = 3_600.0

#: Sessions per query, and per deleting transaction: other transactions wait for it.
_FOUND, _BATCH = 1_000, 10

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class Expiry:
    """Deletes idle sessions at the start and then once an hour.

    A session with an unfinished turn or an open delivery is not deleted.

    A session expires when it is idle for ``after``. ``forget`` receives the ids of its turns.
    """

    database: Database
    after: timedelta
    forget: Callable[[Sequence[str]], None]
    clock: Callable[[], datetime] = utc_now
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the background task."""
        self._task = asyncio.create_task(self._run_loop(), name="expiry of sessions")

    async def stop(self) -> None:
        """Stop; a deletion in progress is completed or rolled back by the database."""
        if self._task is not None:
            await end_task(self._task)

    async def sweep(self) -> int:
        """Delete the expired sessions in small transactions; return the number of deleted turns."""
        before = self.clock() - self.after
        gone = 0
        while found := await self.database.run(partial(session_deletion.idle, before=before, limit=_FOUND)):
            for first in range(0, len(found), _BATCH):
                gone += await self._delete(found[first : first + _BATCH], before)
        return gone

    async def _delete(self, session_ids: Sequence[str], before: datetime) -> int:
        work = partial(session_deletion.delete_idle, session_ids=session_ids, before=before, at=self.clock())
        gone = 0
        while deleted := (await self.database.run(work)).turns:
            self.forget(deleted)
            gone += len(deleted)
        return gone

    async def _run_loop(self) -> None:
        while True:
            try:
                if gone := await self.sweep():
                    _log.info("idle_sessions_deleted", extra={"turns": gone})
            except StoreUnavailable as error:
                _log.warning("idle_sessions_not_deleted", extra={"reason": error.detail})
            except Exception:  # noqa: BLE001 - no other task deletes them
                _log.exception("idle_sessions_not_deleted")
            await self.pause(_PAUSE)
