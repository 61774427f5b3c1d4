"""Rows of what users asked to be remembered. Every function names the owner and the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.tables import memories


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One memory and the turn it comes from."""

    id: str
    text: str
    #: What it is about; '' is no subject.
    subject: str
    turn_id: str | None
    created_at: datetime


def add(
    connection: Connection,
    owner: str,
    user: str,
    new: Remembered,
    *,
    wanted: Callable[[Sequence[Remembered]], bool],
) -> None:
    """Add a memory if it is ``wanted`` beside those that stand; one under the same subject is superseded."""
    if not wanted(live(connection, owner, user)):
        return
    if new.subject:
        connection.execute(
            sa.update(memories)
            .where(
                memories.c.owner == owner,
                memories.c.user == user,
                memories.c.subject == new.subject,
                memories.c.superseded_at.is_(None),
            )
            .values(superseded_at=new.created_at)
        )
    connection.execute(sa.insert(memories), {"owner": owner, "user": user} | asdict(new))


def live(connection: Connection, owner: str, user: str) -> list[Remembered]:
    """The user's memories that stand, newest first."""
    rows = connection.execute(
        sa.select(memories.c.id, memories.c.text, memories.c.subject, memories.c.turn_id, memories.c.created_at)
        .where(memories.c.owner == owner, memories.c.user == user, memories.c.superseded_at.is_(None))
        .order_by(memories.c.created_at.desc(), memories.c.id.desc())
    ).mappings()
    return [Remembered(**row) for row in rows]


def delete(connection: Connection, owner: str, user: str, ids: Sequence[str]) -> None:
    """Delete the given memories and all that they superseded under the same subject."""
    subjects = sa.select(memories.c.subject).where(
        memories.c.owner == owner, memories.c.user == user, memories.c.id.in_(ids), memories.c.subject != ""
    )
    connection.execute(
        sa.delete(memories).where(
            memories.c.owner == owner,
            memories.c.user == user,
            memories.c.id.in_(ids) | memories.c.subject.in_(subjects),
        )
    )
