"""Rows of the files that came with messages. They are kept until their turn has completed or was cancelled."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.messages import File, Turn, new_id
from torana.store.tables import attachments, owned


def add(connection: Connection, turn: Turn, files: Sequence[File]) -> None:
    """Keep what came with a turn's message, in its order; called in the transaction that writes it down."""
    rows = [
        {
            "id": new_id("file"),
            "turn_id": turn.id,
            "owner": turn.owner,
            "number": number,
            "name": file.name,
            "media_type": file.media_type,
            "body": file.body,
        }
        for number, file in enumerate(files)
    ]
    connection.execute(_INSERT, rows)


def of_turn(connection: Connection, owner: str, turn_id: str) -> list[File]:
    """What came with the message of the owner's turn, in its order."""
    of_owner = _OF_TURN.where(owned(attachments, owner))
    return [
        File(name=row.name, media_type=row.media_type, body=row.body)
        for row in connection.execute(of_owner, {"turn_id": turn_id})
    ]


def sizes(connection: Connection, turn_id: str) -> list[tuple[str, int]]:
    """The media type and the size in bytes of each of a turn's files; they are not read for it."""
    return [(row.media_type, row.bytes) for row in connection.execute(_SIZES, {"turn_id": turn_id})]


def clear(connection: Connection, turn_id: str) -> None:
    """Drop a turn's files."""
    connection.execute(_CLEAR, {"turn_id": turn_id})


_INSERT = sa.insert(attachments)
_OF_TURN = (
    sa.select(attachments)
    .where(attachments.c.turn_id == sa.bindparam("turn_id"))
    .order_by(attachments.c.number)
)
_SIZES = sa.select(attachments.c.media_type, sa.func.length(attachments.c.body).label("bytes")).where(
    attachments.c.turn_id == sa.bindparam("turn_id")
)
_CLEAR = sa.delete(attachments).where(attachments.c.turn_id == sa.bindparam("turn_id"))
