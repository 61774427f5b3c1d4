"""Transactions that must not be lost, such as the end of a turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

from torana.limits.budgets import Budgets, log_warnings
from torana.limits.limit_usage import BudgetWarning
from torana.messages import Turn
from torana.store.engine.database import Connection, Database, Work, retry_until_available
from torana.store.rows import turns as rows
from torana.store.rows.turns import Ending
from torana.turns.outcomes import failed_outcome
from torana.workers.fair_slots import FairSlots

#: Seconds between two attempts to write the end of a turn; the last pause repeats.
_PAUSES = (0.5, 2.0, 10.0, 30.0)

#: The transactions of running turns that wait for the database: of all users, and of each. The others of a user
#: wait here, so that messages of other users do not wait for them.
_QUEUED, _QUEUED_OF_USER = 64, 8

_log = logging.getLogger(__name__)

T = TypeVar("T")


class RecordedEnd(NamedTuple):
    """The ended turns, and the session's next turn if the transaction claimed it."""

    ended: list[Turn]
    following: Turn | None
    #: False if the transaction claimed no turn, although one may be due.
    may_claim: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWriter:
    """Writes the progress and the ends of turns, and repeats a write while the database refuses it."""

    database: Database
    budgets: Budgets
    clock: Callable[[], datetime]
    pause: Callable[[float], Awaitable[None]]
    _queued: FairSlots = field(
        default_factory=partial(FairSlots, total=_QUEUED, per_user=_QUEUED_OF_USER), init=False
    )

    async def was_steered_elsewhere(self, turn: Turn) -> bool:
        """Return whether another replica has accepted a message that steers the turn. Raises as ``persist``."""
        if self.database.replica is None:
            return False
        return await retry_until_available(
            lambda: self.database.read(partial(rows.has_steers, turn=turn)), pause=self.pause
        )

    async def persist(self, work: Work[T], *, delayed: asyncio.Event | None = None) -> T:
        """Execute ``work`` as ``Database.run`` does, and repeat it while the disk cannot be written.

        ``delayed`` is set during that time.
        """
        return await self.database.persist(work, pause=self.pause, delayed=delayed)

    async def persist_progress(self, work: Work[T], *, user: str, delayed: asyncio.Event) -> T:
        """Execute ``work`` as ``persist`` does, when few other transactions of the user's turns wait."""
        slot = partial(self._queued.slot, user)
        return await self.database.persist(work, pause=self.pause, delayed=delayed, slot=slot)

    async def record_end(
        self,
        turn: Turn,
        ending: Ending,
        *,
        hold: Callable[[], bool],
        delayed: asyncio.Event | None = None,
    ) -> RecordedEnd:
        """Write the end of a turn, and claim the session's next turn in the same transaction.

        If the database refuses the end, the turn fails instead; if it refuses that as well, the failure is
        written without the turn's costs, and no turn is claimed. ``hold`` is evaluated in each transaction;
        while it is true nothing is claimed.
        """
        try:
            return await self._finish(turn, ending, hold, delayed)
        except Exception as error:  # noqa: BLE001 - a bug must not leave its turn unanswered
            failure = failed_outcome(error, self.clock())
        failed = replace(failure, spent=ending.spent, times=ending.times)
        try:
            return await self._finish(turn, failed, hold, delayed)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("turn_cost_not_written")
        ended = await self.persist(partial(rows.fail_bare, turn=turn, ending=failure))
        return RecordedEnd(ended, None, may_claim=False)

    async def retry_until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``; after an error, repeat it after a pause."""
        for seconds in chain(_PAUSES, repeat(_PAUSES[-1])):
            try:
                return await work()
            except Exception:  # noqa: BLE001 - the loop repeats it
                _log.exception("session_still_blocked")
            await self.pause(seconds)
        raise AssertionError("the pauses are endless")

    async def _finish(
        self, turn: Turn, ending: Ending, hold: Callable[[], bool], delayed: asyncio.Event | None
    ) -> RecordedEnd:
        def finish(connection: Connection) -> tuple[list[Turn], Turn | None, list[BudgetWarning]]:
            held = self.budgets.reservation_of(connection, turn)
            if ending.stopped_at is not None:
                self.budgets.stop(connection, turn, ending.stopped_at, asked=ending.stopped_request)
            ended, following = rows.finish(connection, turn, ending, hold=hold())
            return ended, following, self.budgets.warnings(connection, ended[0], held)

        ended, following, warned = await self.persist(finish, delayed=delayed)
        log_warnings(warned)
        return RecordedEnd(ended, following)
