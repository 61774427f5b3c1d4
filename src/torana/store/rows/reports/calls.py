"""The records of a turn's tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import Turn
from torana.store.engine.tables import history, sessions
from torana.store.rows import approvals, journal
from torana.store.rows.approvals import Approval
from torana.store.rows.reports import timings
from torana.store.rows.reports.timings import StepTime, Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecords:
    """All that is stored of a turn's calls.

    ``bodies`` are the serialised messages: the history of an ended turn, or the settled steps of another one.
    ``journaled`` are the rows of its journal, ``shared`` is true if several users have sent messages in its
    session.
    """

    shared: bool
    bodies: Sequence[bytes]
    journaled: Sequence[RowMapping]
    times: Sequence[StepTime]
    approvals: Sequence[Approval]


def of_turn(connection: Connection, turn: Turn, live: Sequence[Timing]) -> CallRecords:
    """Return the records; ``live`` are newer times of the running attempt."""
    key = {"turn_id": turn.id}
    steps, journaled = journal.load(connection, turn.id)
    ended = connection.execute(_HISTORY, key).scalars().all()
    return CallRecords(
        shared=bool(connection.execute(_SHARED, {"session_id": turn.session_id}).scalar()),
        bodies=ended or [row["body"] for row in steps],
        journaled=journaled,
        times=[step for step in timings.of_turn(connection, turn.id, live) if step.kind == "tool"],
        approvals=approvals.of_turn(connection, turn.id),
    )


_HISTORY = sa.select(history.c.body).where(history.c.turn_id == sa.bindparam("turn_id"))
_SHARED = sa.select(sessions.c.shared).where(sessions.c.id == sa.bindparam("session_id"))
