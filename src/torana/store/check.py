"""Check a database file without changing it, and one of unknown origin without executing anything of it."""

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
from torana.store.database import sqlite_engine
from torana.store.database_file import database_exists
from torana.store.migrate import revision, schema_differences

#: Objects that a message names; there may be millions.
_NAMED = 5

#: The full-text indices, each of which FTS5 checks against the texts in it.
_TEXT_INDICES = "SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL TABLE % USING fts5%'"


def check_database(path: Path) -> str:
    """The revision a whole database is at.

    Raises ``DataDirUnusable`` in SQLite's words for a file that is damaged, missing, empty or no database, and
    what ``revision`` raises for one that this program cannot use.
    """
    database_exists(path)
    with _connected(sqlite_engine(path, read_only=True), path) as connection:
        _check_pages(connection, path, "quick_check(1)")
        return revision(connection, path)


def foreign_objects(path: Path) -> list[str]:
    """Name some of what a database's schema has added, changed or missing; ``torana restore`` refuses these.

    Raises as ``check_database`` does.
    """
    with _connected(sqlite_engine(path, read_only=True), path) as connection:
        return schema_differences(connection, path)[:_NAMED]


def check_restorable(path: Path) -> None:
    """Check a database of unknown origin: its schema is exactly its revision's, and its content is sound.

    The schema comes first, and nothing of the database is executed before it is known to be Torana's own.
    ``path`` is a copy that nothing else uses. Raises ``DataDirUnusable`` for what is wrong, and what
    ``revision`` raises.
    """
    database_exists(path)
    with _connected(_defensive_engine(path), path) as connection:
        if foreign := schema_differences(connection, path):
            raise DataDirUnusable(f"{path} is not as Torana makes it: {', '.join(foreign[:_NAMED])}")
        _check_pages(connection, path, "integrity_check(1)")
        if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first():
            raise DataDirUnusable(f"{path} is damaged: a row of {broken[0]} refers to one that is missing")
        for index in connection.exec_driver_sql(_TEXT_INDICES).scalars().all():
            # A name of the migrations' own, by now.
            connection.exec_driver_sql(f"INSERT INTO {index} ({index}) VALUES ('integrity-check')")  # noqa: S608


def _check_pages(connection: Connection, path: Path, pragma: str) -> None:
    verdict = str(connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one())
    if verdict != "ok":
        raise _damaged(path, verdict)


def _defensive_engine(path: Path) -> Engine:
    """An engine that believes a database as little as SQLite can (https://www.sqlite.org/security.html)."""

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
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        raise _damaged(path, str(error.orig)) from error
    finally:
        engine.dispose()


def _damaged(path: Path, verdict: str) -> DataDirUnusable:
    told = " ".join(verdict.split())
    return DataDirUnusable(f"{path} is damaged: {told}; restore a backup with `torana restore`")
