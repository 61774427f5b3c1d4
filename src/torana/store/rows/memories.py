"""Rows of memories. Every function takes the owner, who is the user.

A superseded row refers to the live memory that replaced it, directly or not: these rows are its history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.tables import equal_to, memories, newest_first
from torana.store.rows.reports import memory_index

#: Maximum superseded rows of a live memory; the oldest are deleted.
HISTORY_LIMIT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory and the turn it comes from."""

    id: str
    text: str
    #: The subject; '' means none.
    subject: str
    #: None if it does not come from a turn.
    turn_id: str | None
    created_at: datetime
    superseded_at: datetime | None = None
    #: The live memory that replaced it.
    superseded_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A memory that contains a word of a query, with all its indexed words, separated by spaces."""

    memory: Remembered
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A memory and its vector."""

    memory: Remembered
    vector: bytes


_COLUMNS = (
    memories.c.id,
    memories.c.text,
    memories.c.subject,
    memories.c.turn_id,
    memories.c.created_at,
    memories.c.superseded_at,
    memories.c.superseded_by,
)
_stands = memories.c.superseded_at.is_(None)


def add(
    connection: Connection,
    owner: str,
    new: Remembered,
    *,
    known: Callable[[Sequence[Remembered]], Remembered | None],
) -> Remembered:
    """Add a memory and return it, or return the live memory that ``known`` finds.

    A live memory with the same subject is superseded.
    """
    current = live(connection, owner)
    if same := known(current):
        return same
    _insert_replacing(
        connection, owner, new, [item.id for item in current if new.subject and item.subject == new.subject]
    )
    return new


def replace(
    connection: Connection, owner: str, memory_id: str, *, changed: Callable[[Remembered], Remembered]
) -> Remembered | None:
    """Replace a memory with the result of ``changed``; None if it does not exist.

    A live memory with the new subject is superseded too. If nothing changes, the memory stays.
    """
    old = get(connection, owner, memory_id)
    if old is None:
        return None
    new = changed(old)
    if (new.text, new.subject) == (old.text, old.subject):
        return old
    others = [item.id for item in live(connection, owner, subject=new.subject) if new.subject]
    _insert_replacing(connection, owner, new, sorted({old.id, *others}))
    return new


def live(connection: Connection, owner: str, *, subject: str | None = None) -> list[Remembered]:
    """Return the owner's live memories, newest first, optionally of one subject."""
    return list_memories(connection, owner, subject=subject, before=None, limit=None)


def list_memories(
    connection: Connection,
    owner: str,
    *,
    subject: str | None,
    before: tuple[datetime, str] | None,
    limit: int | None,
) -> list[Remembered]:
    """Return the owner's live memories older than ``before`` (a time and an id), newest first."""
    of_subject = equal_to({memories.c.subject: subject})
    query = sa.select(*_COLUMNS).where(memories.c.owner == owner, _stands, *of_subject)
    page = newest_first(query, memories.c.created_at, before=before, limit=limit)
    return [Remembered(**row) for row in connection.execute(page).mappings()]


def get(connection: Connection, owner: str, memory_id: str) -> Remembered | None:
    """Return the owner's memory, live or superseded."""
    query = sa.select(*_COLUMNS).where(memories.c.owner == owner, memories.c.id == memory_id)
    row = connection.execute(query).mappings().first()
    return Remembered(**row) if row else None


def history(connection: Connection, owner: str, memory_id: str) -> list[Remembered]:
    """Return the superseded versions of a memory, latest first."""
    query = sa.select(*_COLUMNS).where(memories.c.owner == owner, memories.c.superseded_by == memory_id)
    return [Remembered(**row) for row in connection.execute(query.order_by(*_LATEST_FIRST)).mappings()]


def holding(connection: Connection, owner: str, terms: Sequence[str]) -> tuple[list[Candidate], int]:
    """Return the owner's live memories with any of the terms, unordered, and the number of live memories."""
    found = memory_index.holding(owner, terms).subquery()
    query = (
        sa.select(*_COLUMNS, found.c.words)
        .join(found, found.c.memory == memories.c.id)
        .where(memories.c.owner == owner, _stands)
    )
    candidates = [
        Candidate(memory=Remembered(**{c.key: row[c.key] for c in _COLUMNS}), words=row["words"])
        for row in connection.execute(query).mappings()
    ]
    counting = sa.select(sa.func.count()).select_from(memories).where(memories.c.owner == owner, _stands)
    return candidates, connection.execute(counting).scalar_one()


def list_embedded(connection: Connection, owner: str, *, by: str) -> list[Embedded]:
    """Return the owner's live memories that have a vector of a model, newest first."""
    query = (
        sa.select(*_COLUMNS, memories.c.embedding)
        .where(memories.c.owner == owner, _stands, memories.c.embedded_by == by)
        .order_by(memories.c.created_at.desc(), memories.c.id.desc())
    )
    return [
        Embedded(memory=Remembered(**{c.key: row[c.key] for c in _COLUMNS}), vector=row["embedding"])
        for row in connection.execute(query).mappings()
    ]


def without_vector(connection: Connection, owner: str, *, by: str, limit: int) -> list[Remembered]:
    """Return the owner's live memories that have no vector of a model, newest first."""
    query = sa.select(*_COLUMNS).where(
        memories.c.owner == owner, _stands, memories.c.embedded_by.is_distinct_from(by)
    )
    newest = newest_first(query, memories.c.created_at, before=None, limit=limit)
    return [Remembered(**row) for row in connection.execute(newest).mappings()]


def embed(connection: Connection, owner: str, vectors: Mapping[str, bytes], *, by: str) -> None:
    """Store the vectors by memory id; ids without a live memory are ignored."""
    for memory_id, vector in vectors.items():
        connection.execute(
            sa.update(memories)
            .where(memories.c.owner == owner, memories.c.id == memory_id, _stands)
            .values(embedding=vector, embedded_by=by)
        )


def delete(connection: Connection, owner: str, ids: Sequence[str]) -> None:
    """Delete memories with their history. ``memory_index.scrub`` removes the remains of their indexed words."""
    connection.execute(
        sa.delete(memories).where(
            memories.c.owner == owner, memories.c.id.in_(ids) | memories.c.superseded_by.in_(ids)
        )
    )
    memory_index.drop(connection, owner, ids)


_LATEST_FIRST = (memories.c.superseded_at.desc(), memories.c.created_at.desc(), memories.c.id.desc())


def _insert_replacing(connection: Connection, owner: str, new: Remembered, replaced: Sequence[str]) -> None:
    """Add a memory that replaces others and takes over their history."""
    if replaced:
        connection.execute(
            sa.update(memories)
            .where(
                memories.c.owner == owner, memories.c.id.in_(replaced) | memories.c.superseded_by.in_(replaced)
            )
            .values(
                superseded_at=sa.func.coalesce(memories.c.superseded_at, new.created_at),
                superseded_by=new.id,
                embedding=None,
                embedded_by=None,
            )
        )
        memory_index.drop(connection, owner, replaced)
        _cut_history(connection, owner, new.id)
    connection.execute(sa.insert(memories), {"owner": owner} | asdict(new))
    memory_index.add(connection, owner, new.id, f"{new.subject} {new.text}")


def _cut_history(connection: Connection, owner: str, memory_id: str) -> None:
    superseded = (memories.c.owner == owner) & (memories.c.superseded_by == memory_id)
    kept = sa.select(memories.c.id).where(superseded).order_by(*_LATEST_FIRST).limit(HISTORY_LIMIT)
    connection.execute(sa.delete(memories).where(superseded, memories.c.id.not_in(kept)))
