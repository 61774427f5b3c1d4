"""Fires what is due: each due time once, whatever crashes, and never so much that people wait for it.

A firing's turn and the schedule's next due time are kept in one transaction, so that there are both or neither.
An idempotency key would not do: it is forgotten after a day, and a gateway may be down for longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from torana.errors import Draining, GatewayError, StoreUnavailable
from torana.messages import Inbound, Turn, utc_now
from torana.schedules.service import following
from torana.schedules.words import say
from torana.store import schedules as rows
from torana.store.database import Connection, Database
from torana.store.schedules import Changed, Due, Schedule
from torana.turns import Turns

#: Tasks of all schedules that run or wait at once, and of one user's; the others wait behind them, and people
#: pass them by.
AT_ONCE, OF_ONE = 10, 5
#: Reminders said in one go, before anything else gets its turn.
BATCH = 20
#: What is later than this is late, and says so; what the gateway slept through by more than this is missed.
PUNCTUAL = timedelta(minutes=5)
#: A schedule whose turns fail so often in a row is paused.
FAILURES = 10
#: How often a refused firing is tried, which takes about a day, and the longest pause between two tries.
TRIES = 100
_LONGEST = timedelta(minutes=15)

#: Seconds after which it looks again in any case: what the clock of the machine does meanwhile is not told.
_NAP = 30.0

_log = logging.getLogger(__name__)


class _TooMany(Exception):
    """The user's schedules have done all that they may do today."""


