"""Crashes count against a turn if its attempt had settled nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from torana.messages import Inbound
from torana.store.engine.tables import calls, steps, turns
from torana.store.rows import shared_turns
from torana.store.rows import turns as rows
from torana.store.rows.turns import NewTurn

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
ATTEMPT = 2


@pytest.mark.parametrize("row", ["call", "step"])
@pytest.mark.parametrize(
    ("settled_in", "crashes"), [(1, 1), (ATTEMPT, 0)], ids=["earlier attempt", "this attempt"]
)
def test_only_progress_of_the_crashed_attempt_excuses_a_crash(
    engine: Engine, message: Callable[..., Inbound], row: str, settled_in: int, crashes: int
) -> None:
    with engine.begin() as connection:
        new = NewTurn(turn_id="t1", session_id="ses_1", channel="home", at=AT)
        rows.accept(connection, message(), new, hold=False)
        connection.execute(sa.update(turns).values(attempt=ATTEMPT))
        step = {"turn_id": "t1", "number": 1, "attempt": settled_in if row == "step" else 1, "body": b"[]"}
        connection.execute(sa.insert(steps), step)
        if row == "call":
            call = {"turn_id": "t1", "step": 1, "id": "c1", "attempt": settled_in, "tool": "pay"}
            connection.execute(
                sa.insert(calls), call | {"idempotent": False, "state": "done", "result": b'"paid"'}
            )

        (recovered,) = shared_turns.recover(connection)

        assert (recovered.state, recovered.crashes) == ("queued", crashes)
