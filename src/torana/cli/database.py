"""Read the database of the settings, also while a gateway runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from torana.config import Settings

T = TypeVar("T")


def read_store(settings: Settings, read: Callable[[Connection], T]) -> T:
    """Return the result of ``read`` for a read-only connection. Raises ``OperatorError``."""
    # Imported here so that the help of a command is printed at once.
    from torana.config.database import database_place

    return database_place(settings).read(read)
