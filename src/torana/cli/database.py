"""The database of the settings, as the target of backups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torana.config import Settings
    from torana.store.backup.targets import BackupTarget


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
