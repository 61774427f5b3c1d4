"""Look at a database file without changing it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.exc import DBAPIError

from torana.errors import DataDirUnusable
from torana.store.database import sqlite_engine
from torana.store.migrate import revision


def check_database(path: Path) -> str | None:
    """The revision a whole database is at; None for an empty file.

    Raises ``DataDirUnusable`` in SQLite's words for a file that is damaged, missing or no database, and what
    ``revision`` raises for one that this program cannot use.
    """
    engine = sqlite_engine(path, read_only=True)
    try:
        with engine.begin() as connection:
            verdict = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one())
            if verdict != "ok":
                raise _damaged(path, verdict)
            return revision(connection, path)
    except DBAPIError as error:
        raise _damaged(path, str(error.orig)) from error
    finally:
        engine.dispose()


def _damaged(path: Path, verdict: str) -> DataDirUnusable:
    told = " ".join(verdict.split())
    return DataDirUnusable(f"{path} is damaged: {told}; restore a backup with `torana restore`")
