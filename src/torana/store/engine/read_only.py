"""Read a database without changing it, whether a gateway is running or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from torana.errors import DataDirUnusable
from torana.store.engine.database_file import database_exists
from torana.store.engine.sqlite import only_transaction, sqlite_engine

T = TypeVar("T")


def check_exists(path: Path) -> None:
    """Raise ``DataDirUnusable`` if the file does not exist or has lost its content."""
    if not database_exists(path):
        raise DataDirUnusable(
            f"there is no database {path} yet; start the gateway with `torana serve`, or name the place of "
            "another with --data-dir"
        )


def read_database(path: Path, work: Callable[[Connection], T]) -> T:
    """Return the result of ``work``. Raises ``DataDirUnusable`` for a file that is missing or unreadable."""
    check_exists(path)
    try:
        with only_transaction(sqlite_engine(path, read_only=True)) as connection:
            return work(connection)
    except DBAPIError as error:
        raise DataDirUnusable(f"{path} cannot be read: {error.orig}; run `torana doctor`") from error
