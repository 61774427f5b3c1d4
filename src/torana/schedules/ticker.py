"""Run due schedules: each due time once, even after a crash, and without delaying users' messages.

The turn and the schedule's next due time are stored in one transaction. An idempotency key would not be enough:
it expires after a day, and a gateway may be down for longer.
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

from torana.aio import end_task
from torana.errors import Draining, GatewayError, StoreUnavailable
from torana.messages import Inbound, Turn, utc_now
from torana.schedules.service import following
from torana.schedules.words import format_moment
from torana.store.engine.database import Connection, Database
from torana.store.rows import schedules as rows
from torana.store.rows.schedules import Due, Schedule, ScheduleChanged
from torana.turns import Turns

#: The maximum number of running and queued tasks, in total and for one user. Further tasks stay due, so that
#: messages do not wait behind them.
AT_ONCE, PER_USER = 10, 5
#: The maximum number of reminders that one check sends.
BATCH = 20
#: The longest delay of a punctual run. The text of a later run states when it was due. A run that is later than
#: this because the gateway did not run counts as missed.
PUNCTUAL = timedelta(minutes=5)
#: The number of consecutive failures after which a schedule is paused.
FAILURES = 10
#: The maximum number of attempts for a refused run. All of them together take about a day.
TRIES = 100
#: The longest pause between two attempts.
_LONGEST_PAUSE = timedelta(minutes=15)

#: The longest time in seconds between two checks. Changes of the machine's clock cause no event.
_CHECK_INTERVAL = 30.0

_log = logging.getLogger(__name__)


class _TooMany(Exception):
    """The user's schedules have used their runs of the day."""


