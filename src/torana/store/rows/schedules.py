"""Rows of schedules: messages and tasks that run at a time.

::

    active <-> paused     active -> ended

The owner may be ``EVERYONE`` for reads. Ended schedules are listed for 30 days.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult, RowMapping

from torana.messages import SCHEDULE_PRINCIPAL, MissedPolicy, ScheduleState, TurnState, owner_of
from torana.store.engine.tables import active, equal_to, newest_first, owned_by, schedules, turns, unfinished
from torana.store.rows import usage
from torana.store.rows.usage import Amount

ScheduleKind = Literal["remind", "task"]

#: After the clock was set back, a due time of a cron expression is computed again if it is further ahead than
#: this.
_RECOMPUTED_AHEAD = timedelta(days=1)

#: Ended schedules are stored for this long.
_KEPT = timedelta(days=30)


class ScheduleChanged(Exception):
    """The schedule has changed since it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule; see ``tables.schedules``."""

    id: str
    owner: str
    user: str | None
    channel: str
    kind: ScheduleKind
    text: str
    #: None for a schedule that runs once.
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
    #: Number of consecutive refusals of the due run, and of consecutive failed turns.
    tries: int = 0
    failures: int = 0
    #: The reason it was paused or its last time was missed.
    reason: str | None = None
    dealt_with: datetime | None = None
    dealt_at: datetime | None = None
    turn_id: str | None = None

    @property
    def principal(self) -> str:
        """Return the principal of its turns."""
        return f"{SCHEDULE_PRINCIPAL}{self.id}"

    @property
    def run_at(self) -> datetime:
        """Return the next due time of an active schedule."""
        if self.due_at is None:
            raise ValueError(f"the schedule {self.id} is not active")
        return self.due_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A due schedule, and the result of its last turn."""

    schedule: Schedule
    last: TurnState | None
    last_failure: str | None
    #: True if a turn of its channel waits for approval.
    held: bool


def add(connection: Connection, schedule: Schedule, *, made_by: bytes | None = None, most: int) -> bool:
    """Store a new schedule; return False if its user has ``most`` schedules that have not ended.

    The schedules of an owner that have no user are counted together, with the same limit.
    """
    lives = schedules.c.state != "ended"
    count = sa.select(sa.func.count()).select_from(schedules).where(lives, _of_user(schedule))
    if connection.execute(count).scalar_one() >= most:
        return False
    connection.execute(sa.insert(schedules), _values(schedule) | {"made_by": made_by})
    return True


def find_by_call(connection: Connection, owner: str, made_by: bytes) -> Schedule | None:
    """Return the owner's schedule that a tool call created, or None."""
    query = sa.select(schedules).where(schedules.c.owner == owner, schedules.c.made_by == made_by)
    row = connection.execute(query).mappings().first()
    return None if row is None else _schedule(row)


