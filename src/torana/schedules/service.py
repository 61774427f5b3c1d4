"""Schedules of users: made, listed, paused, resumed and removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from torana.errors import NotFound, ScheduleEnded, ScheduleInvalid, SchedulesFull
from torana.messages import new_id, utc_now
from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.schedules.rules import next_due, smallest_gap
from torana.schedules.words import read_instant, read_rule
from torana.store import schedules as rows
from torana.store.audit import Act, on_a_users, record
from torana.store.database import Connection, Database
from torana.store.schedules import MissedPolicy, Schedule, ScheduleKind, ScheduleState
from torana.turns.controls import WORDS

#: Characters of what is said or done.
TEXT_LIMIT = 2_000

#: How far a clock may be set back so that nothing is done twice.
_AHEAD = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """What somebody wants said or done, and when: ``at`` a time once, or by a ``rule``, as they wrote it."""

    owner: str
    text: str
    kind: ScheduleKind = "remind"
    at: str | None = None
    rule: str | None = None
    #: An IANA zone; None is the gateway's.
    timezone: str | None = None
    missed: MissedPolicy = "run_once"
    user: str | None = None
    token: str | None = None
    #: Where it is said; None stands for a channel of its own.
    channel: str | None = None
    account: str | None = None
    place: str | None = None


class Schedules:
    """The schedules of all owners. The owner may be ``EVERYONE`` where one is named by its id.

    An operator's act is written down where the schedule is a user's own. Every method that takes an id raises
    ``NotFound`` for one that the owner has not.
    """

    def __init__(
        self,
        *,
        database: Database,
        zone: ZoneInfo,
        per_user: int,
        min_minutes: int,
        changed: Callable[[], None],
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """``zone`` is where no other is named; ``changed`` is told that there may be another next due time."""
        self._database = database
        self._zone = zone
        self._per_user = per_user
        self._least = timedelta(minutes=min_minutes)
        self._changed = changed
        self._clock = clock

    async def make(self, new: NewSchedule, *, made_by: bytes | None = None, act: Act | None = None) -> Schedule:
        """Keep a schedule; asked again with the same ``made_by``, the one that was made before.

        Raises ``ScheduleInvalid`` and ``SchedulesFull``.
        """
        if made_by is not None:  # asked first: what was to come then may have passed
            known = await self._database.run(partial(rows.made, owner=new.owner, made_by=made_by))
            if known is not None:
                return known
        schedule = self._checked(new)
        await self._database.run(partial(self._add, schedule=schedule, made_by=made_by, act=act))
        self._changed()
        return schedule

    async def listed(
        self,
        owner: str,
        *,
        state: ScheduleState | None = None,
        user: str | None = None,
        limit: int,
        after: str | None = None,
    ) -> Page[Schedule]:
        """The owner's schedules, the newest first. Raises ``InvalidField`` for a cursor that no page gave."""
        before = read_cursor(after, TIME_KEY)
        work = partial(rows.listed, owner=owner, state=state, user=user, before=before, limit=limit + 1)
        found = await self._database.run(work)
        return cut(found, limit, lambda schedule: (schedule.created_at, schedule.id), TIME_KEY)

    async def of_speaker(self, owner: str, user: str | None, channel: str | None) -> list[Schedule]:
        """What a speaker has made that has not ended, the next first; see ``store.schedules``."""
        return await self._database.run(partial(rows.of_speaker, owner=owner, user=user, channel=channel))

    async def get(self, owner: str, schedule_id: str) -> Schedule:
        """One of them."""
        return await self._database.run(partial(_found, owner=owner, schedule_id=schedule_id))

    async def remove(self, owner: str, schedule_id: str, *, act: Act | None = None) -> Schedule:
        """Delete one; what it has begun goes on."""

        def work(connection: Connection) -> Schedule:
            found = _found(connection, owner, schedule_id)
            rows.delete(connection, found)
            _note(connection, found, act, "schedule.remove")
            return found

        return await self._database.run(work)

    async def pause(self, owner: str, schedule_id: str, *, act: Act | None = None) -> Schedule:
        """Let one rest; paused already, it is left as it is. Raises ``ScheduleEnded``."""

        def work(connection: Connection) -> Schedule:
            found = _found(connection, owner, schedule_id)
            if found.state == "paused":
                return found
            paused = replace(_going(found), state="paused", try_at=None, tries=0, reason=None)
            rows.put(connection, paused)
            _note(connection, found, act, "schedule.pause")
            return paused

        return await self._database.run(work)

    async def resume(self, owner: str, schedule_id: str, *, act: Act | None = None) -> Schedule:
        """Let one that rests go on with its next due time; what was due meanwhile once, comes now.

        One that does not rest is left as it is. Raises ``ScheduleEnded``.
        """

        def work(connection: Connection) -> Schedule:
            found = _found(connection, owner, schedule_id)
            if _going(found).state == "active":
                return found
            due = found.due_at if found.cron is None else following(found, self._clock())
            resumed = replace(found, state="active", due_at=due, try_at=due, failures=0, reason=None)
            if due is None:
                raise ScheduleEnded
            rows.put(connection, resumed)
            _note(connection, found, act, "schedule.resume")
            return resumed

        resumed = await self._database.run(work)
        self._changed()
        return resumed

    def _add(self, connection: Connection, schedule: Schedule, made_by: bytes | None, act: Act | None) -> None:
        if not rows.add(connection, schedule, made_by=made_by, most=self._per_user):
            raise SchedulesFull(
                f"A user may have {self._per_user} schedules that have not ended (TORANA_SCHEDULES_PER_USER); "
                "remove some first."
            )
        _note(connection, schedule, act, "schedule.create")

    def _checked(self, new: NewSchedule) -> Schedule:
        now = self._clock()
        zone = self._zone if new.timezone is None else _zone(new.timezone)
        if (new.at is None) == (new.rule is None):
            raise ScheduleInvalid("A schedule has either a time, at which it is due once, or a rule.")
        rule = None if new.rule is None else read_rule(new.rule)
        due = self._first(rule, zone, now) if rule else read_instant(new.at or "", now=now, zone=zone)
        return Schedule(
            id=new_id("sch"),
            owner=new.owner,
            user=new.user,
            token=new.token,
            channel=new.channel or new_id("ch"),
            account=new.account,
            place=new.place,
            kind=new.kind,
            text=_text(new.text),
            cron=rule,
            timezone=zone.key,
            missed=new.missed if rule else "run_once",
            created_at=now,
            due_at=due,
            try_at=due,
        )

    def _first(self, rule: str, zone: ZoneInfo, now: datetime) -> datetime:
        if smallest_gap(rule) < self._least:
            raise ScheduleInvalid(
                f"`{rule}` is due more often than every {self._least // timedelta(minutes=1)} minutes, which "
                "is the least here (TORANA_SCHEDULE_MIN_MINUTES)."
            )
        due = next_due(rule, zone, now)
        if due is None:
            raise ScheduleInvalid(f"`{rule}` is not due within ten years.")
        return due