class Ticker:
    """Looks for what is due, and fires it. One runs in a gateway."""

    def __init__(
        self,
        *,
        database: Database,
        turns: Turns,
        firings_per_day: int,
        woken: asyncio.Event,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """``firings_per_day`` is what one user's schedules may do in a day (UTC); whoever has changed what is
        due next sets ``woken``.
        """
        self._database = database
        self._turns = turns
        self._firings_per_day = firings_per_day
        self._clock = clock
        self._woken = woken
        self._task: asyncio.Task[None] | None = None
        #: When it looked last, and since when it has been awake.
        self._looked: datetime | None = None
        self._awake_since = clock()
        #: Whether the rows are to be mended by the clock; until that has been done.
        self._untidy = True

    def start(self) -> None:
        """Begin, in the background."""
        self._task = asyncio.create_task(self._keep_looking(), name="schedules")

    async def stop(self) -> None:
        """End; a firing that has begun is kept whole or not at all."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def turn_ended(self, turn: Turn) -> None:
        """Hear of a turn that has ended: there may be room for another task."""
        if turn.scheduled:
            self._woken.set()

    async def look(self) -> float:
        """Fire what is due, as far as there is room, and return in how many seconds to look again.

        Raises ``StoreUnavailable`` and ``Draining``; what was not fired then is still due.
        """
        now = self._clock()
        await self._mind_the_clock(now)
        reminders, tasks = await self._database.run(partial(_found, now=now))
        for due in [*reminders, *tasks]:
            try:
                await self._deal_with(due, now)
            except (StoreUnavailable, Draining):
                raise
            except Exception as error:  # noqa: BLE001 - one that cannot be fired holds up no other
                _log.exception("a schedule could not be fired", extra={"schedule": due.schedule.id})
                why = f"paused: it could not be fired ({type(error).__name__}); the log has the details"
                paused = replace(due.schedule, state="paused", try_at=None, tries=0, reason=why)
                await self._keep(due.schedule, paused)
        if tasks or len(reminders) == BATCH:
            return 0.0
        upcoming = await self._database.run(partial(rows.next_try, now=now))
        if upcoming is None:
            return _NAP
        return min(_NAP, max(0.0, (upcoming - self._clock()).total_seconds()))

    async def _keep_looking(self) -> None:
        while True:
            self._woken.clear()
            try:
                pause = await self.look()
            except (StoreUnavailable, Draining) as error:
                _log.warning("schedules wait", extra={"reason": error.detail})
                pause = _NAP
            except Exception:  # noqa: BLE001 - nobody else would fire them
                _log.exception("schedules could not be looked through")
                pause = _NAP
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):  # not wait_for, which may swallow the end (3.11)
                    await self._woken.wait()

    async def _mind_the_clock(self, now: datetime) -> None:
        """Notice that the machine slept, and that the clock was set back."""
        before, self._looked = self._looked, now
        if before is not None and now - before > timedelta(seconds=_NAP) + PUNCTUAL:
            self._awake_since = now
        if before is None or now < before or now.date() != before.date():
            self._awake_since = min(self._awake_since, now)
            self._untidy = True
        if self._untidy:
            await self._tidy(now)
            self._untidy = False

    async def _tidy(self, now: datetime) -> None:
        """Delete schedules that ended long ago, and compute due times anew that a wrong clock has set."""
        await self._database.run(partial(rows.forget_ended, now=now))
        found = await self._database.run(partial(rows.ahead_of, now=now, tried_by=now + _LONGEST))
        # A next due time costs 60 µs: thousands of them are computed outside the database's thread.
        returned = await asyncio.to_thread(lambda: [_come_back(schedule, now) for schedule in found])
        await self._database.run(partial(_settle_all, was=found, now=returned))

    async def _deal_with(self, due: Due, now: datetime) -> None:
        """Fire one, or write down why not."""
        schedule = due.schedule
        assert schedule.due_at is not None  # noqa: S101 - it was found by that
        failures = _failures(due)
        if schedule.missed == "skip" and schedule.due_at < self._awake_since - PUNCTUAL:
            await self._keep(schedule, _missed(schedule, "the gateway was not running", now))
        elif failures >= FAILURES:
            why = f"paused: it failed {failures} times in a row, the last time because: {due.last_failure}"
            await self._keep(schedule, replace(schedule, state="paused", try_at=None, tries=0, reason=why))
        elif due.last in ("queued", "running", "waiting"):
            await self._refuse(schedule, "its last firing has no answer yet", now)
        elif due.held and schedule.kind == "task":
            await self._refuse(schedule, "a question in its conversation has no answer yet", now)
        else:
            await self._fire(schedule, failures, now)

    async def _fire(self, schedule: Schedule, failures: int, now: datetime) -> None:
        also = partial(self._settle, was=schedule, failures=failures, now=now)
        inbound, text = _inbound(schedule, now)
        try:
            if text is None:
                await self._turns.submit(inbound, also=also)
            else:
                await self._turns.say(inbound, text, also=also)
        except Changed:
            return
        except (StoreUnavailable, Draining):
            raise
        except _TooMany:
            why = (
                f"the user's schedules may do {self._firings_per_day} things a day "
                "(TORANA_SCHEDULE_FIRINGS_PER_DAY)"
            )
            await self._keep(schedule, _missed(schedule, why, now))
        except GatewayError as error:
            await self._refuse(schedule, error.detail, now)
        except Exception:  # noqa: BLE001 - a bug in one must not hold up the others, nor be met at once
            _log.exception("a schedule could not be fired", extra={"schedule": schedule.id})
            await self._refuse(
                schedule, "something went wrong inside the gateway; its log has the details", now
            )

    def _settle(
        self, connection: Connection, turn: Turn, *, was: Schedule, failures: int, now: datetime
    ) -> None:
        """What is kept together with the turn."""
        fired = replace(_dealt_with(was, now), turn_id=turn.id, failures=failures, reason=None)
        rows.settle(connection, was, fired)
        if rows.count_firing(connection, was, now) > self._firings_per_day:
            raise _TooMany

    async def _refuse(self, schedule: Schedule, why: str, now: datetime) -> None:
        """Try again a little later; with the next due time, or after a day, it is given up."""
        pause = min(timedelta(minutes=2 ** min(schedule.tries, 10)), _LONGEST)
        dealt = _dealt_with(schedule, now)
        overtaken = dealt.due_at is not None and dealt.due_at <= now + pause
        if overtaken or schedule.tries + 1 >= TRIES:
            await self._keep(schedule, _missed(schedule, why, now))
            return
        reason = f"not fired yet: {why}"
        later = replace(schedule, try_at=now + pause, tries=schedule.tries + 1, reason=reason)
        await self._keep(schedule, later)

    async def _keep(self, was: Schedule, now: Schedule) -> None:
        with suppress(Changed):
            await self._database.run(partial(rows.settle, was=was, now=now))
            if now.reason is not None:
                _log.warning("a schedule was not fired", extra={"schedule": was.id, "reason": now.reason})


def _found(connection: Connection, now: datetime) -> tuple[list[Due], list[Due]]:
    """The reminders that are due, and the tasks for which there is room."""
    reminders = rows.due_reminders(connection, now, limit=BATCH)
    return reminders, rows.due_tasks(connection, now, at_once=AT_ONCE, of_one=OF_ONE)


def _settle_all(connection: Connection, was: Sequence[Schedule], now: Sequence[Schedule]) -> None:
    """Keep the schedules that differ, unless they were changed meanwhile."""
    for before, after in zip(was, now, strict=True):
        if after != before:
            with suppress(Changed):
                rows.settle(connection, before, after)


def _come_back(schedule: Schedule, now: datetime) -> Schedule:
    """A schedule that may have been made, resumed, dealt with or refused by a clock that was ahead."""
    assert schedule.due_at is not None  # noqa: S101 - it is active
    assert schedule.try_at is not None  # noqa: S101 - as above
    due = None if schedule.cron is None else following(schedule, now)
    if due is not None and due < schedule.due_at:
        return replace(schedule, due_at=due, try_at=due, tries=0, dealt_at=now)
    if schedule.try_at > schedule.due_at:
        return replace(schedule, try_at=schedule.due_at)
    if schedule.cron is None and schedule.created_at > now + PUNCTUAL:
        # What was meant is not known: “on Friday at 9” may be right, “in an hour” is not.
        return replace(schedule, reason="made while the machine's clock was ahead; its time may be wrong")
    return schedule


def _failures(due: Due) -> int:
    """How often in a row it failed, the last firing included."""
    match due.last:
        case "failed":
            return due.schedule.failures + 1
        case "completed":
            return 0
        case _:
            return due.schedule.failures


def _dealt_with(schedule: Schedule, now: datetime) -> Schedule:
    """The schedule with its next due time, or ended."""
    dealt = replace(schedule, dealt_with=schedule.due_at, dealt_at=now, tries=0)
    due = None if schedule.cron is None else following(dealt, now)
    return replace(dealt, due_at=due, try_at=due, state="ended" if due is None else "active")


def _missed(schedule: Schedule, why: str, now: datetime) -> Schedule:
    return replace(_dealt_with(schedule, now), reason=f"missed what was due on {_due(schedule)}: {why}")


def _inbound(schedule: Schedule, now: datetime) -> tuple[Inbound, str | None]:
    """The message that a firing is, and its answer where that needs no agent."""
    assert schedule.due_at is not None  # noqa: S101 - as above
    late = now - schedule.due_at > PUNCTUAL
    content, text = schedule.text, None
    if schedule.kind == "remind":
        content = f"A reminder is due: {schedule.text}"
        text = f"Reminder, which was due on {_due(schedule)}: " if late else "Reminder: "
        text += schedule.text
    elif late:
        content += f"\n\n[This task was due on {_due(schedule)}.]"
    inbound = Inbound(
        owner=schedule.owner,
        principal=schedule.principal,
        content=content,
        channel=schedule.channel,
        user=schedule.user,
        token=schedule.token,
        account=schedule.account,
        place=schedule.place,
    )
    return inbound, text


def _due(schedule: Schedule) -> str:
    assert schedule.due_at is not None  # noqa: S101 - as above
    return say(schedule.due_at, ZoneInfo(schedule.timezone))
