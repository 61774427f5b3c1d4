"""Rows of schedules: what is said or done at a time, and how that stands.

::

    active <-> paused     active -> ended

Where rows are read by an owner, that may be ``EVERYONE``. What has ended stays listed for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult, RowMapping

from torana.messages import SCHEDULE_PRINCIPAL, TurnState, owner_of
from torana.store import usage
from torana.store.tables import active, owned, schedules, turns, unfinished
from torana.store.usage import Amount

ScheduleKind = Literal["remind", "task"]
SCHEDULE_KINDS: tuple[ScheduleKind, ...] = get_args(ScheduleKind)
ScheduleState = Literal["active", "paused", "ended"]
SCHEDULE_STATES: tuple[ScheduleState, ...] = get_args(ScheduleState)
#: What becomes of times that passed while the gateway was down: one firing for all of them, or none.
MissedPolicy = Literal["run_once", "skip"]
MISSED_POLICIES: tuple[MissedPolicy, ...] = get_args(MissedPolicy)

#: A rule's due time that is nearer than this is not computed anew after the clock was set back.
_FAR = timedelta(days=1)

#: How long one that has ended is kept.
_KEPT = timedelta(days=30)


class Changed(Exception):
    """The schedule is not as it was when it was read: somebody else has dealt with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule, as its row says; see ``tables.schedules``."""

    id: str
    owner: str
    user: str | None
    channel: str
    kind: ScheduleKind
    text: str
    #: None for what is due once.
    cron: str | None
    timezone: str
    missed: MissedPolicy
    created_at: datetime
    due_at: datetime | None
    try_at: datetime | None
    token: str | None = None
    account: str | None = None
    place: str | None = None
    state: ScheduleState = "active"
    #: How often in a row the due firing was refused, and how often in a row a firing's turn failed.
    tries: int = 0
    failures: int = 0
    #: Why it was paused, or why its last time was missed.
    reason: str | None = None
    dealt_with: datetime | None = None
    dealt_at: datetime | None = None
    turn_id: str | None = None

    @property
    def principal(self) -> str:
        """Who its firings come from."""
        return f"{SCHEDULE_PRINCIPAL}{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A schedule that is to be looked at, and what became of its last firing's turn."""

    schedule: Schedule
    last: TurnState | None
    last_failure: str | None
    #: Whether a turn of its channel waits for somebody's yes.
    held: bool


def add(connection: Connection, schedule: Schedule, *, made_by: bytes | None = None, most: int) -> bool:
    """Keep a new schedule; False where its user has ``most`` already that have not ended.

    All of an owner's without a user count as one user's.
    """
    lives = schedules.c.state != "ended"
    count = sa.select(sa.func.count()).select_from(schedules).where(lives, _of_user(schedule))
    if connection.execute(count).scalar_one() >= most:
        return False
    connection.execute(sa.insert(schedules), _values(schedule) | {"made_by": made_by})
    return True


def made(connection: Connection, owner: str, made_by: bytes) -> Schedule | None:
    """The owner's schedule that a call made before."""
    query = sa.select(schedules).where(schedules.c.owner == owner, schedules.c.made_by == made_by)
    row = connection.execute(query).mappings().first()
    return None if row is None else _schedule(row)


