"""The place of the database of the settings."""

from __future__ import annotations

from torana.config.settings import Settings
from torana.errors import ConfigInvalid
from torana.store.engine.places import DatabasePlace, PostgresPlace, SqlitePlace


def database_place(settings: Settings) -> DatabasePlace:
    """Return the place of the database.

    Raises ``ConfigInvalid`` if the library for it is missing, or for replicas without PostgreSQL.
    """
    if settings.database_url is None:
        if settings.replicas:
            raise ConfigInvalid("replicas: several gateways need a PostgreSQL database; set database_url")
        return SqlitePlace(settings.data_dir)
    return PostgresPlace(
        settings.database_url.get_secret_value(),
        data_dir=settings.data_dir,
        replicated=settings.replicas,
        cluster=settings.cluster,
    )
