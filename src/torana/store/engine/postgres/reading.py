"""Read a PostgreSQL database without changing it, whether a gateway is running or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from torana.errors import DatabaseUnusable
from torana.store.engine.migrate import HEAD
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.schema import check_cluster, revision
from torana.store.engine.sqlite import only_transaction

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")


def read_tables(url: PostgresUrl, work: Callable[[Connection], T], *, cluster: str | None = None) -> T:
    """Return the result of ``work``, which sees the database of the deployment ``cluster`` at one moment.

    Raises ``DatabaseUnusable`` for a database without tables, that cannot be read, or of another deployment,
    and ``DatabaseTooNew``.
    """

    def read(connection: Connection) -> T:
        current = revision(connection, str(url))
        if current is None:
            raise DatabaseUnusable(
                f"the PostgreSQL database {url} has no tables yet; start the gateway with `torana serve`"
            )
        if current == HEAD:  # the tables of earlier revisions may lack the name
            check_cluster(connection, str(url), cluster)
        return work(connection)

    return read_database(url, read)


def check_tables(url: PostgresUrl) -> bool:
    """Return whether the database has Torana's tables. Raises as ``read_tables`` does."""
    return read_database(url, lambda connection: revision(connection, str(url))) is not None


def read_database(url: PostgresUrl, work: Callable[[Connection], T]) -> T:
    """Return the result of ``work`` for a database that may have no tables. Raises ``DatabaseUnusable``."""
    try:
        with only_transaction(url.engine(lambda: _connect(url))) as connection:
            return work(connection)
    except DBAPIError as error:
        raise url.unusable(error.orig) from error


def _connect(url: PostgresUrl) -> psycopg.Connection:
    from psycopg import IsolationLevel

    connection = url.connect("reader", target_session_attrs="any")
    # A slow reader holds no locks that a gateway waits for.
    connection.execute("SET idle_in_transaction_session_timeout = 0")
    connection.autocommit = False
    connection.read_only = True
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    return connection
