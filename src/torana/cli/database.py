"""The database of the settings: reading it while a gateway runs, and its backups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from torana.config import Settings
    from torana.store.backup.targets import BackupTarget

T = TypeVar("T")


def read_store(settings: Settings, read: Callable[[Connection], T]) -> T:
    """Return the result of ``read`` for a read-only connection. Raises ``OperatorError``."""
    # Imported here so that the help of a command is printed at once.
    from torana.config.database import database_place

    return database_place(settings).read(read)


def backup_target(settings: Settings) -> BackupTarget:
    """Return the database to back up and to restore. Raises ``ConfigInvalid`` as ``database_place`` does."""
    from torana.store.backup.postgres import PostgresBackupTarget
    from torana.store.backup.targets import SqliteBackupTarget
    from torana.store.engine.postgres.connection import PostgresUrl

    if settings.database_url is None:
        return SqliteBackupTarget(settings.data_dir)
    return PostgresBackupTarget(
        url=PostgresUrl(settings.database_url.get_secret_value()),
        data_dir=settings.data_dir,
        cluster=settings.cluster,
    )
