"""The full-text index of memories. It finds the memories of one owner but does not rank them.

FTS5's BM25 counts the words of all owners: it would reveal how rare a word is among other users, and it slows
down with every user. See ``docs/decisions/0011``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.tables import memory_words
from torana.store.engine.text_index import matches
from torana.store.engine.tokenizer import words

#: Maximum number of index pages that one call of ``scrub`` rewrites.
_PAGES = 100
_CHANGES = "SELECT total_changes()"

#: Maximum indexed words of a memory. Only a text of ligatures, which expand to several words, has more.
WORDS_LIMIT = 2_500


def add(connection: Connection, owner: str, memory_id: str, text: str) -> None:
    """Index a memory by the first ``WORDS_LIMIT`` words of a text."""
    row = {"owner": _token(owner), "memory": memory_id, "words": " ".join(words(text)[:WORDS_LIMIT])}
    connection.execute(sa.insert(memory_words), row)


def holding(owner: str, terms: Sequence[str]) -> sa.Select[Any, Any]:
    """Return a query for the ids and words of the owner's memories that contain any of the terms."""
    return (
        sa.select(memory_words.c.memory, memory_words.c.words)
        .select_from(memory_words)
        .where(matches(memory_words, {"owner": _token(owner)}, terms))
    )


def drop(connection: Connection, owner: str, ids: Sequence[str]) -> None:
    """Remove memories from the index. Their words stay in the file until the end of ``scrub``."""
    for memory_id in ids:
        _delete(connection, {"owner": _token(owner), "memory": memory_id})


def clear(connection: Connection, owner: str) -> None:
    """Delete an owner's memories from the index, without remains."""
    _delete(connection, {"owner": _token(owner)})
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO memory_words (memory_words) VALUES ('optimize')")


def scrub(connection: Connection, *, begin: bool) -> bool:
    """Rewrite a part of the index without deleted words; return whether there is more to rewrite.

    FTS5 otherwise keeps them until it merges its segments. ``begin`` is true for the first of the calls that
    rewrite the index. A call takes about 10 ms, and all of them 0.4 s for an index of 40 MB
    (https://www.sqlite.org/fts5.html#the_merge_command). In PostgreSQL this is done by ``Database.rewrite``.
    """
    if connection.dialect.name != "sqlite":
        return False
    merge = "INSERT INTO memory_words (memory_words, rank) VALUES ('merge', ?)"
    before = connection.exec_driver_sql(_CHANGES).scalar_one()
    connection.exec_driver_sql(merge, (-_PAGES if begin else _PAGES,))
    # A merge that finds nothing to do counts as one change at most.
    return connection.exec_driver_sql(_CHANGES).scalar_one() - before > 1


def _delete(connection: Connection, equal: Mapping[str, str]) -> None:
    connection.execute(sa.delete(memory_words).where(matches(memory_words, equal)))


def _token(owner: str) -> str:
    """Return the owner as a single search term."""
    return hashlib.sha256(owner.encode()).hexdigest()
