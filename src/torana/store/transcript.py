"""What was said in a session: as the model saw it (history), and as people did (turns)."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.store.tables import history, turns


def newest_history(
    connection: Connection, owner: str, session_id: str, *, before: int, turns_limit: int
) -> list[tuple[bytes, int]]:
    """The serialised messages of the newest turns before ``before``, newest first, with their counts."""
    rows = connection.execute(
        _HISTORY, {"owner": owner, "session_id": session_id, "before": before, "limit": turns_limit}
    )
    return [(row.body, row.messages) for row in rows]


def exchanges(
    connection: Connection, owner: str, session_id: str, *, before: int, newest: bool, limit: int
) -> list[RowMapping]:
    """Turns whose seq is below ``before``, with ``content``, ``reply``, ``user`` and ``created_at``.

    The ``limit`` newest or the ``limit`` first of them, in that direction.
    """
    order = turns.c.seq.desc() if newest else turns.c.seq.asc()
    return list(
        connection.execute(
            sa.select(turns.c.content, turns.c.reply, turns.c.user, turns.c.created_at)
            .where(turns.c.owner == owner, turns.c.session_id == session_id, turns.c.seq < before)
            .order_by(order)
            .limit(limit)
        ).mappings()
    )


_HISTORY = (
    sa.select(history.c.body, history.c.messages)
    .where(
        history.c.owner == sa.bindparam("owner"),
        history.c.session_id == sa.bindparam("session_id"),
        history.c.seq < sa.bindparam("before"),
    )
    .order_by(history.c.seq.desc())
    .limit(sa.bindparam("limit"))
)
