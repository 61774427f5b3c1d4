"""Rows of idempotency keys, stored for a day."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.errors import Erased, KeyReused
from torana.messages import Inbound, Turn
from torana.store.engine.dialects import unread
from torana.store.engine.tables import keys
from torana.store.rows import turns as rows
from torana.store.rows.turns import Accepted, NewTurn

KEPT = timedelta(days=1)


def accept(connection: Connection, inbound: Inbound, new: NewTurn, *, hold: bool) -> Accepted:
    """Store a message as a turn (``turns.accept``), or return the turn of an earlier one (``find``)."""
    known = find(connection, inbound, new.at)
    if known is not None:
        return Accepted(turn=known)
    accepted = rows.accept(connection, inbound, new, hold=hold)
    if inbound.key is not None:
        _keep(connection, inbound, accepted.turn)
    return accepted


def answer_at_once(connection: Connection, inbound: Inbound, new: NewTurn, text: str) -> Turn:
    """Store a message with its reply (``turns.answer_at_once``), or return the earlier turn (``find``)."""
    known = find(connection, inbound, new.at)
    if known is not None:
        return known
    turn = rows.answer_at_once(connection, inbound, new, text)
    if inbound.key is not None:
        _keep(connection, inbound, turn)
    return turn


def find(connection: Connection, inbound: Inbound, now: datetime) -> Turn | None:
    """Return the turn that the message's key or platform message id already has, or None.

    Raises ``KeyReused`` if the key was used with another message, and ``Erased`` if its turn was erased.
    """
    if inbound.account is not None and inbound.message is not None:
        return rows.find_by_platform_message(connection, inbound.account, inbound.message)
    if inbound.key is None:
        return None
    row = connection.execute(
        sa.select(keys.c.fingerprint, keys.c.turn_id).where(
            keys.c.owner == inbound.owner, keys.c.key == _digest(inbound), keys.c.created_at > now - KEPT
        )
    ).first()
    if row is None:
        return None
    turn = rows.get(connection, inbound.owner, row.turn_id)
    if turn is None:
        raise Erased("The message with this Idempotency-Key was erased. Use a new key for each message.")
    if row.fingerprint != _fingerprint(inbound):
        raise KeyReused
    return turn


def _keep(connection: Connection, inbound: Inbound, turn: Turn) -> None:
    """Store the message's key for the turn, and delete expired keys."""
    connection.execute(_EXPIRE, {"before": turn.created_at - KEPT})
    connection.execute(
        _INSERT,
        {
            "owner": inbound.owner,
            "key": _digest(inbound),
            "fingerprint": _fingerprint(inbound),
            "turn_id": turn.id,
            "created_at": turn.created_at,
        },
    )


def _digest(inbound: Inbound) -> bytes:
    """Return the digest that is stored instead of the key, which may contain private text."""
    return hashlib.sha256((inbound.key or "").encode()).digest()


def _fingerprint(inbound: Inbound) -> bytes:
    """Return the digest of the parsed fields that make two messages equal."""
    content = [inbound.content, inbound.channel, inbound.user, inbound.on_busy]
    content += [hashlib.sha256(file.body).hexdigest() for file in inbound.files]
    return hashlib.sha256(json.dumps(content).encode()).digest()


_EXPIRE = unread(sa.delete(keys).where(keys.c.created_at <= sa.bindparam("before")))
_INSERT = unread(sa.insert(keys))
