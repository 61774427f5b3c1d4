"""The databases that a copy fills. No gateway uses them before the copy is complete.

An unfinished copy has a table with the name of its source, and a gateway on PostgreSQL refuses a database with
this table. A copy into SQLite is a file of another name until it is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError

from torana.errors import DatabaseUnusable, DataDirUnusable, OperatorError
from torana.store.engine.database import Database
from torana.store.engine.database_file import COPY_SUFFIX, refuse_traces
from torana.store.engine.migrate import HEAD, create_tables, delete_draft, put_in_place, revision
from torana.store.engine.places import DATABASE_NAME
from torana.store.engine.postgres import schema
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.sqlite import SqliteDatabase, only_transaction, sqlite_engine
from torana.store.engine.table_copy import delete_tables, has_rows
from torana.store.engine.tables import Text

#: The purpose of a copy, for other programs that find the database in use.
PURPOSE = "database copy"

_mark = sa.Table(schema.UNFINISHED_COPY, sa.MetaData(), sa.Column("source", Text, nullable=False))


class CopyTarget(ABC):
    """A database that a copy fills."""

    @abstractmethod
    def open(self, source: str, *, restart: bool) -> Database:
        """Open a database with the newest tables, without rows or with an unfinished copy of ``source``.

        With ``restart`` an unfinished copy is deleted first. Raises ``OperatorError`` for other content.
        """

    @abstractmethod
    def put_in_place(self) -> None:
        """Make the complete copy usable, after ``remove_mark`` and after its database was closed."""


class SqliteCopyTarget(CopyTarget):
    """The database file of a data directory that has no database yet. The caller holds the directory's lock."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / DATABASE_NAME
        self._draft = self._path.with_name(f"{DATABASE_NAME}{COPY_SUFFIX}")

    def __str__(self) -> str:
        return str(self._path)

    def open(self, source: str, *, restart: bool) -> Database:
        if self._path.exists():
            raise DataDirUnusable(
                f"{self._path} exists, and a copy replaces no data. Move it away, or name another data "
                "directory with --data-dir"
            )
        refuse_traces(self._path)
        if restart:
            delete_draft(self._draft)
        self._draft.touch(mode=0o600)
        try:
            with only_transaction(sqlite_engine(self._draft)) as connection:
                self._prepare(connection, source)
        except DatabaseError as error:
            raise DataDirUnusable(
                f"{self._draft}: {error.orig}; {_restart('the copy is unfinished')}"
            ) from error
        return SqliteDatabase(path=self._draft)

    def put_in_place(self) -> None:
        put_in_place(self._draft, self._path)

    def _prepare(self, connection: Connection, source: str) -> None:
        tables = sa.inspect(connection).get_table_names()
        if not tables:
            create_tables(connection)
        elif (current := revision(connection, self._draft)) != HEAD:
            raise DataDirUnusable(
                f"{self._draft} is {_restart(f'an unfinished copy at revision {current}, not {HEAD}')}"
            )
        if _mark.name in tables:
            _check_mark(connection, str(self._draft), source)
        else:  # new, or complete but not renamed yet
            _set_mark(connection, source)


class PostgresCopyTarget(CopyTarget):
    """A PostgreSQL database without data. No other process uses it while it is open."""

    def __init__(self, url: PostgresUrl, *, cluster: str | None = None) -> None:
        """``cluster`` is the name of the deployment; the database of another deployment is refused."""
        self._url = url
        self._cluster = cluster

    def __str__(self) -> str:
        return f"PostgreSQL {self._url}"

    def open(self, source: str, *, restart: bool) -> Database:
        def prepare(connection: Connection, target: str) -> None:
            _prepare_postgres(connection, target, source, restart=restart)
            schema.claim_cluster(connection, target, self._cluster)

        return PostgresDatabase(url=self._url, purpose=PURPOSE, prepare=prepare)

    def put_in_place(self) -> None:
        """Do nothing: after ``remove_mark`` a gateway can use the database."""


def remove_mark(connection: Connection) -> None:
    """Remove the mark of an unfinished copy."""
    _mark.drop(connection)


def _prepare_postgres(connection: Connection, target: str, source: str, *, restart: bool) -> None:
    schema.check_server(connection, target)
    current = schema.revision(connection, target, unfinished=True)
    marked = sa.inspect(connection).has_table(_mark.name)
    named = f"the PostgreSQL database {target}"
    if current is None:
        schema.create_tables(connection)
    elif current != HEAD:
        raise DatabaseUnusable(f"{named} is at revision {current}, not {HEAD}; create an empty database")
    elif marked and restart:
        delete_tables(connection)
        remove_mark(connection)
    elif marked:
        _check_mark(connection, named, source)
        return
    elif has_rows(connection):
        raise DatabaseUnusable(f"{named} has data, and a copy replaces no data; create an empty database")
    _set_mark(connection, source)


def _set_mark(connection: Connection, source: str) -> None:
    _mark.create(connection)
    connection.execute(sa.insert(_mark), {"source": source})


def _check_mark(connection: Connection, target: str, source: str) -> None:
    marked = connection.execute(sa.select(_mark.c.source)).scalar_one()
    if marked != source:
        raise OperatorError(f"{target} is {_restart(f'an unfinished copy of {marked}, not of {source}')}")


def _restart(fault: str) -> str:
    return f"{fault}; copy from the beginning with --restart"
