"""Rows of the journal; deleted when the turn ends, unless it failed."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.store.engine.dialects import unread
from torana.store.engine.tables import calls, steps


def load(connection: Connection, turn_id: str) -> tuple[list[RowMapping], list[RowMapping]]:
    """Return the settled steps of a turn, in order, and its calls."""
    found = connection.execute(_STEPS, {"turn_id": turn_id}).mappings().all()
    called = connection.execute(_CALLS, {"turn_id": turn_id}).mappings().all()
    return list(found), list(called)


def texts(connection: Connection, turn_id: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return the text of each settled step of a turn, in order, or its ``body`` if the text is not stored."""
    return [(row.text, row.body) for row in connection.execute(_TEXTS, {"turn_id": turn_id})]


def size(connection: Connection, turn_id: str) -> int:
    """Return the number of bytes of a turn's settled steps and results, without reading them."""
    return sum(connection.execute(query, {"turn_id": turn_id}).scalar_one() for query in _SIZES)


def settle(connection: Connection, step: dict[str, Any]) -> None:
    """Store a step: ``turn_id``, ``number``, ``attempt``, the serialised ``body`` and the ``text``."""
    connection.execute(_SETTLE, step)


def start(connection: Connection, call: dict[str, Any], step: dict[str, Any] | None) -> None:
    """Store that a call starts, with its step. The row replaces that of an interrupted attempt."""
    if step is not None:
        connection.execute(_SETTLE, step)
    connection.execute(_FORGET, _key(call))
    connection.execute(_START, call)


def finish(connection: Connection, call: dict[str, Any]) -> None:
    """Store the state and the result of a started call."""
    connection.execute(_FINISH, _key(call) | {"state": call["state"], "result": call["result"]})


def clear(connection: Connection, turn_id: str) -> None:
    """Delete a turn's journal."""
    connection.execute(_CLEAR_CALLS, {"key": turn_id})
    connection.execute(_CLEAR_STEPS, {"key": turn_id})


def _key(call: dict[str, Any]) -> dict[str, Any]:
    return {"key": call["turn_id"], "at": call["step"], "call": call["id"]}


_STEPS = sa.select(steps).where(steps.c.turn_id == sa.bindparam("turn_id")).order_by(steps.c.number)
_TEXTS = (
    sa.select(steps.c.text, sa.case((steps.c.text.is_(None), steps.c.body)).label("body"))
    .where(steps.c.turn_id == sa.bindparam("turn_id"))
    .order_by(steps.c.number)
)
_CALLS = sa.select(calls).where(calls.c.turn_id == sa.bindparam("turn_id"))
_SIZES = [
    sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(column)), 0)).where(
        column.table.c.turn_id == sa.bindparam("turn_id")
    )
    for column in (steps.c.body, calls.c.result)
]
_SETTLE = unread(sa.insert(steps))
_START = unread(sa.insert(calls))
_ONE_CALL = (
    (calls.c.turn_id == sa.bindparam("key"))
    & (calls.c.step == sa.bindparam("at"))
    & (calls.c.id == sa.bindparam("call"))
)
_FORGET = unread(sa.delete(calls).where(_ONE_CALL))
_FINISH = unread(sa.update(calls).where(_ONE_CALL))
_CLEAR_CALLS = unread(sa.delete(calls).where(calls.c.turn_id == sa.bindparam("key")))
_CLEAR_STEPS = unread(sa.delete(steps).where(steps.c.turn_id == sa.bindparam("key")))