class Ticker:
    """Finds due schedules and runs them. A gateway has one ticker."""

    def __init__(
        self,
        *,
        database: Database,
        turns: Turns,
        firings_per_day: int,
        woken: asyncio.Event,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """``firings_per_day`` limits the runs of one user's schedules in a day (UTC).

        Code that changes the next due time sets ``woken``.
        """
        self._database = database
        self._turns = turns
        self._firings_per_day = firings_per_day
        self._clock = clock
        self._woken = woken
        self._task: asyncio.Task[None] | None = None
        #: The time of the last check.
        self._checked_at: datetime | None = None
        #: The time since which the machine has run without a pause.
        self._awake_since = clock()
        #: True if the rows must be corrected after a change of the clock.
        self._must_correct = True

    def start(self) -> None:
        """Start the ticker in the background."""
        self._task = asyncio.create_task(self._run_loop(), name="schedules")

    async def stop(self) -> None:
        """Stop the ticker. A run in progress is stored completely or not at all."""
        if self._task is not None:
            await end_task(self._task)

    def on_turn_ended(self, turn: Turn) -> None:
        """Check again, because an ended turn may make room for another task."""
        if turn.is_scheduled:
            self._woken.set()

    async def run_due(self) -> float:
        """Run due schedules up to the limits, and return the seconds until the next check.

        Raises ``StoreUnavailable`` and ``Draining``; schedules that did not run are still due.
        """
        now = self._clock()
        await self._check_clock(now)
        reminders, tasks = await self._database.run(partial(_find_due, now=now))
        for due in [*reminders, *tasks]:
            try:
                await self._process_due(due, now)
            except (StoreUnavailable, Draining):
                raise
            except Exception as error:  # noqa: BLE001 - one broken schedule must not delay the others
                await self._store(due.schedule, _paused(due.schedule, error))
        if tasks or len(reminders) == BATCH:
            return 0.0
        upcoming = await self._database.run(partial(rows.next_try, now=now))
        if upcoming is None:
            return _CHECK_INTERVAL
        return min(_CHECK_INTERVAL, max(0.0, (upcoming - self._clock()).total_seconds()))

    async def _run_loop(self) -> None:
        while True:
            self._woken.clear()
            try:
                pause = await self.run_due()
            except (StoreUnavailable, Draining) as error:
                _log.warning("schedules_delayed", extra={"reason": error.detail})
                pause = _CHECK_INTERVAL
            except Exception:  # noqa: BLE001 - no other task runs schedules
                _log.exception("schedules_not_read")
                pause = _CHECK_INTERVAL
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):  # ``wait_for`` may swallow a cancellation in Python 3.11
                    await self._woken.wait()

    async def _check_clock(self, now: datetime) -> None:
        """Detect that the machine was suspended, or that its clock was set back."""
        before, self._checked_at = self._checked_at, now
        if before is not None and now - before > timedelta(seconds=_CHECK_INTERVAL) + PUNCTUAL:
            self._awake_since = now
        if before is None or now < before or now.date() != before.date():
            self._awake_since = min(self._awake_since, now)
            self._must_correct = True
        if self._must_correct:
            await self._correct_rows(now)
            self._must_correct = False

    async def _correct_rows(self, now: datetime) -> None:
        """Delete schedules that ended long ago, and recompute due times that a wrong clock has set."""
        await self._database.run(partial(rows.forget_ended, now=now))
        found = await self._database.run(partial(rows.ahead_of, now=now, tried_by=now + _LONGEST_PAUSE))
        # A due time takes 60 µs to compute: thousands of them would block the database's thread.
        returned = await asyncio.to_thread(lambda: [_correct_due_time(schedule, now) for schedule in found])
        await self._database.run(partial(_settle_all, was=found, now=returned))

    async def _process_due(self, due: Due, now: datetime) -> None:
        """Run a schedule, or record why it does not run."""
        schedule = due.schedule
        failures = _failures(due)
        if schedule.missed == "skip" and schedule.run_at < self._awake_since - PUNCTUAL:
            await self._store(schedule, _record_missed(schedule, "the gateway was not running", now))
        elif failures >= FAILURES:
            why = f"paused: it failed {failures} times in a row; the last reason: {due.last_failure}"
            await self._store(schedule, replace(schedule, state="paused", try_at=None, tries=0, reason=why))
        elif due.last in ("queued", "running", "waiting"):
            await self._refuse(schedule, "its last task is not answered yet", now)
        elif due.held and schedule.kind == "task":
            await self._refuse(schedule, "an approval in its session is still open", now)
        else:
            await self._fire(schedule, failures, now)

    async def _fire(self, schedule: Schedule, failures: int, now: datetime) -> None:
        also = partial(self._settle, was=schedule, failures=failures, now=now)
        inbound, text = _inbound(schedule, now)
        try:
            if text is None:
                await self._turns.submit(inbound, also=also)
            else:
                await self._turns.store_answered(inbound, text, also=also)
        except ScheduleChanged:
            return
        except (StoreUnavailable, Draining):
            raise
        except _TooMany:
            why = (
                f"the user's schedules may run {self._firings_per_day} tasks a day "
                "(TORANA_SCHEDULE_FIRINGS_PER_DAY)"
            )
            await self._store(schedule, _record_missed(schedule, why, now))
        except GatewayError as error:
            await self._refuse(schedule, error.detail, now)
        except Exception:  # noqa: BLE001 - a bug in one schedule must not delay the others
            _log.exception("schedule_failed", extra={"schedule": schedule.id})
            await self._refuse(schedule, "the gateway has an internal error; its log has the details", now)

    def _settle(
        self, connection: Connection, turn: Turn, *, was: Schedule, failures: int, now: datetime
    ) -> None:
        """Store the changed schedule in the transaction of the turn."""
        fired = replace(_advance(was, now), turn_id=turn.id, failures=failures, reason=None)
        rows.settle(connection, was, fired)
        if rows.count_firing(connection, was, now) > self._firings_per_day:
            raise _TooMany

    async def _refuse(self, schedule: Schedule, why: str, now: datetime) -> None:
        """Try again later. The run is missed if the next due time comes first, or after about a day."""
        pause = min(timedelta(minutes=2 ** min(schedule.tries, 10)), _LONGEST_PAUSE)
        advanced = _advance(schedule, now)
        overtaken = advanced.due_at is not None and advanced.due_at <= now + pause
        if overtaken or schedule.tries + 1 >= TRIES:
            await self._store(schedule, _record_missed(schedule, why, now))
            return
        reason = f"delayed: {why}"
        later = replace(schedule, try_at=now + pause, tries=schedule.tries + 1, reason=reason)
        await self._store(schedule, later)

    async def _store(self, was: Schedule, now: Schedule) -> None:
        with suppress(ScheduleChanged):
            await self._database.run(partial(rows.settle, was=was, now=now))
            if now.reason is not None:
                _log.warning("schedule_not_run", extra={"schedule": was.id, "reason": now.reason})


