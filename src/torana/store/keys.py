"""Rows of idempotency keys: which turn a caller's name for a message stands for. Kept for a day."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.errors import Erased, KeyReused
from torana.messages import Inbound, Turn
from torana.store import turns as rows
from torana.store.tables import keys
from torana.store.turns import Accepted, NewTurn

KEPT = timedelta(days=1)


def accept(connection: Connection, inbound: Inbound, new: NewTurn, *, hold: bool) -> Accepted:
    """Write a message down (``turns.accept``), unless it is known (``find``): then it is that turn."""
    known = find(connection, inbound, new.at)
    if known is not None:
        return Accepted(turn=known)
    accepted = rows.accept(connection, inbound, new, hold=hold)
    if inbound.key is not None:
        _keep(connection, inbound, accepted.turn)
    return accepted


def answer_at_once(connection: Connection, inbound: Inbound, new: NewTurn, text: str) -> Turn:
    """Write a message down with its answer (``turns.answer_at_once``), unless it is known (``find``)."""
    known = find(connection, inbound, new.at)
    if known is not None:
        return known
    turn = rows.answer_at_once(connection, inbound, new, text)
    if inbound.key is not None:
        _keep(connection, inbound, turn)
    return turn


def find(connection: Connection, inbound: Inbound, now: datetime) -> Turn | None:
    """The turn that the message's key stands for, or that a connector made of it before.

    Raises ``KeyReused`` where it stands for another message, and ``Erased`` where its turn was erased.
    """
    if inbound.account is not None and inbound.message is not None:
        return rows.heard(connection, inbound.account, inbound.message)
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
        raise Erased("What was sent with this Idempotency-Key was erased; use a new key for each message.")
    if row.fingerprint != _fingerprint(inbound):
        raise KeyReused
    return turn


def _keep(connection: Connection, inbound: Inbound, turn: Turn) -> None:
    """Let the message's key stand for the turn; keys past their day go."""
    connection.execute(sa.delete(keys).where(keys.c.created_at <= turn.created_at - KEPT))
    connection.execute(
        sa.insert(keys),
        {
            "owner": inbound.owner,
            "key": _digest(inbound),
            "fingerprint": _fingerprint(inbound),
            "turn_id": turn.id,
            "created_at": turn.created_at,
        },
    )


def _digest(inbound: Inbound) -> bytes:
    """The caller's name for the message, which may say as much as the message itself."""
    return hashlib.sha256((inbound.key or "").encode()).digest()


def _fingerprint(inbound: Inbound) -> bytes:
    """What makes two messages the same one: the parsed fields, not the bytes they came in."""
    said = [inbound.content, inbound.channel, inbound.user, inbound.on_busy]
    return hashlib.sha256(json.dumps(said).encode()).digest()
