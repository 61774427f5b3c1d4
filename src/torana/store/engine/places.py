"""The place of the database: a SQLite file in the data directory, or a PostgreSQL database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy.engine import Connection

from torana.store.engine.database import Database
from torana.store.engine.database_file import refuse_unfinished_restore
from torana.store.engine.migrate import migrate, revision
from torana.store.engine.postgres import schema
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.postgres.reading import check_tables, read_tables
from torana.store.engine.read_only import check_exists, read_database
from torana.store.engine.sqlite import SqliteDatabase

T = TypeVar("T")

#: The purpose of a gateway, for other programs that find the database in use.
GATEWAY = "gateway"

#: The database's file in the data directory.
DATABASE_NAME = "torana.db"


class DatabasePlace(ABC):
    """A place that may hold a database."""

    @abstractmethod
    def open(self, *, purpose: str = GATEWAY) -> Database:
        """Open the database for writing; create or upgrade it first. Raises ``OperatorError``.

        ``purpose`` names the program for other programs that find the database in use.
        """

    @abstractmethod
    def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of ``work`` for a read-only connection, also while a gateway runs.

        Raises ``OperatorError`` if there is no database, or if it cannot be read.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Return whether there is a database. Raises ``OperatorError`` if that cannot be known."""

    @abstractmethod
    def check_exists(self) -> None:
        """Raise ``OperatorError`` if there is no database."""

    @abstractmethod
    def revision(self) -> str:
        """Return the revision of the database.

        Raises ``OperatorError`` if there is none, or if this program cannot use or upgrade it.
        """


class SqlitePlace(DatabasePlace):
    """A SQLite file in the data directory. For ``open`` the caller holds the lock of the directory."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / DATABASE_NAME

    def __str__(self) -> str:
        return str(self._path)

    def open(self, *, purpose: str = GATEWAY) -> Database:
        migrate(self._path)
        return SqliteDatabase(path=self._path)

    def read(self, work: Callable[[Connection], T]) -> T:
        return read_database(self._path, work)

    def exists(self) -> bool:
        return self._path.exists()

    def check_exists(self) -> None:
        check_exists(self._path)

    def revision(self) -> str:
        return self.read(lambda connection: revision(connection, self._path))


class PostgresPlace(DatabasePlace):
    """A PostgreSQL database, used by one gateway or command at a time, or by several replicas."""

    def __init__(
        self, url: str, *, data_dir: Path, replicated: bool = False, cluster: str | None = None
    ) -> None:
        """Raise ``ConfigInvalid`` if psycopg is missing or cannot read the address."""
        self._url = PostgresUrl(url)
        self._data_dir = data_dir
        self._replicated = replicated
        self._cluster = cluster

    def __str__(self) -> str:
        return f"PostgreSQL {self._url}"

    def open(self, *, purpose: str = GATEWAY) -> Database:
        refuse_unfinished_restore(self._data_dir)
        replicated = self._replicated and purpose == GATEWAY
        prepare = partial(schema.prepare_cluster, cluster=self._cluster)
        return PostgresDatabase(url=self._url, purpose=purpose, replicated=replicated, prepare=prepare)

    def read(self, work: Callable[[Connection], T]) -> T:
        return read_tables(self._url, work, cluster=self._cluster)

    def exists(self) -> bool:
        return check_tables(self._url)

    def check_exists(self) -> None:
        self.read(lambda _connection: None)

    def revision(self) -> str:
        return str(self.read(lambda connection: schema.revision(connection, str(self._url))))
