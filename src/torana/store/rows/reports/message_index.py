"""The full-text index of messages and replies, by owner and session. It finds turns but does not rank them.

See ``memory_index`` for the reason. The row number of a turn in the index is the time of its message in
microseconds, so that the newest turn is found first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import EVERYONE
from torana.store.engine.tables import message_words, owned_by, turns, unindexed
from torana.store.engine.text_index import matches
from torana.store.engine.tokenizer import TEXT_LIMIT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The microseconds after the time of a turn in which its number is searched first.
_WINDOW = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of a turn's message and reply, separated by spaces."""

    turn_id: str
    words: str


def missing(connection: Connection, owner: str, *, limit: int) -> list[RowMapping]:
    """Return the searchable texts of the owner's newest turns that are not indexed.

    The columns are ``id``, ``content`` and ``reply``.
    """
    query = (
        sa.select(turns.c.id, *_TEXTS)
        .where(unindexed, owned_by(turns, owner))
        .order_by(turns.c.created_at.desc())
        .limit(limit)
    )
    return list(connection.execute(query).mappings())


def add(connection: Connection, found: Sequence[Words]) -> None:
    """Index turns; those that were deleted, run again or indexed in the meantime are left out."""
    for one in found:
        row = connection.execute(_PENDING, {"key": one.turn_id}).first()
        if row is None:
            continue
        number = _free_number(connection, (row.created_at - _EPOCH) // timedelta(microseconds=1))
        connection.execute(_POINT, {"key": one.turn_id, "number": number})
        columns = {"rowid": number, "owner": _token(row.owner), "session": _token(row.session_id)}
        connection.execute(sa.insert(message_words), columns | {"words": one.words})


def find(
    connection: Connection,
    owner: str,
    terms: Sequence[str],
    *,
    session_id: str | None,
    before: int | None,
    limit: int,
) -> list[RowMapping]:
    """Return the turns that contain all terms, the newest first; ``owner`` may be ``EVERYONE``.

    ``before`` is the ``words_row`` of the last turn of the previous page.
    """
    equal = {} if owner == EVERYONE else {"owner": _token(owner)}
    if session_id is not None:
        equal["session"] = _token(session_id)
    number = sa.literal_column("message_words.rowid", sa.BigInteger)
    found = (
        sa.select(number.label("number"))
        .select_from(message_words)
        .where(matches(message_words, equal, terms, every=True))
    )
    if before is not None:
        found = found.where(number < before)
    page = found.order_by(number.desc()).limit(limit).subquery()
    query = (
        sa.select(*(column for column in turns.c if column.name not in ("content", "reply")), *_TEXTS)
        .join(page, page.c.number == turns.c.words_row)
        .where(owned_by(turns, owner))
        .order_by(turns.c.words_row.desc())
    )
    return list(connection.execute(query).mappings())


def drop(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    """Remove turns from the index, before they are deleted or run again."""
    numbers = sa.select(turns.c.words_row).where(which, turns.c.words_row.is_not(None))
    connection.execute(sa.delete(message_words).where(sa.literal_column("rowid").in_(numbers)))


def scrub(connection: Connection) -> None:
    """Rewrite the index without deleted words. In PostgreSQL this is done by ``Database.rewrite``."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO message_words (message_words) VALUES ('optimize')")


def _free_number(connection: Connection, number: int) -> int:
    """Return the number, or a later one if it is taken: the copies of a turn in forks have the turn's time."""
    while connection.execute(_TAKEN, {"number": number}).first() is not None:
        # One after another, thousands of copies would take as many statements each.
        number = connection.execute(_LAST_TAKEN, {"start": number, "end": number + _WINDOW}).scalar_one() + 1
    return number


def _token(text: str) -> str:
    """Return an id as a single search term."""
    return hashlib.sha256(text.encode()).hexdigest()


#: The searchable beginnings of the texts.
_TEXTS = [sa.func.substr(text, 1, TEXT_LIMIT).label(text.name) for text in (turns.c.content, turns.c.reply)]
_PENDING = sa.select(turns.c.owner, turns.c.session_id, turns.c.created_at).where(
    unindexed, turns.c.id == sa.bindparam("key")
)
_TAKEN = sa.select(turns.c.id).where(turns.c.words_row == sa.bindparam("number"))
_LAST_TAKEN = sa.select(sa.func.max(turns.c.words_row)).where(
    turns.c.words_row >= sa.bindparam("start"), turns.c.words_row < sa.bindparam("end")
)
_POINT = sa.update(turns).where(turns.c.id == sa.bindparam("key")).values(words_row=sa.bindparam("number"))
