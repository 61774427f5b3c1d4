"""The rows that an export of a user reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy.engine import Engine

from torana.messages import Inbound
from torana.store.backup.user_data import UserData
from torana.store.engine.database import Connection
from torana.store.rows import approvals, turns
from torana.store.rows.approvals import Approval
from torana.store.rows.turns import NewTurn

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


def ask(connection: Connection, inbound: Inbound, number: int) -> str:
    """Accept a message whose turn asks for an approval, and return the approval's id."""
    new = NewTurn(turn_id=f"turn_{number}", session_id=f"ses_{number}", channel="home", at=AT)
    turn = turns.accept(connection, inbound, new, hold=False).turn
    asked = Approval(
        id=f"apr_{number}",
        turn_id=turn.id,
        step=0,
        call_id="call",
        owner=turn.owner,
        tool="pay",
        arguments={"to": turn.user},
        said=0,
        created_at=AT,
        expires_at=AT + timedelta(hours=1),
    )
    return approvals.ask(connection, asked).id


def test_user_data_contains_only_the_approvals_of_the_users_own_turns(
    engine: Engine, message: Callable[..., Inbound]
) -> None:
    with engine.begin() as connection:
        ids = {user: ask(connection, message(user=user), n) for n, user in enumerate(("ana", "ben"))}

        found = {user: [row["id"] for row in UserData(connection, user).approvals()] for user in ids}

    assert found == {"ana": [ids["ana"]], "ben": [ids["ben"]]}
