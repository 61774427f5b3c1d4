"""Rows of message files. They are stored until their turn has completed or was cancelled.

A failed turn can be retried, so the files of each user's newest failed turns stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.messages import File, Turn, new_id
from torana.store.engine.tables import attachments, owned_by, turns

#: Failed turns of a user whose files stay: the files of a turn may have six megabytes.
_FAILED = 10


def add(connection: Connection, turn: Turn, files: Sequence[File]) -> None:
    """Store the files of a turn's message in order; called in the accepting transaction.

    Deletes the files of the user's older failed turns.
    """
    connection.execute(_DROP_OLD, {"owner": turn.owner, "user": turn.user})
    rows = [
        {"id": new_id("file"), "turn_id": turn.id, "owner": turn.owner, "number": number, **asdict(file)}
        for number, file in enumerate(files)
    ]
    connection.execute(_INSERT, rows)


def of_turn(connection: Connection, owner: str, turn_id: str) -> list[File]:
    """Return the files of the message of the owner's turn, in order."""
    of_owner = _OF_TURN.where(owned_by(attachments, owner))
    return [
        File(name=row.name, media_type=row.media_type, body=row.body)
        for row in connection.execute(of_owner, {"turn_id": turn_id})
    ]


def sizes(connection: Connection, turn_id: str) -> list[tuple[str, int]]:
    """Return the media type and size in bytes of each of a turn's files, without reading the files."""
    return [(row.media_type, row.bytes) for row in connection.execute(_SIZES, {"turn_id": turn_id})]


def clear(connection: Connection, turn_id: str) -> None:
    """Delete a turn's files."""
    connection.execute(_CLEAR, {"turn_id": turn_id})


_INSERT = sa.insert(attachments)
_OLD_FAILED = (
    sa.select(turns.c.id)
    .where(
        turns.c.id.in_(sa.select(attachments.c.turn_id)),
        turns.c.owner == sa.bindparam("owner"),
        turns.c.user.is_not_distinct_from(sa.bindparam("user")),
        turns.c.state == "failed",
    )
    .order_by(turns.c.created_at.desc(), turns.c.id.desc())
    .offset(_FAILED)
)
_DROP_OLD = sa.delete(attachments).where(attachments.c.turn_id.in_(_OLD_FAILED))
_OF_TURN = (
    sa.select(attachments)
    .where(attachments.c.turn_id == sa.bindparam("turn_id"))
    .order_by(attachments.c.number)
)
_SIZES = sa.select(attachments.c.media_type, sa.func.length(attachments.c.body).label("bytes")).where(
    attachments.c.turn_id == sa.bindparam("turn_id")
)
_CLEAR = sa.delete(attachments).where(attachments.c.turn_id == sa.bindparam("turn_id"))