def _find_due(connection: Connection, now: datetime) -> tuple[list[Due], list[Due]]:
    """Return the due reminders, and the due tasks for which there is room."""
    reminders = rows.due_reminders(connection, now, limit=BATCH)
    return reminders, rows.due_tasks(connection, now, at_once=AT_ONCE, per_user=PER_USER)


def _settle_all(connection: Connection, was: Sequence[Schedule], now: Sequence[Schedule]) -> None:
    """Store the schedules that differ, unless they were changed meanwhile."""
    for before, after in zip(was, now, strict=True):
        if after != before:
            with suppress(ScheduleChanged):
                rows.settle(connection, before, after)


def _correct_due_time(schedule: Schedule, now: datetime) -> Schedule:
    """Correct a schedule that may have been changed while the clock was ahead."""
    try:
        due = None if schedule.cron is None else following(schedule, now)
    except Exception as error:  # noqa: BLE001 - one broken schedule must not delay the others
        return _paused(schedule, error)
    if due is not None and due < schedule.run_at:
        return replace(schedule, due_at=due, try_at=due, tries=0, dealt_at=now)
    if schedule.try_at is not None and schedule.try_at > schedule.run_at:
        return replace(schedule, try_at=schedule.run_at)
    if schedule.cron is None and schedule.created_at > now + PUNCTUAL:
        # The intended time is unknown: “on Friday at 9” may be right, “in an hour” is not.
        return replace(schedule, reason=("created while the machine's clock was ahead; its time may be wrong"))
    return schedule


def _paused(schedule: Schedule, error: Exception) -> Schedule:
    """Return a schedule that cannot run, for example in a time zone that this machine does not know."""
    _log.error("schedule_failed", extra={"schedule": schedule.id}, exc_info=error)
    details = f"it failed to run ({type(error).__name__}); the log has the details"
    why = error.detail if isinstance(error, GatewayError) else details
    return replace(schedule, state="paused", try_at=None, tries=0, reason=f"paused: {why}")


def _failures(due: Due) -> int:
    match due.last:
        case "failed":
            return due.schedule.failures + 1
        case "completed":
            return 0
        case _:
            return due.schedule.failures


def _advance(schedule: Schedule, now: datetime) -> Schedule:
    """Return the schedule with its next due time; it ends if it has none."""
    advanced = replace(schedule, dealt_with=schedule.due_at, dealt_at=now, tries=0)
    due = None if schedule.cron is None else following(advanced, now)
    return replace(advanced, due_at=due, try_at=due, state="ended" if due is None else "active")


def _record_missed(schedule: Schedule, why: str, now: datetime) -> Schedule:
    return replace(_advance(schedule, now), reason=(f"missed the run that was due on {_due(schedule)}: {why}"))


def _inbound(schedule: Schedule, now: datetime) -> tuple[Inbound, str | None]:
    """Return the message of a run, and its reply if the schedule needs no agent."""
    late = now - schedule.run_at > PUNCTUAL
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
    return format_moment(schedule.run_at, ZoneInfo(schedule.timezone))