def get(connection: Connection, owner: str, schedule_id: str) -> Schedule | None:
    """The owner's schedule of that id."""
    query = sa.select(schedules).where(owned(schedules, owner), schedules.c.id == schedule_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _schedule(row)


def listed(
    connection: Connection,
    owner: str,
    *,
    state: ScheduleState | None = None,
    user: str | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int,
) -> list[Schedule]:
    """The owner's schedules, the newest first; of one state or user, or of any."""
    query = sa.select(schedules).where(owned(schedules, owner))
    if state is not None:
        query = query.where(schedules.c.state == state)
    if user is not None:
        query = query.where(schedules.c.user == user)
    if before is not None:
        at, schedule_id = before
        earlier = schedules.c.created_at < at
        query = query.where(earlier | ((schedules.c.created_at == at) & (schedules.c.id < schedule_id)))
    newest_first = query.order_by(schedules.c.created_at.desc(), schedules.c.id.desc()).limit(limit)
    return [_schedule(row) for row in connection.execute(newest_first).mappings()]


def of_speaker(connection: Connection, owner: str, user: str | None, channel: str | None) -> list[Schedule]:
    """What a speaker has made that has not ended, the next first: of one channel, or of all for None.

    Of nobody's, those of the channel that nobody's are.
    """
    own = schedules.c.user.is_(None) if user is None else schedules.c.user == user
    query = sa.select(schedules).where(schedules.c.owner == owner, own, schedules.c.state != "ended")
    if channel is not None:
        query = query.where(schedules.c.channel == channel)
    rows = connection.execute(query.order_by(schedules.c.due_at, schedules.c.created_at))
    return [_schedule(row) for row in rows.mappings()]


def delete(connection: Connection, schedule: Schedule) -> None:
    """Delete a schedule that was read in this transaction."""
    connection.execute(sa.delete(schedules).where(schedules.c.id == schedule.id))


def put(connection: Connection, schedule: Schedule) -> None:
    """Keep what has changed of a schedule that was read in this transaction."""
    connection.execute(_UPDATE, {"key": schedule.id} | _values(schedule))


def due_reminders(connection: Connection, now: datetime, *, limit: int) -> list[Due]:
    """The reminders that are to be looked at by now, the longest due first."""
    return _due(connection.execute(_DUE_REMINDERS, {"now": now, "limit": limit}))


def due_tasks(connection: Connection, now: datetime, *, at_once: int, of_one: int) -> list[Due]:
    """The tasks that are to be looked at by now, as far as there is room.

    ``at_once`` firings may have no answer, and ``of_one`` of them of the same owner and user; those in channels
    where a turn waits for somebody's yes do not count. Whoever has the fewest comes first.
    """
    room = at_once - connection.execute(_UNANSWERED).scalar_one()
    if room <= 0:
        return []
    return _due(connection.execute(_DUE_TASKS, {"now": now, "of_one": of_one, "limit": room}))


def next_try(connection: Connection, now: datetime) -> datetime | None:
    """When something is to be looked at that is not by now."""
    return connection.execute(_NEXT_TRY, {"now": now}).scalar()


def settle(connection: Connection, was: Schedule, now: Schedule) -> None:
    """Keep how a schedule stands after a due time was dealt with. Raises ``Changed`` where another was.

    To be called in the transaction that fires it, so that a due time is fired once whatever crashes.
    """
    is_same = (
        (schedules.c.state == "active")
        & (schedules.c.due_at == sa.bindparam("was_due"))
        & (schedules.c.tries == sa.bindparam("was_tries"))
    )
    keys = {"key": was.id, "was_due": was.due_at, "was_tries": was.tries}
    if connection.execute(_UPDATE.where(is_same), keys | _values(now)).rowcount == 0:
        raise Changed


def count_firing(connection: Connection, schedule: Schedule, at: datetime) -> int:
    """Count a firing on its user's day, in UTC; returns the day's."""
    account, day = _account(schedule), f"{at:%Y-%m-%d}"
    usage.add(connection, [account], [day], Amount(messages=1))
    return usage.total(connection, account, first=day, last=day).messages


def ahead_of(connection: Connection, now: datetime, *, tried_by: datetime) -> list[Schedule]:
    """The active schedules that a clock which was ahead may have left with a time too far in the future.

    These are schedules that were made or dealt with later than now, that are to be tried again later than
    ``tried_by``, or that a rule makes due in more than a day: resuming one computes its due time, too.
    """
    refused = (schedules.c.try_at > schedules.c.due_at) & (schedules.c.try_at > tried_by)
    touched = sa.func.coalesce(schedules.c.dealt_at, schedules.c.created_at)
    far = schedules.c.cron.is_not(None) & (schedules.c.due_at > now + _FAR)
    query = sa.select(schedules).where(_is_active, (touched > now) | refused | far)
    return [_schedule(row) for row in connection.execute(query).mappings()]


def forget_ended(connection: Connection, now: datetime) -> int:
    """Delete what ended long ago; how many those were."""
    old = (schedules.c.state == "ended") & (schedules.c.dealt_at < now - _KEPT)
    return connection.execute(sa.delete(schedules).where(old)).rowcount


def delete_channel(connection: Connection, owner: str, channel: str) -> None:
    """Delete all that speak in the owner's channel."""
    spoken = (schedules.c.owner == owner) & (schedules.c.channel == channel)
    connection.execute(sa.delete(schedules).where(spoken))


def delete_of(connection: Connection, user: str) -> int:
    """Delete all of a user's; how many those were."""
    return connection.execute(sa.delete(schedules).where(held_by(user))).rowcount


def held_by(user: str) -> sa.ColumnElement[bool]:
    """The condition for all schedules that are a user's: made by their own token, or for them."""
    return (schedules.c.user == user) | (schedules.c.owner == owner_of(user))


def _of_user(schedule: Schedule) -> sa.ColumnElement[bool]:
    if schedule.user is not None:
        return schedules.c.user == schedule.user
    return (schedules.c.owner == schedule.owner) & schedules.c.user.is_(None)


def _account(schedule: Schedule) -> str:
    """What firings are counted on: no account of any budget's."""
    return f"schedules:{schedule.owner}" if schedule.user is None else f"schedules:user:{schedule.user}"


def _values(schedule: Schedule) -> dict[str, Any]:
    return {name: getattr(schedule, name) for name in _COLUMNS}


def _due(found: CursorResult[Any]) -> list[Due]:
    return [
        Due(
            schedule=_schedule(row),
            last=row["last_state"],
            last_failure=row["last_failure"],
            held=bool(row["held"]),
        )
        for row in found.mappings()
    ]


def _schedule(row: RowMapping) -> Schedule:
    return Schedule(**{name: row[name] for name in _COLUMNS})


_COLUMNS = tuple(column.name for column in schedules.c if column.name != "made_by")
_UPDATE = sa.update(schedules).where(schedules.c.id == sa.bindparam("key"))
#: In the words of its index: behind a bound parameter SQLite does not see that it fits.
_is_active = schedules.c.state == sa.literal_column("'active'")
_by_age = (schedules.c.try_at, schedules.c.created_at, schedules.c.id)


def _held(table: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a turn waits in the channel of a row."""
    asking = turns.alias("asking")
    here = (asking.c.owner == table.c.owner) & (asking.c.channel == table.c.channel)
    return sa.exists().where(active, asking.c.state == "waiting", here)


_unanswered = (unfinished, turns.c.principal.startswith(SCHEDULE_PRINCIPAL), ~_held(turns))
_UNANSWERED = sa.select(sa.func.count()).select_from(turns).where(*_unanswered)
_busy = (
    sa.select(turns.c.owner, turns.c.user, sa.func.count().label("turns"))
    .where(*_unanswered)
    .group_by(turns.c.owner, turns.c.user)
    .subquery("busy")
)


def _looked_at(kind: ScheduleKind, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return (
        sa.select(
            schedules,
            turns.c.state.label("last_state"),
            turns.c.failure_detail.label("last_failure"),
            _held(schedules).label("held"),
            *more,
        )
        .outerjoin(turns, turns.c.id == schedules.c.turn_id)
        .where(_is_active, schedules.c.try_at <= sa.bindparam("now"), schedules.c.kind == kind)
    )


_DUE_REMINDERS = _looked_at("remind").order_by(*_by_age).limit(sa.bindparam("limit"))
#: Which task of its user's each is, those counted that have no answer yet. By the bare column SQLite would read
#: all schedules in the order of their owners, instead of those that are due.
_nth = sa.func.row_number().over(
    partition_by=[schedules.c.owner.concat(""), schedules.c.user], order_by=_by_age
)
_ours = (_busy.c.owner == schedules.c.owner) & _busy.c.user.is_not_distinct_from(schedules.c.user)
_tasks = (
    _looked_at("task", (_nth + sa.func.coalesce(_busy.c.turns, 0)).label("nth"))
    .outerjoin(_busy, _ours)
    .subquery()
)
_DUE_TASKS = (
    sa.select(_tasks)
    .where(_tasks.c.nth <= sa.bindparam("of_one"))
    .order_by(_tasks.c.nth, _tasks.c.try_at, _tasks.c.created_at, _tasks.c.id)
    .limit(sa.bindparam("limit"))
)
_NEXT_TRY = sa.select(sa.func.min(schedules.c.try_at)).where(
    _is_active, schedules.c.try_at > sa.bindparam("now")
)
