"""The Redis server of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torana.config.settings import Settings
from torana.errors import ConfigInvalid

if TYPE_CHECKING:
    from torana.store.redis.server import RedisServer


def redis_server(settings: Settings) -> RedisServer | None:
    """Return the server that replicas share, if there is one; it is not connected yet.

    Raises ``ConfigInvalid`` if the library for it is missing, or for a gateway that is no replica.
    """
    if settings.redis_url is None:
        return None
    if not settings.replicas:
        raise ConfigInvalid("redis_url: only replicas use Redis; set replicas to true, or remove redis_url")
    from torana.store.redis.server import RedisServer

    return RedisServer(settings.redis_url.get_secret_value())
