"""Rows of erasures, which every replica carries out on its own files and memory.

A file in each data directory has the id of the last erasure that was carried out there, and the row of each
replica in ``replicas`` has its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.messages import new_id
from torana.store.engine.dialects import ThisReplica
from torana.store.engine.tables import UtcTime, tombstones

T = TypeVar("T")

#: ``number`` is the order of the commits. ``at`` is also the time in the tombstones of the erased turns. The
#: announcement of the trigger names no session, because it concerns all replicas.
ERASURES = (
    """
    CREATE TABLE erasures (
        number BIGINT GENERATED ALWAYS AS IDENTITY,
        id TEXT COLLATE "C" NOT NULL,
        "user" TEXT COLLATE "C" NOT NULL,
        at TIMESTAMP WITH TIME ZONE NOT NULL,
        CONSTRAINT pk_erasures PRIMARY KEY (number),
        CONSTRAINT uq_erasures_id UNIQUE (id)
    )
    """,
    "ALTER TABLE replicas ADD COLUMN erased BIGINT DEFAULT 0 NOT NULL",
    """
    CREATE FUNCTION announce_erasure() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('torana', concat(current_setting('torana.replica', true), ' '));
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER announce_erasure AFTER INSERT ON erasures FOR EACH ROW
    EXECUTE FUNCTION announce_erasure()
    """,
)

_erasures = sa.table(
    "erasures", sa.column("number"), sa.column("id"), sa.column("user"), sa.column("at", UtcTime())
)
_replicas = sa.table("replicas", sa.column("id"), sa.column("name"), sa.column("erased"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasures:
    """Erasures that a process has not carried out yet: the last one's number, the users and their turns."""

    last: str
    users: Sequence[str]
    turn_ids: Sequence[str]


def with_erasure(
    work: Callable[[Connection], T | None], user: str, at: datetime
) -> Callable[[Connection], T | None]:
    """Return the work extended by a row of the erasure, unless the work returns None."""

    def both(connection: Connection) -> T | None:
        done = work(connection)
        if done is not None:
            connection.execute(sa.insert(_erasures), {"id": new_id("era"), "user": user, "at": at})
        return done

    return both


def list_after(connection: Connection, last: str) -> Erasures | None:
    """Return the erasures after ``last``, or None if there are none; all if ``last`` is unknown."""
    after = _erasures.c.number > _number_of(last)
    rows = connection.execute(sa.select(_erasures).where(after).order_by(_erasures.c.number)).all()
    if not rows:
        return None
    turn_ids = sa.select(tombstones.c.turn_id).where(
        tombstones.c.at.in_(sa.select(_erasures.c.at).where(after))
    )
    return Erasures(
        last=rows[-1].id,
        users=list({row.user for row in rows}),
        turn_ids=connection.execute(turn_ids).scalars().all(),
    )


def confirm(connection: Connection, last: str) -> None:
    """Note that this process has carried out all erasures up to ``last``."""
    own = _replicas.c.id == ThisReplica()
    connection.execute(sa.update(_replicas).where(own).values(erased=_number_of(last)))


def list_unconfirmed(connection: Connection) -> dict[str, int]:
    """Return the number of pending erasures of each replica that has not carried out all of them, by its id."""
    open_ = sa.select(sa.func.count()).where(_erasures.c.number > _replicas.c.erased).scalar_subquery()
    rows = connection.execute(sa.select(_replicas.c.id, open_.label("open")))
    return {row.id: row.open for row in rows if row.open}


def _number_of(last: str) -> sa.ColumnElement[int]:
    number = sa.select(_erasures.c.number).where(_erasures.c.id == last).scalar_subquery()
    return sa.func.coalesce(number, 0)
