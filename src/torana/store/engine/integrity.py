"""Check a database file without changing it, and without executing its code if its origin is unknown."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from torana.errors import DataDirUnusable
from torana.store.engine.database_file import database_exists
from torana.store.engine.migrate import revision, schema_differences
from torana.store.engine.sqlite import only_transaction, sqlite_engine

#: Maximum number of objects in a message.
_NAMED = 5

#: The full-text indices; FTS5 checks each against its texts.
_TEXT_INDICES = "SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL TABLE % USING fts5%'"


def check_database(path: Path) -> str:
    """Return the revision of an intact database.

    Raises ``DataDirUnusable`` with SQLite's message for a file that is damaged, missing, empty or no database,
    and the errors of ``revision``.
    """
    database_exists(path)
    with _connected(sqlite_engine(path, read_only=True), path) as connection:
        _check_pages(connection, path, "quick_check(1)")
        return revision(connection, path)


def foreign_objects(path: Path) -> list[str]:
    """Describe some differences from Torana's schema, which ``torana restore`` would refuse.

    Raises the errors of ``check_database``.
    """
    with _connected(sqlite_engine(path, read_only=True), path) as connection:
        return schema_differences(connection, path)[:_NAMED]


def check_restorable(path: Path) -> None:
    """Check that a database of unknown origin has exactly its revision's schema and is intact.

    The schema is checked first; until then nothing that the database defines is executed. ``path`` is a copy
    that nothing else uses. Raises ``DataDirUnusable`` and the errors of ``revision``.
    """
    database_exists(path)
    with _connected(_defensive_engine(path), path) as connection:
        if foreign := schema_differences(connection, path):
            raise DataDirUnusable(f"{path} differs from the schema of Torana: {', '.join(foreign[:_NAMED])}")
        _check_pages(connection, path, "integrity_check(1)")
        if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first():
            raise DataDirUnusable(f"{path} is damaged: a row of {broken[0]} refers to a missing row")
        for index in connection.exec_driver_sql(_TEXT_INDICES).scalars().all():
            # The name is safe: the schema equals the migrations'.
            connection.exec_driver_sql(f"INSERT INTO {index} ({index}) VALUES ('integrity-check')")  # noqa: S608


def _check_pages(connection: Connection, path: Path, pragma: str) -> None:
    verdict = str(connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one())
    if verdict != "ok":
        raise _damaged_error(path, verdict)


def _defensive_engine(path: Path) -> Engine:
    """Return an engine for untrusted databases (https://www.sqlite.org/security.html)."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True, isolation_level=None)
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
            connection.execute(f"PRAGMA {pragma}").close()
        if sys.version_info >= (3, 12):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
        return connection

    return sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool, pool_size=1)


@contextmanager
def _connected(engine: Engine, path: Path) -> Generator[Connection]:
    try:
        with only_transaction(engine) as connection:
            yield connection
    except DBAPIError as error:
        raise _damaged_error(path, str(error.orig)) from error


def _damaged_error(path: Path, verdict: str) -> DataDirUnusable:
    damage = " ".join(verdict.split())
    return DataDirUnusable(f"{path} is damaged: {damage}; restore a backup with `torana restore`")
