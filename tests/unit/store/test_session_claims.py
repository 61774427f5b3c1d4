"""The next turn of each idle session, and sessions whose turn waits for approval."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from torana.messages import Inbound, Turn
from torana.store.engine.tables import turns
from torana.store.rows import turns as rows
from torana.store.rows.turns import NewTurn

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


@pytest.fixture
def queue(message: Callable[..., Inbound]) -> Callable[..., Turn]:
    def accept(connection: Connection, turn_id: str, channel: str) -> Turn:
        new = NewTurn(turn_id=turn_id, session_id=f"ses_{channel}", channel=channel, at=AT)
        return rows.accept(connection, message(channel=channel), new, hold=True).turn

    return accept


def states(connection: Connection) -> dict[str, str]:
    return {row.id: row.state for row in connection.execute(sa.select(turns.c.id, turns.c.state))}


@pytest.mark.parametrize("active", ["running", "waiting"])
def test_a_session_with_an_active_turn_is_not_claimed(
    engine: Engine, queue: Callable[..., Turn], active: str
) -> None:
    with engine.begin() as connection:
        for turn_id, channel in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
            queue(connection, turn_id, channel)
        connection.execute(sa.update(turns).where(turns.c.id == "a1").values(state=active))

        claimed = rows.claim_all(connection)

        assert [turn.id for turn in claimed] == ["b1"]
        assert states(connection) == {"a1": active, "a2": "queued", "b1": "running", "b2": "queued"}
