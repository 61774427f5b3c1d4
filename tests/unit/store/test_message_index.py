"""The full-text index of messages: the numbers of turns that have the same time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine

from torana.messages import EVERYONE
from torana.store.engine.tables import sessions, turns
from torana.store.rows.reports import message_index
from torana.store.rows.reports.message_index import Words

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)

#: Each turn is read, its number is found and written, and its words are inserted.
_FOR_EACH = 6


def insert(engine: Engine, times: list[datetime]) -> list[str]:
    """Insert ended turns of one session; return their ids."""
    session = {"id": "s", "owner": "gateway", "channel": "home", "next_seq": 1, "shared": False}
    turn: dict[str, Any] = {
        "owner": "gateway",
        "session_id": "s",
        "channel": "home",
        "principal": "local",
        "content": "zebra",
        "state": "completed",
        "attempt": 1,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_usd": 0.0,
        "ended_at": AT,
    }
    ids = [f"t{number}" for number in range(len(times))]
    rows = [turn | {"id": ids[seq], "seq": seq, "created_at": time} for seq, time in enumerate(times)]
    with engine.begin() as connection:
        connection.execute(sa.insert(sessions), session | {"created_at": AT, "updated_at": AT})
        connection.execute(sa.insert(turns), rows)
    return ids


def index(engine: Engine, ids: list[str]) -> int:
    """Index turns; return the number of statements."""
    statements: list[str] = []

    with engine.begin() as connection:

        @event.listens_for(connection, "before_cursor_execute")
        def note(*arguments: Any) -> None:
            statements.append(arguments[2])

        message_index.add(connection, [Words(turn_id=each, words="zebra") for each in ids])
        event.remove(connection, "before_cursor_execute", note)
    return len(statements)


def found(engine: Engine) -> list[str]:
    with engine.begin() as connection:
        rows = message_index.find(connection, EVERYONE, ["zebra"], session_id=None, before=None, limit=1_000)
    return [row["id"] for row in rows]


def test_turns_with_the_same_time_are_indexed_with_few_statements(engine: Engine) -> None:
    ids = insert(engine, [AT] * 100)
    statements = index(engine, ids)

    assert sorted(found(engine)) == sorted(ids)
    assert statements <= _FOR_EACH * len(ids)


def test_numbers_continue_after_a_full_second(engine: Engine) -> None:
    last = AT + timedelta(microseconds=999_999)
    ids = insert(engine, [AT, last, last + timedelta(microseconds=1), AT])
    index(engine, ids)

    assert found(engine) == [ids[3], ids[2], ids[1], ids[0]]
