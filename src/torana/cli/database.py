"""Read the database of the settings, also while a gateway runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from torana.config import Settings

T = TypeVar("T")


def read_store(settings: Settings, read: Callable[[Connection], T]) -> T:
    """Return the result of ``read`` for a read-only connection. Raises ``DataDirUnusable``."""
    # Imported here so that the help of a command is printed at once.
    from torana.store.backup.archive import DATABASE_NAME
    from torana.store.engine.read_only import read_database

    return read_database(settings.data_dir / DATABASE_NAME, read)