def following(schedule: Schedule, now: datetime) -> datetime | None:
    """The next time that a schedule with a rule is due, behind now and behind what was dealt with.

    What was dealt with too early by a clock that was more than a day ahead is due again: nobody is helped by
    silence until then.
    """
    assert schedule.cron is not None  # noqa: S101 - the caller has looked
    dealt_with = schedule.dealt_with
    after = dealt_with if dealt_with is not None and now < dealt_with <= now + _AHEAD else now
    return next_due(schedule.cron, ZoneInfo(schedule.timezone), after)


def _found(connection: Connection, owner: str, schedule_id: str) -> Schedule:
    found = rows.get(connection, owner, schedule_id)
    if found is None:
        raise NotFound(f"there is no schedule {schedule_id!r}")
    return found


def _going(schedule: Schedule) -> Schedule:
    if schedule.state == "ended":
        raise ScheduleEnded
    return schedule


def _note(connection: Connection, schedule: Schedule, act: Act | None, action: str) -> None:
    """Write down the act, where it reaches into what a user's own token made."""
    if noted := on_a_users(schedule.owner, act):
        record(connection, noted, action, schedule.id)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        detail = f"There is no time zone {name[:60]!r}; name one such as Europe/Vienna."
        raise ScheduleInvalid(detail) from None


def _text(text: str) -> str:
    said = text.strip()
    if not said or len(said) > TEXT_LIMIT or "\0" in said:
        raise ScheduleInvalid(f"A schedule needs a text of 1 to {TEXT_LIMIT:,} characters.")
    if said.casefold() in WORDS:
        raise ScheduleInvalid(f"{said} is a word to the gateway itself; say what the agent is to do.")
    return said
