"""Create, list, pause, resume and remove users' schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from torana.errors import NotFound, ScheduleEnded, ScheduleInvalid, SchedulePaused, SchedulesFull
from torana.messages import MissedPolicy, ScheduleState, new_id, utc_now
from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.schedules.rules import next_due, smallest_gap
from torana.schedules.words import day_in_words, read_instant, read_rule
from torana.store.engine.database import Connection, Database
from torana.store.rows import schedules as rows
from torana.store.rows.audit import Act, auditable_act, record
from torana.store.rows.schedules import Schedule, ScheduleKind
from torana.tools.base import ToolError
from torana.tools.builtin.dates import read_day
from torana.tools.computing import Computing
from torana.tools.shares import sharing_user
from torana.turns.commands import WORDS

#: The maximum length of the text of a schedule.
TEXT_LIMIT = 2_000

#: The clock may be set back by this much without a schedule running twice.
_AHEAD = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A requested schedule: either ``at`` (one time) or ``rule`` (repeated times), as the user wrote it."""

    owner: str
    text: str
    kind: ScheduleKind = "remind"
    at: str | None = None
    rule: str | None = None
    #: An IANA zone. None is the gateway's zone.
    timezone: str | None = None
    missed: MissedPolicy = "run_once"
    user: str | None = None
    token: str | None = None
    #: The channel of the turns. None creates a separate channel.
    channel: str | None = None
    account: str | None = None
    place: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Schedules:
    """The schedules of all owners. In methods with an id, the owner may be ``EVERYONE``.

    An operator's action on a user's schedule is recorded in the audit record. Every method with an id raises
    ``NotFound`` for a schedule that the owner does not have.

    ``zone`` is the default zone. ``changed`` is called when the next due time may have changed. Dates in free
    words are read with ``computing``.
    """

    database: Database
    computing: Computing
    zone: ZoneInfo
    per_user: int
    min_minutes: int
    changed: Callable[[], None]
    clock: Callable[[], datetime] = utc_now

    async def make(self, new: NewSchedule, *, made_by: bytes | None = None, act: Act | None = None) -> Schedule:
        """Store a schedule. A call with the same ``made_by`` returns the schedule of the first call.

        Raises ``ScheduleInvalid`` and ``SchedulesFull``.
        """
        if made_by is not None:  # before validation: the time of a repeated call may have passed
            known = await self.database.run(partial(rows.find_by_call, owner=new.owner, made_by=made_by))
            if known is not None:
                return known
        schedule = await self._validate(new)
        await self.database.run(partial(self._add, schedule=schedule, made_by=made_by, act=act))
        self.changed()
        return schedule

    async def list_schedules(
        self,
        owner: str,
        *,
        state: ScheduleState | None = None,
        user: str | None = None,
        limit: int,
        after: str | None = None,
    ) -> Page[Schedule]:
        """Return the owner's schedules, the newest first. Raises ``InvalidField`` for an invalid cursor."""
        before = read_cursor(after, TIME_KEY)
        work = partial(rows.list_schedules, owner=owner, state=state, user=user, before=before, limit=limit + 1)
        found = await self.database.run(work)
        return cut(found, limit, lambda schedule: (schedule.created_at, schedule.id), TIME_KEY)

    async def of_speaker(self, owner: str, user: str | None, channel: str | None) -> list[Schedule]:
        """Return the speaker's schedules that have not ended, the next due first."""
        return await self.database.run(partial(rows.of_speaker, owner=owner, user=user, channel=channel))

    async def get(self, owner: str, schedule_id: str) -> Schedule:
        """Return the schedule with this id."""
        return await self.database.run(partial(_require_schedule, owner=owner, schedule_id=schedule_id))

    async def remove(self, owner: str, schedule_id: str, *, act: Act | None = None) -> Schedule:
        """Delete the schedule. Turns that it started continue."""

        def work(connection: Connection) -> Schedule:
            found = _require_schedule(connection, owner, schedule_id)
            rows.delete(connection, found)
            _note(connection, found, act, "schedule.remove")
            return found

        return await self.database.run(work)

    async def pause(self, owner: str, schedule_id: str, *, act: Act | None = None) -> Schedule:
        """Pause the schedule; a paused one is unchanged. Raises ``ScheduleEnded``."""

        def pause(found: Schedule) -> Schedule:
            if found.state == "paused":
                return found
            return replace(_require_open(found), state="paused", try_at=None, tries=0, reason=None)

        return await self._change(owner, schedule_id, pause, act, "schedule.pause")

    async def resume(self, owner: str, schedule_id: str, *, act: Act | None = None) -> Schedule:
        """Resume a paused schedule at its next due time; a missed single time is due at once.

        An active schedule is unchanged. Raises ``ScheduleEnded``.
        """

        def resume(found: Schedule) -> Schedule:
            if _require_open(found).state == "active":
                return found
            due = found.due_at if found.cron is None else following(found, self.clock())
            if due is None:
                raise ScheduleEnded
            return replace(found, state="active", due_at=due, try_at=due, failures=0, reason=None)

        return await self._change(owner, schedule_id, resume, act, "schedule.resume")

    async def run_now(self, owner: str, schedule_id: str, *, act: Act | None = None) -> Schedule:
        """Make an active schedule due now. A repeating schedule continues, and a one-off
        schedule ends.

        Raises ``ScheduleEnded`` and ``SchedulePaused``.
        """

        def run(found: Schedule) -> Schedule:
            if _require_open(found).state == "paused":
                raise SchedulePaused
            now = self.clock()
            return replace(found, due_at=now, try_at=now, tries=0, reason=None)

        return await self._change(owner, schedule_id, run, act, "schedule.run")

    async def _change(
        self,
        owner: str,
        schedule_id: str,
        change: Callable[[Schedule], Schedule],
        act: Act | None,
        action: str,
    ) -> Schedule:
        """Store the changed schedule and record the action, unless ``change`` returns the same schedule."""

        def work(connection: Connection) -> Schedule:
            found = _require_schedule(connection, owner, schedule_id)
            changed = change(found)
            if changed is not found:
                rows.put(connection, changed)
                _note(connection, found, act, action)
            return changed

        changed = await self.database.run(work)
        self.changed()
        return changed

    def _add(self, connection: Connection, schedule: Schedule, made_by: bytes | None, act: Act | None) -> None:
        if not rows.add(connection, schedule, made_by=made_by, most=self.per_user):
            raise SchedulesFull(
                f"A user may have {self.per_user} open schedules (TORANA_SCHEDULES_PER_USER). "
                "Remove a schedule first."
            )
        _note(connection, schedule, act, "schedule.create")

    async def _validate(self, new: NewSchedule) -> Schedule:
        now = self.clock()
        zone = self.zone if new.timezone is None else _zone(new.timezone)
        if (new.at is None) == (new.rule is None):
            raise ScheduleInvalid("A schedule needs either `at`, for one time, or `rule`, for repeated times.")
        rule = None if new.rule is None else read_rule(new.rule)
        due = self._first(rule, zone, now) if rule else await self._read_instant(new, now, zone)
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

    async def _read_instant(self, new: NewSchedule, now: datetime, zone: ZoneInfo) -> datetime:
        """Return the moment of a one-off schedule. A day in free words is read in another process."""
        text, day = new.at or "", None
        if words := day_in_words(text, zone):
            arguments = {"text": words, "now": now.astimezone(zone).isoformat()}
            try:
                read = await self.computing.run(read_day, arguments, user=sharing_user(new))
            except ToolError as error:
                raise ScheduleInvalid(str(error)) from None
            day = date.fromisoformat(read)
        return read_instant(text, now=now, zone=zone, day=day)

    def _first(self, rule: str, zone: ZoneInfo, now: datetime) -> datetime:
        if smallest_gap(rule) < timedelta(minutes=self.min_minutes):
            raise ScheduleInvalid(
                f"`{rule}` is due more often than every {self.min_minutes} "
                "minutes, the shortest interval allowed (TORANA_SCHEDULE_MIN_MINUTES)."
            )
        due = next_due(rule, zone, now)
        if due is None:
            raise ScheduleInvalid(f"`{rule}` is not due within ten years.")
        return due


