"""Counts of changes, by which a replica notices that another replica has changed rows."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.dialects import insert
from torana.store.engine.tables import change_counts

Subject = Literal["skills"]


def count(connection: Connection, subject: Subject) -> None:
    """Count a change."""
    statement = insert(change_counts).values(subject=subject, number=1)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["subject"], set_={"number": change_counts.c.number + 1})
    )


def number_of(subject: Subject) -> sa.ColumnElement[int]:
    """Return the number of changes, for a query."""
    number = sa.select(change_counts.c.number).where(change_counts.c.subject == subject).scalar_subquery()
    return sa.func.coalesce(number, 0)
