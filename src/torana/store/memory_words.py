"""The full-text index of memories: which of one owner's hold some words. The database finds, it does not rank.

BM25 as FTS5 computes it counts the words of all owners: it would tell one user how rare a word is among the
others, and grows slower with every user. See ``docs/decisions/0011``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.fts import any_of
from torana.store.tables import memory_words
from torana.store.words import words


def add(connection: Connection, owner: str, memory_id: str, text: str) -> None:
    """Make a memory findable by the words of a text."""
    row = {"owner": _token(owner), "memory": memory_id, "words": " ".join(words(text))}
    connection.execute(sa.insert(memory_words), row)


def holding(owner: str, found: Sequence[str]) -> sa.Select[Any, Any]:
    """The query for the owner's memories that hold any of the terms: ids, and all their words."""
    return (
        sa.select(memory_words.c.memory, memory_words.c.words)
        .select_from(memory_words)
        .where(_matches(f"owner : {_term(owner)} AND words : ({any_of(found)})"))
    )


def drop(connection: Connection, owner: str, ids: Sequence[str]) -> None:
    """Make the given memories not to be found any more. Their words stay in the file until ``scrub``."""
    for memory_id in ids:
        _delete(connection, f'owner : {_term(owner)} AND memory : "{memory_id}"')


def clear(connection: Connection, owner: str) -> None:
    """Delete all words of an owner's memories, and every trace of them in the index."""
    _delete(connection, f"owner : {_term(owner)}")
    scrub(connection)


def scrub(connection: Connection) -> None:
    """Rewrite the index without what was deleted: FTS5 only marks it so until its segments are merged.

    Takes as long as the whole index is large: 8 ms for 10,000 memories, 0.8 s for a million.
    """
    connection.exec_driver_sql("INSERT INTO memory_words (memory_words) VALUES ('optimize')")


def _delete(connection: Connection, query: str) -> None:
    connection.execute(sa.delete(memory_words).where(_matches(query)))


def _matches(query: str) -> sa.ColumnElement[bool]:
    return sa.literal_column("memory_words").op("MATCH", is_comparison=True)(query)


def _term(owner: str) -> str:
    return f'"{_token(owner)}"'


def _token(owner: str) -> str:
    """The owner as one word, whatever a user id holds."""
    return hashlib.sha256(owner.encode()).hexdigest()
