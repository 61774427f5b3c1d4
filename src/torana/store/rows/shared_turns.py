"""Rows of turns that other processes have left or changed: an earlier process, or other replicas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.messages import Turn
from torana.store.engine.dialects import IsAbandoned, IsOwn, ThisReplica
from torana.store.engine.postgres.replicas import some_ended
from torana.store.engine.tables import active, approvals, calls, steps, turns, unfinished
from torana.store.rows.extensions import change_counts, mcp_pins
from torana.store.rows.turns import (
    SUSPECT,
    Ending,
    claim_all,
    claim_next,
    end_queued,
    idle_sessions,
    is_isolated_elsewhere,
    turn_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes by other replicas that concern this replica."""

    #: Turns that this replica waits for and that have ended.
    ended: list[Turn]
    #: Ids of turns that this replica waits for and that were deleted.
    deleted: list[str]
    #: Ids of turns that this replica runs and that are to be cancelled.
    stopped: list[str]
    #: Turn, step and call of each approval of the turns that this replica runs, if it is decided or has changed
    #: arguments that are to be checked.
    decided: list[tuple[str, int, str]]
    #: Turns that this replica has set running.
    claimed: list[Turn]
    #: True if turns of an ended replica are left.
    abandoned: bool


class Signs(NamedTuple):
    """Signs of changes by other replicas."""

    #: True if ``read_changes`` may find something.
    changed: bool
    #: Numbers that grow with each change of the accepted MCP tools, and of the decisions on skills.
    tools: int
    skills: int
    #: Ids of turns that this replica waits for and that wait for an approval; None if there are none.
    asking: Sequence[str] | None


class UnfinishedTurn(NamedTuple):
    """The properties of a turn by which the limits of the queue count it."""

    owner: str
    channel: str
    user: str | None
    token: str | None


def list_unfinished(connection: Connection, *, without: str) -> list[UnfinishedTurn]:
    """Return the turns of all replicas that have not ended, except the one with the id ``without``."""
    return [UnfinishedTurn(*row) for row in connection.execute(_UNFINISHED, {"without": without})]


def read_signs(connection: Connection, waited: Collection[str], *, hold: bool) -> Signs:
    """Return the signs of changes, in one statement. The arguments are those of ``read_changes``."""
    changed: list[sa.ColumnElement[bool]] = [sa.exists(one) for one in (_STOPPED, _DECIDED, _LEFT)]
    changed.append(some_ended)
    asking: sa.ColumnElement[Any] = sa.null()
    if waited:
        asking = _ASKING.where(turns.c.id.in_(waited)).scalar_subquery()
        running = sa.select(sa.func.count()).where(turns.c.id.in_(waited), turns.c.ended_at.is_(None))
        changed.append(running.scalar_subquery() < len(waited))
    if not hold:
        changed.append(idle_sessions.exists())
    counts = mcp_pins.number_of_changes, change_counts.number_of("skills")
    query = sa.select(sa.or_(*changed), *counts, asking)
    return Signs(*connection.execute(query).one())


def read_changes(connection: Connection, waited: Collection[str], *, hold: bool) -> Changes:
    """Return the changes; claim the next turn of every idle session unless ``hold`` is true.

    ``waited`` are the ids of the turns that this replica waits for and does not run.
    """
    return Changes(
        ended=[turn_of(row) for row in connection.execute(_ENDED, {"ids": list(waited)}).mappings()]
        if waited
        else [],
        deleted=_list_deleted(connection, waited),
        stopped=list(connection.execute(_STOPPED).scalars()),
        decided=[(turn, step, call) for turn, step, call in connection.execute(_DECIDED)],
        claimed=[] if hold else claim_all(connection),
        abandoned=connection.execute(_ABANDONED).scalar_one(),
    )


def _list_deleted(connection: Connection, waited: Collection[str]) -> list[str]:
    if not waited:
        return []
    found = set(connection.execute(_FOUND, {"ids": list(waited)}).scalars())
    return [turn_id for turn_id in waited if turn_id not in found]


def requeue(connection: Connection) -> None:
    """Queue the running turns of this process again at an orderly stop, without counting a crash.

    Interrupted and cancelled turns stay active; the next process ends them.
    """
    connection.execute(_REQUEUE.where(IsOwn(turns.c.replica), ~_is_stopped).values(replica=None))


def list_interrupted(connection: Connection) -> list[Turn]:
    """Return the turns that a crash left active although they were to be interrupted or cancelled.

    The returned turns have the state ``queued``. Call it before ``recover``, which queues all active turns.
    """
    return [replace(turn_of(row), state="queued") for row in connection.execute(_INTERRUPTED).mappings()]


def list_requesting(connection: Connection, *, own: bool = False) -> list[Turn]:
    """Return the turns that a crash left active with a model request that was sent and is not settled.

    With ``own`` these are the turns of this process.
    """
    whose = IsOwn(turns.c.replica) if own else _is_left
    return [turn_of(row) for row in connection.execute(_REQUESTING.where(whose)).mappings()]


