"""Times that a clock which was ahead has written: they lie in the future once the clock is right.

A row that lasts for a period (a token, a pairing code, an idempotency key) would otherwise last for as long as
the clock was ahead. Records of what happened, such as turns and the audit log, keep their times.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.deliveries import FRESH
from torana.store.tables import deliveries, keys, senders, sessions, tokens, undelivered


def pull_back(connection: Connection, now: datetime) -> dict[str, int]:
    """Let periods that begin in the future begin now, and return the number of changed rows by table.

    Tables without a change are left out.
    """
    changed = {
        "tokens": _pull_back_tokens(connection, now),
        "keys": _set(connection, keys, {"created_at": now}, keys.c.created_at > now),
        "senders": _set(connection, senders, {"asked_at": now}, senders.c.asked_at > now),
        "deliveries": _pull_back_deliveries(connection, now),
        "sessions": _set(connection, sessions, {"updated_at": now}, sessions.c.updated_at > now),
    }
    return {table: count for table, count in changed.items() if count}


def _pull_back_tokens(connection: Connection, now: datetime) -> int:
    """Give each token its lifetime from now on, and end the token that it replaces after the same overlap."""
    query = sa.select(tokens).where(tokens.c.created_at > now).order_by(tokens.c.created_at)
    found = connection.execute(query).mappings().all()
    for token in found:
        ahead = token["created_at"] - now
        _bring_end_forward(connection, tokens.c.id == token["id"], ahead)
        _set(connection, tokens, {"created_at": now}, tokens.c.id == token["id"])
        ends_later = tokens.c.expires_at >= token["created_at"]
        _bring_end_forward(connection, (tokens.c.id == token["replaces"]) & ends_later, ahead)
    return len(found)


def _bring_end_forward(connection: Connection, which: sa.ColumnElement[bool], by: timedelta) -> None:
    expires_at = connection.execute(sa.select(tokens.c.expires_at).where(which)).scalar()
    if expires_at is not None:
        _set(connection, tokens, {"expires_at": expires_at - by}, which)


def _pull_back_deliveries(connection: Connection, now: datetime) -> int:
    """A delivery that waits longer than any delivery may is tried again at once."""
    waits = undelivered & (deliveries.c.state == "pending")
    late = _set(connection, deliveries, {"due_at": now}, waits & (deliveries.c.due_at > now + FRESH))
    return late + _set(connection, deliveries, {"created_at": now}, waits & (deliveries.c.created_at > now))


def _set(connection: Connection, table: sa.Table, values: dict[str, Any], which: sa.ColumnElement[bool]) -> int:
    return connection.execute(sa.update(table).where(which).values(values)).rowcount
