"""Connections to PostgreSQL through psycopg, which is imported only if it is used."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from torana.errors import ConfigInvalid, DatabaseUnusable
from torana.installation import this_installation

if TYPE_CHECKING:
    import psycopg
    from psycopg.adapt import AdaptersMap

#: The oldest supported version, as ``server_version_num``.
OLDEST = 140_000

#: The cure for missing rights, and their error.
OWN = "let the user own the database: ALTER DATABASE ... OWNER TO ..."
_NO_RIGHTS = "42501"

#: Settings of each session. The server ends the session of a client that has stopped, or whose network is gone:
#: it must not hold locks for long.
_SESSION = {
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "4s",
    "lock_timeout": "6s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}

_SET = "SELECT {}".format(
    ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SESSION.items())
).encode()

#: Parameters of libpq that detect a server that is gone; those in the URL come first.
_LIBPQ: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "target_session_attrs": "read-write",
}

#: The error of a statement that waited too long for a lock.
LOCKED = "55P03"


class PostgresUrl:
    """The address of a database, with its password, which no text of this object contains."""

    def __init__(self, url: str) -> None:
        """Raise ``ConfigInvalid`` if psycopg is missing or cannot read the address."""
        psycopg = _import()
        try:
            given: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:  # its text contains the address
            raise ConfigInvalid(
                "database_url: the address cannot be read; write it as "
                "postgresql://user:password@host:5432/database, with special characters in percent-encoding"
            ) from None
        self._parameters = _LIBPQ | given
        host = str(given.get("host") or given.get("hostaddr") or "the local socket")
        port = f":{given['port']}" if given.get("port") else ""
        self._target = f"{host}{port}/{given.get('dbname', '')}"

    def __str__(self) -> str:
        """Return the host, the port and the name of the database."""
        return self._target

    __repr__ = __str__

    def connect(self, purpose: str, **options: Any) -> psycopg.Connection:
        """Return a new connection, in autocommit mode without other ``options``. Raises ``psycopg.Error``.

        ``purpose`` is shown to the administrators of the server.
        """
        connection = _import().connect(**self._parameters_for(purpose, options))
        try:
            connection.execute(_SET)
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect_async(self, purpose: str, **options: Any) -> psycopg.AsyncConnection:
        """Return a new connection as ``connect`` does, without blocking the event loop."""
        connection = await _import().AsyncConnection.connect(**self._parameters_for(purpose, options))
        try:
            await connection.execute(_SET)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _parameters_for(self, purpose: str, options: Mapping[str, Any]) -> dict[str, Any]:
        name = f"torana {purpose} on {socket.gethostname()}"[:63]
        own = {"application_name": name, "autocommit": True, "context": _adapters()}
        # Statements are written in UTF-8, whatever the variables of libpq say.
        return {**own, **self._parameters, "client_encoding": "UTF8", **options}

    def engine(self, connect: Callable[[], psycopg.Connection]) -> Engine:
        """Return an engine with one connection, opened by ``connect`` and again after it was lost."""
        return sa.create_engine(
            "postgresql+psycopg://",
            creator=connect,
            poolclass=sa.QueuePool,
            pool_size=1,
            max_overflow=0,
            use_native_hstore=False,
            hide_parameters=True,
        )

    def unusable(self, error: BaseException | None) -> DatabaseUnusable:
        """Return the error for a database that cannot be opened."""
        reason = " ".join(str(error).split()) or type(error).__name__
        cure = f"; {OWN}" if getattr(error, "sqlstate", None) == _NO_RIGHTS else ""
        return DatabaseUnusable(f"the PostgreSQL database {self} cannot be used: {reason}{cure}")


def _import() -> Any:
    """Return psycopg. Raises ``ConfigInvalid`` with the command that installs it."""
    try:
        import psycopg
    except ImportError as error:
        command = this_installation().extra_command("postgres")
        raise ConfigInvalid(
            f"database_url: the library for PostgreSQL is not installed; install it with: {command}"
        ) from error
    return psycopg


@cache
def _adapters() -> AdaptersMap:
    """Return psycopg's conversions with two of our own.

    A text of PostgreSQL cannot contain the character NUL, so it is dropped. The sum of whole numbers is a whole
    number, which psycopg would return as a decimal.
    """
    import psycopg
    from psycopg.adapt import AdaptersMap
    from psycopg.types.numeric import IntLoader
    from psycopg.types.string import StrDumper

    class Dumper(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "") if "\0" in obj else obj)

    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(str, Dumper)
    adapters.register_loader("numeric", IntLoader)
    return adapters