def recover(connection: Connection) -> list[Turn]:
    """Queue the turns that a crash left active, and count the crash for those that settled nothing.

    Suspects belong to this replica from then on: no other replica claims them while it lives. Returns the
    unfinished turns of sessions in which no turn runs, ordered within each session.
    """
    connection.execute(_COUNT_CRASHES)
    connection.execute(_REQUEUE.where(_is_left))
    connection.execute(_TAKE_SUSPECTS)
    return [turn_of(row) for row in connection.execute(_ALL_UNFINISHED).mappings()]


def end_left(connection: Connection, turn: Turn, ending: Ending) -> list[Turn]:
    """End a turn that no process runs; return the ended turns, with those that were merged into it.

    Returns an empty list if another replica has ended the turn or has taken it up since it was read.
    """
    if connection.execute(_IS_LEFT, {"turn_id": turn.id}).first() is None:
        return []
    return end_queued(connection, turn, ending)


def claim_left(connection: Connection, session_id: str) -> Turn | None:
    """Set the next queued turn of a session running; None if none is queued, or another replica runs one."""
    if connection.execute(_ACTIVE_IN, {"session_id": session_id}).first() is not None:
        return None
    return claim_next(connection, session_id)


_other = turns.alias("other")
_is_interrupted = sa.exists().where(
    _other.c.session_id == turns.c.session_id,
    unfinished,
    _other.c.on_busy == "interrupt",
    _other.c.attempt == 0,
    _other.c.seq > turns.c.seq,
    _other.c.user.is_not_distinct_from(turns.c.user),
    _other.c.token.is_not_distinct_from(turns.c.token),
)
#: The running turn is to be interrupted by a message or cancelled by a caller.
_is_stopped = turns.c.cancel_requested | _is_interrupted
_is_left = IsAbandoned(turns.c.replica)
_IS_LEFT = sa.select(turns.c.id).where(
    turns.c.id == sa.bindparam("turn_id"), unfinished, (turns.c.state == "queued") | _is_left
)
_ACTIVE_IN = sa.select(turns.c.id).where(
    turns.c.session_id == sa.bindparam("session_id"), sa.or_(active, is_isolated_elsewhere), unfinished
)
_INTERRUPTED = sa.select(turns).where(active, _is_left, _is_stopped)
_REQUESTING = sa.select(turns).where(active, turns.c.open_requests > 0)
_REQUEUE = sa.update(turns).where(active).values(state="queued")
_is_left_suspect = (turns.c.state == "queued") & (turns.c.crashes >= SUSPECT) & _is_left
_TAKE_SUSPECTS = sa.update(turns).where(unfinished, _is_left_suspect).values(replica=ThisReplica())
_own_call = (calls.c.turn_id == turns.c.id) & (calls.c.attempt == turns.c.attempt)
_cut_off = sa.exists().where(calls.c.turn_id == steps.c.turn_id, calls.c.step == steps.c.number)
#: A crash is counted for a turn that has settled nothing in this attempt: no finished call, and no step without
#: calls. The step of a call that crashed the process is not settled.
_settled = sa.exists().where(_own_call, calls.c.state != "started") | sa.exists().where(
    steps.c.turn_id == turns.c.id, steps.c.attempt == turns.c.attempt, ~_cut_off
)
#: A turn that only waited for approval is not counted.
_idle = (turns.c.state == "waiting") & ~sa.exists().where(_own_call, calls.c.state == "started")
_COUNT_CRASHES = sa.update(turns).where(active, _is_left, ~_settled, ~_idle).values(crashes=turns.c.crashes + 1)
_active_in_session = sa.exists().where(_other.c.session_id == turns.c.session_id, active)
_UNFINISHED = sa.select(turns.c.owner, turns.c.channel, turns.c.user, turns.c.token).where(
    unfinished, turns.c.id != sa.bindparam("without")
)
#: Turns behind a turn of another replica start in that replica.
_ALL_UNFINISHED = (
    sa.select(turns).where(unfinished, ~_active_in_session).order_by(turns.c.session_id, turns.c.seq)
)
_is_waited = turns.c.id.in_(sa.bindparam("ids", expanding=True))
_ENDED = sa.select(turns).where(_is_waited, turns.c.ended_at.is_not(None))
_FOUND = sa.select(turns.c.id).where(_is_waited)
_ASKING = sa.select(sa.func.array_agg(turns.c.id)).where(turns.c.state == "waiting")
_STOPPED = sa.select(turns.c.id).where(active, IsOwn(turns.c.replica), _is_stopped)
_RUNNING = sa.select(turns.c.id).where(active, IsOwn(turns.c.replica))
_DECIDED = sa.select(approvals.c.turn_id, approvals.c.step, approvals.c.call_id).where(
    approvals.c.turn_id.in_(_RUNNING),
    (approvals.c.state != "open") | (approvals.c.proposed.is_not(None) & approvals.c.checked.is_(None)),
)
_LEFT = sa.select(turns.c.id).where(unfinished, sa.or_(sa.and_(active, _is_left), _is_left_suspect))
_ABANDONED = sa.select(sa.exists(_LEFT))
