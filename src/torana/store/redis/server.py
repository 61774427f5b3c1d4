"""Connections to Redis or Valkey through redis-py, which is imported only if it is used."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from torana.errors import ConfigInvalid, OperatorError
from torana.installation import this_installation

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: The purposes for which the gateway uses the server.
RedisPurpose = Literal["publish", "follow", "rates"]

#: Parameters of redis-py; those in the address come first.
_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": 2,
    "socket_timeout": 2,
    "health_check_interval": 10,
    "max_connections": 20,
    "timeout": 2,
    "protocol": 2,
    "client_name": "torana",
}

#: A key that checks whether the server can be written, and the seconds for which it remains.
_PROBE = "torana:probe"
_PROBE_SECONDS = 10

_log = logging.getLogger(__name__)


class RedisUnavailable(Exception):
    """The Redis server did not execute a command."""


class RedisServer:
    """A server, with its password, which no text of this object contains.

    ``redis_lost`` is logged once when commands begin to fail, and ``redis_restored`` when those of every
    purpose work again.
    """

    def __init__(self, url: str) -> None:
        """Raise ``ConfigInvalid`` if redis-py is missing or cannot read the address."""
        redis = _import()
        try:
            parts = urlsplit(url)
            retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), retries=0)
            pool = redis.asyncio.BlockingConnectionPool.from_url(url, retry=retry, **_OPTIONS)
            pool.make_connection()  # checks the parameters
            target = f"{parts.hostname or ''}:{parts.port or 6379}" if parts.scheme != "unix" else ""
        except (ValueError, TypeError):  # the text contains the address
            raise ConfigInvalid(
                "redis_url: the address cannot be read; write it as redis://user:password@host:6379/0, with "
                "special characters in percent-encoding"
            ) from None
        self._target = f"{target}{parts.path}"
        self._client: Redis = redis.asyncio.Redis.from_pool(pool)
        self._errors = (redis.RedisError, OSError)
        self._failing: set[RedisPurpose] = set()

    def __str__(self) -> str:
        """Return the host, the port and the number of the database."""
        return self._target

    __repr__ = __str__

    @property
    def works(self) -> bool:
        """Return whether the last commands of all purposes were executed."""
        return not self._failing

    @asynccontextmanager
    async def use(self, purpose: RedisPurpose) -> AsyncGenerator[Redis]:
        """Execute commands. Raises ``RedisUnavailable`` if one fails, and notes the failure or the success."""
        try:
            yield self._client
        except self._errors as error:
            self._note_failure(purpose, error)
            raise RedisUnavailable(str(error)) from error
        self.note_success(purpose)

    def note_success(self, purpose: RedisPurpose) -> None:
        """Note that commands of this purpose are executed."""
        if purpose in self._failing:
            self._failing.discard(purpose)
            if not self._failing:
                _log.info("redis_restored", extra={"server": str(self)})

    async def probe(self, purpose: RedisPurpose) -> None:
        """Write a key that soon expires. Raises ``RedisUnavailable``."""
        async with self.use(purpose) as client:
            await client.set(_PROBE, "", ex=_PROBE_SECONDS)

    async def close(self) -> None:
        """Close all connections; a server that does not answer prevents nothing."""
        with suppress(*self._errors):
            await self._client.aclose()

    async def describe(self) -> str:
        """Return the name, the version and the latency of the server. Raises ``OperatorError``."""
        try:
            found: dict[str, Any] = await cast("Any", self._client).info("server")
            started = time.perf_counter()
            await self._client.set(_PROBE, "", ex=_PROBE_SECONDS)
            seconds = time.perf_counter() - started
        except self._errors as error:
            raise OperatorError(
                f"the Redis server {self} cannot be used: {error}; until it works, replicas share neither "
                "deltas nor rate limits"
            ) from error
        finally:
            await self.close()
        version = found.get("valkey_version") or found.get("redis_version")
        name = "Valkey" if "valkey_version" in found else "Redis"
        return f"{name} {version} on {self}, writes in {seconds * 1000:.1f} ms"

    def _note_failure(self, purpose: RedisPurpose, error: BaseException) -> None:
        if not self._failing:
            reason = str(error) or type(error).__name__
            _log.warning("redis_lost", extra={"server": str(self), "purpose": purpose, "reason": reason})
        self._failing.add(purpose)


def _import() -> Any:
    """Return redis-py. Raises ``ConfigInvalid`` with the command that installs it."""
    try:
        import redis.asyncio  # pyright: ignore[reportUnusedImport] - an attribute of redis
    except ImportError as error:
        command = this_installation().extra_command("postgres,redis")
        raise ConfigInvalid(
            f"redis_url: the library for Redis is not installed; install it with: {command}"
        ) from error
    return redis
