"""Rows of what is remembered about users. Every function names the owner, who is the user.

A superseded row points at the one that stands in its place now, however many came between: that is its
history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store import memory_words
from torana.store.tables import memories

#: Superseded rows kept behind each that stands; the oldest go.
HISTORY_LIMIT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One memory and the turn it comes from."""

    id: str
    text: str
    #: What it is about; '' is no subject.
    subject: str
    #: None where it was not said in a conversation.
    turn_id: str | None
    created_at: datetime
    superseded_at: datetime | None = None
    #: The memory that stands in its place now.
    superseded_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A memory that holds some word of a query, with all words it can be found by."""

    memory: Remembered
    words: Sequence[str]


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
    """Add a memory, unless ``known`` finds it among those that stand; one under its subject is superseded.

    Returns what stands then.
    """
    standing = live(connection, owner)
    if same := known(standing):
        return same
    _put(connection, owner, new, [item.id for item in standing if new.subject and item.subject == new.subject])
    return new


def replace(
    connection: Connection, owner: str, memory_id: str, *, changed: Callable[[Remembered], Remembered]
) -> Remembered | None:
    """Let what ``changed`` makes of a memory supersede it and the one under its subject; None without it.

    A change that changes nothing leaves the memory as it stands.
    """
    old = get(connection, owner, memory_id)
    if old is None:
        return None
    new = changed(old)
    if (new.text, new.subject) == (old.text, old.subject):
        return old
    others = [item.id for item in live(connection, owner, subject=new.subject) if new.subject]
    _put(connection, owner, new, sorted({old.id, *others}))
    return new


def live(connection: Connection, owner: str, *, subject: str | None = None) -> list[Remembered]:
    """The owner's memories that stand, newest first; of a subject, where one is named."""
    return listed(connection, owner, subject=subject, before=None, limit=None)


def listed(
    connection: Connection,
    owner: str,
    *,
    subject: str | None,
    before: tuple[datetime, str] | None,
    limit: int | None,
) -> list[Remembered]:
    """The owner's memories that stand, newest first, behind a place in that order."""
    query = sa.select(*_COLUMNS).where(memories.c.owner == owner, _stands)
    if subject is not None:
        query = query.where(memories.c.subject == subject)
    if before is not None:
        at, memory_id = before
        query = query.where(
            (memories.c.created_at < at) | ((memories.c.created_at == at) & (memories.c.id < memory_id))
        )
    newest_first = query.order_by(memories.c.created_at.desc(), memories.c.id.desc()).limit(limit)
    return [Remembered(**row) for row in connection.execute(newest_first).mappings()]


def get(connection: Connection, owner: str, memory_id: str) -> Remembered | None:
    """The owner's memory of that id, whether it stands or not."""
    query = sa.select(*_COLUMNS).where(memories.c.owner == owner, memories.c.id == memory_id)
    row = connection.execute(query).mappings().first()
    return Remembered(**row) if row else None


def history(connection: Connection, owner: str, memory_id: str) -> list[Remembered]:
    """What a memory superseded, the latest first."""
    query = sa.select(*_COLUMNS).where(memories.c.owner == owner, memories.c.superseded_by == memory_id)
    return [Remembered(**row) for row in connection.execute(query.order_by(*_LATEST_FIRST)).mappings()]


def holding(connection: Connection, owner: str, terms: Sequence[str]) -> tuple[list[Candidate], int]:
    """The owner's standing memories that hold any of the terms, in no order, and how many stand in all."""
    found = memory_words.holding(owner, terms).subquery()
    query = (
        sa.select(*_COLUMNS, found.c.words)
        .join(found, found.c.memory == memories.c.id)
        .where(memories.c.owner == owner, _stands)
    )
    candidates = [
        Candidate(memory=Remembered(**{c.key: row[c.key] for c in _COLUMNS}), words=row["words"].split(" "))
        for row in connection.execute(query).mappings()
    ]
    counting = sa.select(sa.func.count()).select_from(memories).where(memories.c.owner == owner, _stands)
    return candidates, connection.execute(counting).scalar_one()


def embedded(connection: Connection, owner: str, *, by: str) -> list[Embedded]:
    """The owner's standing memories that have a vector of a model, with it, newest first."""
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
    """The owner's standing memories that have no vector of a model yet, newest first."""
    query = sa.select(*_COLUMNS).where(
        memories.c.owner == owner, _stands, memories.c.embedded_by.is_distinct_from(by)
    )
    newest_first = query.order_by(memories.c.created_at.desc(), memories.c.id.desc()).limit(limit)
    return [Remembered(**row) for row in connection.execute(newest_first).mappings()]


def embed(connection: Connection, owner: str, vectors: Mapping[str, bytes], *, by: str) -> None:
    """Keep the vectors of memories by their ids; of one that is gone none is kept."""
    for memory_id, vector in vectors.items():
        connection.execute(
            sa.update(memories)
            .where(memories.c.owner == owner, memories.c.id == memory_id, _stands)
            .values(embedding=vector, embedded_by=by)
        )


def delete(connection: Connection, owner: str, ids: Sequence[str]) -> None:
    """Delete the given memories, all that they superseded, and their words, of which no trace stays."""
    connection.execute(
        sa.delete(memories).where(
            memories.c.owner == owner, memories.c.id.in_(ids) | memories.c.superseded_by.in_(ids)
        )
    )
    memory_words.drop(connection, owner, ids)
    memory_words.scrub(connection)


_LATEST_FIRST = (memories.c.superseded_at.desc(), memories.c.created_at.desc(), memories.c.id.desc())


def _put(connection: Connection, owner: str, new: Remembered, replaced: Sequence[str]) -> None:
    """Add a memory in the place of others, whose history becomes its own."""
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
        memory_words.drop(connection, owner, replaced)
        _cut_history(connection, owner, new.id)
    connection.execute(sa.insert(memories), {"owner": owner} | asdict(new))
    memory_words.add(connection, owner, new.id, f"{new.subject} {new.text}")


def _cut_history(connection: Connection, owner: str, memory_id: str) -> None:
    superseded = (memories.c.owner == owner) & (memories.c.superseded_by == memory_id)
    kept = sa.select(memories.c.id).where(superseded).order_by(*_LATEST_FIRST).limit(HISTORY_LIMIT)
    connection.execute(sa.delete(memories).where(superseded, memories.c.id.not_in(kept)))
