"""Rows of replicas: the processes that use one PostgreSQL database."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.postgres.schema import FREE_ACCOUNTS, LEASE
from torana.store.engine.tables import active, turns

_replicas = sa.table(
    "replicas",
    sa.column("id"),
    sa.column("name"),
    sa.column("version"),
    sa.column("started_at"),
    sa.column("lease_until"),
)

_RENEW = sa.text("""
UPDATE replicas SET lease_until = clock_timestamp() + make_interval(secs => :seconds)
WHERE id = current_setting('torana.replica', true)
RETURNING coalesce(erased < (SELECT max(number) FROM erasures), false) AS pending
""")
_RENEW_IN_READ = sa.select(_RENEW.columns(sa.column("pending", sa.Boolean)).cte("renewed"))

#: A lease that lasts much longer than a new lease was written when the clock was ahead, and counts as ended.
_IS_ALIVE = sa.literal_column(
    "(lease_until BETWEEN clock_timestamp() AND clock_timestamp() + interval '2 hours')", sa.Boolean()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A process that uses the database; ``alive`` is false after the end of its lease."""

    id: str
    #: The purpose of the process and the name of its machine.
    name: str
    version: str
    started_at: datetime
    lease_until: datetime
    alive: bool
    #: The number of turns that it runs.
    turns: int


#: Whether the lease of a replica has ended.
some_ended = sa.exists().select_from(_replicas).where(~_IS_ALIVE)


def renew(connection: Connection, *, seconds: float = LEASE) -> None:
    """Extend the lease of this replica, by the clock of the database."""
    connection.execute(_RENEW, {"seconds": seconds})


def renew_in_read(connection: Connection) -> bool | None:
    """Extend the lease of this replica outside of a transaction (``Database.read``).

    This needs no lock: only this replica changes its row, and a deleted row is not found. Returns whether there
    are erasures that this replica has not carried out; None if its row was deleted.
    """
    return connection.execute(_RENEW_IN_READ, {"seconds": LEASE}).scalar()


def list_replicas(connection: Connection) -> list[Replica]:
    """Return all replicas, the oldest first."""
    running = sa.select(sa.func.count()).where(active, turns.c.replica == _replicas.c.id).scalar_subquery()
    query = sa.select(_replicas, _IS_ALIVE.label("alive"), running.label("turns"))
    query = query.order_by(_replicas.c.started_at, _replicas.c.id)
    return [Replica(**row) for row in connection.execute(query).mappings()]


def remove(connection: Connection, replicas: Collection[str]) -> list[str]:
    """Delete the named replicas whose lease has ended, and return their names.

    A deleted replica stores nothing more, and other replicas may listen on its accounts.
    """
    ended = sa.delete(_replicas).where(_replicas.c.id.in_(replicas), ~_IS_ALIVE)
    names = list(connection.execute(ended.returning(_replicas.c.name)).scalars())
    connection.exec_driver_sql(FREE_ACCOUNTS)
    return names
