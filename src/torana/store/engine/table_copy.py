"""Copy the rows of all tables between two databases, each SQLite or PostgreSQL, with the newest tables.

The types in ``tables`` convert the values of one dialect into those of the other. Rows are read in pages by
their primary keys, whose order is the same in both, so a copy needs little memory and can be continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.snapshot import Progress
from torana.store.engine.tables import (
    attachments,
    calls,
    deliveries,
    history,
    memory_words,
    message_words,
    metadata,
    steps,
)

#: Maximum number of rows in memory, and a smaller number for tables whose rows may have megabytes.
_PAGE = 100
_LARGE: Mapping[str, int] = {attachments.name: 1, history.name: 10, steps.name: 10, calls.name: 10}

#: SQLite's own table with the last number of each table that does not reuse numbers.
_SQLITE_SEQUENCE = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq", sa.BigInteger))


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A table whose rows are copied, and the columns of its primary key."""

    table: sa.TableClause
    key: Sequence[sa.ColumnElement[Any]]

    def count(self, connection: Connection) -> int:
        """Return the number of rows."""
        return connection.execute(sa.select(sa.func.count()).select_from(self.table)).scalar_one()

    def pages(
        self, connection: Connection, *, after: Sequence[Any] | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """Return the rows in the order of their keys, from the one that follows the key ``after``."""
        size = _LARGE.get(self.table.name, _PAGE)
        query = sa.select(*self.table.c).order_by(*self.key).limit(size)
        while page := connection.execute(self._from(query, after)).mappings().all():
            yield [dict(row) for row in page]
            if len(page) < size:
                break
            after = self.key_of(page[-1])

    def key_of(self, row: Mapping[Any, Any]) -> Sequence[Any]:
        """Return the key of a row."""
        return [row[column.name] for column in self.key]

    def write(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows."""
        connection.execute(sa.insert(self.table), rows)

    def _from(self, query: sa.Select[Any], after: Sequence[Any] | None) -> sa.Select[Any]:
        if after is None:
            return query
        values = [sa.literal(value, column.type) for value, column in zip(after, self.key, strict=True)]
        return query.where(sa.tuple_(*self.key) > sa.tuple_(*values))


def tables_to_copy() -> list[TableCopy]:
    """Return all tables and text indexes, each behind the tables that its rows refer to."""
    tables = [TableCopy(table, list(table.primary_key.columns)) for table in metadata.sorted_tables]
    return [*tables, *(TableCopy(index, [index.c.rowid]) for index in (memory_words, message_words))]


def copy_tables(source: Connection, target: Connection, progress: Progress) -> None:
    """Copy all rows into tables without rows; ``progress`` counts the rows.

    Raises ``DBAPIError`` of the database that fails, and ``ValueError`` or ``TypeError`` for a value that its
    column cannot hold.
    """
    tables = tables_to_copy()
    done, total = 0, sum(table.count(source) for table in tables)
    for table in tables:
        for page in table.pages(source):
            table.write(target, page)
            done += len(page)
            progress(done, total)
    set_last_number(target, read_last_number(source))


def lock_tables(connection: Connection) -> None:
    """Let no other transaction delete or change the tables of a PostgreSQL database as a whole."""
    connection.exec_driver_sql(f"LOCK TABLE {_names()} IN ACCESS SHARE MODE")


def delete_tables(connection: Connection) -> None:
    """Delete all rows of a PostgreSQL database, without remains in its tables."""
    connection.exec_driver_sql(f"TRUNCATE {_names()}")


def has_rows(connection: Connection) -> bool:
    """Return whether any table has a row."""
    return any(
        connection.execute(sa.select(sa.literal(1)).select_from(table.table).limit(1)).first() is not None
        for table in tables_to_copy()
    )


def read_last_number(connection: Connection) -> int:
    """Return the largest number that a delivery has had; numbers are not used again."""
    if connection.dialect.name == "postgresql":
        sequence = _sequence(connection, deliveries.name, "number")
        last_value = f"SELECT last_value - (NOT is_called)::int FROM {sequence}"  # noqa: S608
        last = connection.exec_driver_sql(last_value).scalar()
    else:
        column = _SQLITE_SEQUENCE.c
        last = connection.execute(sa.select(column.seq).where(column.name == deliveries.name)).scalar()
    return int(last or 0)


def set_last_number(connection: Connection, last: int) -> None:
    """Continue the numbers of deliveries behind ``last``, and those of the text indexes behind their rows."""
    if connection.dialect.name == "postgresql":
        _restart(connection, deliveries.name, "number", last)
        for index in (memory_words, message_words):
            last_row = connection.execute(sa.select(sa.func.max(index.c.rowid))).scalar()
            _restart(connection, index.name, "rowid", last_row or 0)
    elif last:
        column = _SQLITE_SEQUENCE.c
        connection.execute(sa.delete(_SQLITE_SEQUENCE).where(column.name == deliveries.name))
        connection.execute(sa.insert(_SQLITE_SEQUENCE), {"name": deliveries.name, "seq": last})


def _names() -> str:
    return ", ".join(f'"{table.table.name}"' for table in tables_to_copy())


def _restart(connection: Connection, table: str, column: str, last: int) -> None:
    # Unlike setval(), this is undone with the transaction.
    sequence = _sequence(connection, table, column)
    connection.exec_driver_sql(f"ALTER SEQUENCE {sequence} RESTART WITH {max(last, 0) + 1:d}")


def _sequence(connection: Connection, table: str, column: str) -> str:
    """Return the quoted name of the sequence behind a column of PostgreSQL."""
    question = "SELECT pg_get_serial_sequence(%s, %s)"
    return str(connection.exec_driver_sql(question, (table, column)).scalar_one())
