"""Rows of turns that several replicas share: the work of one replica that another one has changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.messages import Turn
from torana.store.engine.dialects import is_abandoned, is_own
from torana.store.engine.tables import active, approvals, turns
from torana.store.rows.turns import claim_all, is_stopped, turn_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes by other replicas that concern this one."""

    #: Turns that this replica waits for and that have ended.
    ended: list[Turn]
    #: Ids of turns that this replica runs and that are to be cancelled.
    stopped: list[str]
    #: Turn, step and call of each decided approval of the turns that this replica runs.
    decided: list[tuple[str, int, str]]
    #: Turns that this replica has set running.
    claimed: list[Turn]
    #: Whether turns of an ended replica are left.
    abandoned: bool


def read_changes(connection: Connection, waited: Collection[str], *, hold: bool) -> Changes:
    """Return the changes; claim the next turn of every idle session unless ``hold`` is true.

    ``waited`` are the ids of the turns that this replica waits for and does not run.
    """
    return Changes(
        ended=[turn_of(row) for row in connection.execute(_ENDED, {"ids": list(waited)}).mappings()]
        if waited
        else [],
        stopped=list(connection.execute(_STOPPED).scalars()),
        decided=[(turn, step, call) for turn, step, call in connection.execute(_DECIDED)],
        claimed=[] if hold else claim_all(connection),
        abandoned=connection.execute(_ABANDONED).scalar_one(),
    )


_ENDED = sa.select(turns).where(
    turns.c.id.in_(sa.bindparam("ids", expanding=True)), turns.c.ended_at.is_not(None)
)
_STOPPED = sa.select(turns.c.id).where(active, is_own(turns.c.replica), is_stopped)
_RUNNING = sa.select(turns.c.id).where(active, is_own(turns.c.replica))
_DECIDED = sa.select(approvals.c.turn_id, approvals.c.step, approvals.c.call_id).where(
    approvals.c.turn_id.in_(_RUNNING), approvals.c.state != "open"
)
_ABANDONED = sa.select(sa.exists().where(active, is_abandoned(turns.c.replica)))
