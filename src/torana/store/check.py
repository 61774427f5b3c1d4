"""Look at a database file without changing it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.exc import DBAPIError

from torana.store.database import sqlite_engine
from torana.store.migrate import revision


def check_database(path: Path) -> tuple[str | None, str]:
    """The revision a database is at, and SQLite's own verdict: ``ok``, or what is wrong with the file."""
    engine = sqlite_engine(path, read_only=True)
    try:
        with engine.begin() as connection:
            verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            return revision(connection), str(verdict)
    except DBAPIError as error:
        return None, str(error.orig)
    finally:
        engine.dispose()