def get(connection: Connection, owner: str, schedule_id: str) -> Schedule | None:
    """Return the owner's schedule, or None."""
    query = sa.select(schedules).where(owned_by(schedules, owner), schedules.c.id == schedule_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _schedule(row)


def list_schedules(
    connection: Connection,
    owner: str,
    *,
    state: ScheduleState | None = None,
    user: str | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int,
) -> list[Schedule]:
    """Return the owner's schedules, newest first, optionally of one state or user."""
    wanted = equal_to({schedules.c.state: state, schedules.c.user: user})
    query = sa.select(schedules).where(owned_by(schedules, owner), *wanted)
    page = newest_first(query, schedules.c.created_at, before=before, limit=limit)
    return [_schedule(row) for row in connection.execute(page).mappings()]


def of_speaker(connection: Connection, owner: str, user: str | None, channel: str | None) -> list[Schedule]:
    """Return a user's schedules that have not ended, next first, optionally of one channel.

    If ``user`` is None, returns the schedules without a user.
    """
    own = schedules.c.user.is_(None) if user is None else schedules.c.user == user
    wanted = (own, schedules.c.state != "ended", *equal_to({schedules.c.channel: channel}))
    query = sa.select(schedules).where(schedules.c.owner == owner, *wanted)
    rows = connection.execute(query.order_by(schedules.c.due_at, schedules.c.created_at))
    return [_schedule(row) for row in rows.mappings()]


def delete(connection: Connection, schedule: Schedule) -> None:
    connection.execute(sa.delete(schedules).where(schedules.c.id == schedule.id))


def put(connection: Connection, schedule: Schedule) -> None:
    """Store the changes of a schedule that was read in this transaction."""
    connection.execute(_UPDATE, {"key": schedule.id} | _values(schedule))


def due_reminders(connection: Connection, now: datetime, *, limit: int) -> list[Due]:
    """Return the due reminders, longest due first."""
    return _due(connection.execute(_DUE_REMINDERS, {"now": now, "limit": limit}))


def due_tasks(connection: Connection, now: datetime, *, at_once: int, per_user: int) -> list[Due]:
    """Return the due tasks, within limits on unanswered turns of schedules.

    ``at_once`` limits all such turns, and ``per_user`` those of an owner and user. Turns in channels where
    a turn waits for approval do not count. The tasks of the user with the fewest such turns come first.
    """
    room = at_once - connection.execute(_UNANSWERED).scalar_one()
    if room <= 0:
        return []
    return _due(connection.execute(_DUE_TASKS, {"now": now, "per_user": per_user, "limit": room}))


def next_try(connection: Connection, now: datetime) -> datetime | None:
    """Return the next time at which a schedule that is not due yet is to be tried."""
    return connection.execute(_NEXT_TRY, {"now": now}).scalar()


def settle(connection: Connection, was: Schedule, now: Schedule) -> None:
    """Store a schedule after a due time was handled. Raises ``ScheduleChanged`` if the row has changed.

    Call it in the transaction that fires the schedule, so that a due time is fired once despite crashes.
    """
    is_same = (
        (schedules.c.state == "active")
        & (schedules.c.due_at == sa.bindparam("was_due"))
        & (schedules.c.tries == sa.bindparam("was_tries"))
    )
    keys = {"key": was.id, "was_due": was.due_at, "was_tries": was.tries}
    if connection.execute(_UPDATE.where(is_same), keys | _values(now)).rowcount == 0:
        raise ScheduleChanged


def count_firing(connection: Connection, schedule: Schedule, at: datetime) -> int:
    """Count a run of the schedule's user, and return the number of the user's runs on that day in UTC."""
    account, day = _account(schedule), f"{at:%Y-%m-%d}"
    usage.add(connection, [account], [day], Amount(messages=1))
    return usage.total(connection, account, first=day, last=day).messages


def ahead_of(connection: Connection, now: datetime, *, tried_by: datetime) -> list[Schedule]:
    """Return the active schedules whose next time may be too late because the clock was ahead.

    These schedules were created or handled later than ``now``, have a retry later than ``tried_by``, or have a
    cron expression and are due in more than a day. A paused schedule is not returned: resuming it computes its
    due time.
    """
    refused = (schedules.c.try_at > schedules.c.due_at) & (schedules.c.try_at > tried_by)
    touched = sa.func.coalesce(schedules.c.dealt_at, schedules.c.created_at)
    far = schedules.c.cron.is_not(None) & (schedules.c.due_at > now + _RECOMPUTED_AHEAD)
    query = sa.select(schedules).where(_is_active, (touched > now) | refused | far)
    return [_schedule(row) for row in connection.execute(query).mappings()]


def forget_ended(connection: Connection, now: datetime) -> int:
    """Delete schedules that ended long ago; return their number."""
    old = (schedules.c.state == "ended") & (schedules.c.dealt_at < now - _KEPT)
    return connection.execute(sa.delete(schedules).where(old)).rowcount


def pause_in_chats(connection: Connection, user: str, *, reason: str) -> None:
    """Pause the active schedules of a user that answer in chats."""
    in_chats = _is_active & (schedules.c.user == user) & schedules.c.account.is_not(None)
    paused = {"state": "paused", "try_at": None, "tries": 0, "reason": reason}
    connection.execute(sa.update(schedules).where(in_chats).values(paused))


def delete_channel(connection: Connection, owner: str, channel: str) -> None:
    """Delete all schedules of the owner's channel."""
    spoken = (schedules.c.owner == owner) & (schedules.c.channel == channel)
    connection.execute(sa.delete(schedules).where(spoken))


def delete_of(connection: Connection, user: str) -> int:
    """Delete all schedules of a user; return their number."""
    return connection.execute(sa.delete(schedules).where(held_by(user))).rowcount


def held_by(user: str) -> sa.ColumnElement[bool]:
    """Return the condition for a user's schedules: created with the user's token, or for the user."""
    return (schedules.c.user == user) | (schedules.c.owner == owner_of(user))


def _of_user(schedule: Schedule) -> sa.ColumnElement[bool]:
    if schedule.user is not None:
        return schedules.c.user == schedule.user
    return (schedules.c.owner == schedule.owner) & schedules.c.user.is_(None)


def _account(schedule: Schedule) -> str:
    """Return the key under which the table of usage counts runs. No budget includes it."""
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
#: A literal as in the index: with a bound parameter SQLite does not use the index.
_is_active = schedules.c.state == sa.literal_column("'active'")
_by_age = (schedules.c.try_at, schedules.c.created_at, schedules.c.id)


def _has_waiting_turn(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a turn in the row's channel waits for approval."""
    asking = turns.alias("asking")
    here = (asking.c.owner == table.c.owner) & (asking.c.channel == table.c.channel)
    return sa.exists().where(active, asking.c.state == "waiting", here)


_unanswered = (unfinished, turns.c.principal.startswith(SCHEDULE_PRINCIPAL), ~_has_waiting_turn(turns))
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
            _has_waiting_turn(schedules).label("held"),
            *more,
        )
        .outerjoin(turns, turns.c.id == schedules.c.turn_id)
        .where(_is_active, schedules.c.try_at <= sa.bindparam("now"), schedules.c.kind == kind)
    )


_DUE_REMINDERS = _looked_at("remind").order_by(*_by_age).limit(sa.bindparam("limit"))
#: The position of each task among the due tasks of its user, after the user's unanswered turns. The
#: concatenation keeps SQLite from using an index by owner, with which it would read all schedules and not only
#: due ones.
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
    .where(_tasks.c.nth <= sa.bindparam("per_user"))
    .order_by(_tasks.c.nth, _tasks.c.try_at, _tasks.c.created_at, _tasks.c.id)
    .limit(sa.bindparam("limit"))
)
_NEXT_TRY = sa.select(sa.func.min(schedules.c.try_at)).where(
    _is_active, schedules.c.try_at > sa.bindparam("now")
)