def following(schedule: Schedule, now: datetime) -> datetime | None:
    """Return the next due time of a schedule with a rule, after now and after the last handled time.

    A handled time that is more than a day ahead comes from a wrong clock, and is ignored. Raises
    ``ScheduleInvalid`` if this machine does not know the schedule's time zone.
    """
    assert schedule.cron is not None  # noqa: S101 - the caller has looked
    dealt_with = schedule.dealt_with
    after = dealt_with if dealt_with is not None and now < dealt_with <= now + _AHEAD else now
    return next_due(schedule.cron, _zone(schedule.timezone), after)


def _require_schedule(connection: Connection, owner: str, schedule_id: str) -> Schedule:
    found = rows.get(connection, owner, schedule_id)
    if found is None:
        raise NotFound(f"there is no schedule {schedule_id!r}")
    return found


def _require_open(schedule: Schedule) -> Schedule:
    if schedule.state == "ended":
        raise ScheduleEnded
    return schedule


def _note(connection: Connection, schedule: Schedule, act: Act | None, action: str) -> None:
    """Record the action if the schedule belongs to a user."""
    if noted := auditable_act(schedule.owner, act):
        record(connection, noted, action, schedule.id)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        detail = f"There is no time zone {name[:60]!r}; name one such as Europe/Vienna."
        raise ScheduleInvalid(detail) from None


def _text(text: str) -> str:
    content = text.strip()
    if not content or len(content) > TEXT_LIMIT or "\0" in content:
        raise ScheduleInvalid(f"A schedule needs a text of 1 to {TEXT_LIMIT:,} characters.")
    if content.casefold() in WORDS:
        raise ScheduleInvalid(f"{content} is a command to the gateway. Write a task for the agent.")
    return content
