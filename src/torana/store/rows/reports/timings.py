"""Rows of the times of turns: queueing, model requests and tool calls, by attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.dialects import insert, unread
from torana.store.engine.tables import approvals, deliveries, timings

TimingKind = Literal["queue", "model", "tool"]
TimingState = Literal["running", "completed", "failed", "interrupted"]

#: Maximum number of rows of each table that ``of_turn`` reads.
_READ_LIMIT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time of one action of a turn's attempt; money in micro-dollars."""

    turn_id: str
    attempt: int
    number: int
    kind: TimingKind
    started_at: datetime
    state: TimingState = "running"
    ended_at: datetime | None = None
    step: int | None = None
    #: The name of the model or of the tool, and the id of the call.
    name: str | None = None
    call_id: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    microusd: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step of a turn: an action with its time, an approval or a delivery.

    ``reference`` is the id of the approval or the delivery. ``by`` is the principal that decided an approval,
    or the account of a delivery. ``tries`` counts the attempts of a delivery.
    """

    kind: Literal["queue", "model", "tool", "approval", "delivery"]
    state: str
    started_at: datetime
    ended_at: datetime | None
    attempt: int | None = None
    step: int | None = None
    name: str | None = None
    call_id: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    microusd: int | None = None
    reference: str | None = None
    by: str | None = None
    reason: str | None = None
    tries: int | None = None


def store(connection: Connection, times: Sequence[Timing]) -> None:
    """Insert the times, or replace the rows of the same attempt and number."""
    if times:
        connection.execute(_STORE, [_values(one) for one in times])


def of_turn(connection: Connection, turn_id: str, live: Sequence[Timing]) -> list[StepTime]:
    """Return the steps of a turn, ordered by start. ``live`` times replace the rows of the running attempt."""
    rows = connection.execute(_TIMES, {"turn_id": turn_id}).mappings()
    known = {(row["attempt"], row["number"]): Timing(**row) for row in rows}
    known |= {(one.attempt, one.number): one for one in live}
    steps = [_step_of(one) for one in known.values()]
    steps += [StepTime(**row) for row in connection.execute(_APPROVALS, {"turn_id": turn_id}).mappings()]
    steps += [StepTime(**row) for row in connection.execute(_DELIVERIES, {"turn_id": turn_id}).mappings()]
    return sorted(steps, key=lambda step: step.started_at)


def _step_of(one: Timing) -> StepTime:
    values = _values(one)
    del values["turn_id"], values["number"]
    return StepTime(**values)


def _values(one: Timing) -> dict[str, Any]:
    # dataclasses.asdict copies each value, which takes far longer.
    return {name: getattr(one, name) for name in _COLUMNS}


def _upsert() -> sa.Insert:
    new = insert(timings)
    updated = ("state", "ended_at", "name", "input_tokens", "output_tokens", "microusd")
    return new.on_conflict_do_update(
        index_elements=["turn_id", "attempt", "number"], set_={name: new.excluded[name] for name in updated}
    )


_COLUMNS = [field.name for field in fields(Timing)]
_STORE = unread(_upsert())
_TIMES = (
    sa.select(timings)
    .where(timings.c.turn_id == sa.bindparam("turn_id"))
    .order_by(timings.c.attempt.desc(), timings.c.number.desc())
    .limit(_READ_LIMIT)
)
_APPROVALS = (
    sa.select(
        sa.literal("approval").label("kind"),
        approvals.c.state,
        approvals.c.created_at.label("started_at"),
        approvals.c.decided_at.label("ended_at"),
        approvals.c.step,
        approvals.c.tool.label("name"),
        approvals.c.call_id,
        approvals.c.id.label("reference"),
        approvals.c.decided_by.label("by"),
        approvals.c.reason,
    )
    .where(approvals.c.turn_id == sa.bindparam("turn_id"))
    .order_by(approvals.c.created_at.desc())
    .limit(_READ_LIMIT)
)
_DELIVERIES = (
    sa.select(
        sa.literal("delivery").label("kind"),
        deliveries.c.state,
        deliveries.c.created_at.label("started_at"),
        deliveries.c.ended_at,
        deliveries.c.id.label("reference"),
        deliveries.c.account.label("by"),
        deliveries.c.reason,
        deliveries.c.tries,
    )
    .where(deliveries.c.turn_id == sa.bindparam("turn_id"))
    .order_by(deliveries.c.number.desc())
    .limit(_READ_LIMIT)
)
