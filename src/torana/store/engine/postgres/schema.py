"""Create the tables in PostgreSQL, or upgrade them to this program's revision."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.errors import DatabaseBusy, DatabaseTooNew, DatabaseUnusable
from torana.store.engine.migrate import HEAD, POSTGRES_MIGRATIONS, is_additive, revisions, run_migrations
from torana.store.engine.postgres.announcements import TRIGGERS
from torana.store.engine.postgres.connection import OLDEST
from torana.store.engine.postgres.erasures import ERASURES
from torana.store.engine.tables import metadata

#: The first half of the keys of Torana's advisory locks: "tora" in ASCII.
LOCK_SPACE = 0x746F7261

#: The table that marks an unfinished copy of another database.
UNFINISHED_COPY = "unfinished_copy"

#: Seconds without a committed transaction after which another replica may take over.
LEASE = 8

#: The processes that may write: the number of the last transaction of each, and the end of its lease.
REPLICAS_TABLE = """
CREATE TABLE replicas (
    id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    version TEXT COLLATE "C" NOT NULL,
    commits BIGINT NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    lease_until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_replicas PRIMARY KEY (id)
)
"""
#: The name of the deployment that uses the database; no row without ``TORANA_CLUSTER``.
CLUSTER_TABLE = 'CREATE TABLE cluster (name TEXT COLLATE "C" NOT NULL)'

#: Delete the leases of replicas that have ended; a holder is ``<replica>#<account>``.
FREE_ACCOUNTS = "DELETE FROM leases WHERE split_part(holder, '#', 1) NOT IN (SELECT id FROM replicas)"

#: Creates or upgrades the tables of a connection; the text names the database in errors.
Prepare: TypeAlias = Callable[[Connection, str], None]

_VERSION_TABLE = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"

_log = logging.getLogger(__name__)


def prepare(connection: Connection, target: str) -> None:
    """Create the tables or upgrade them to ``HEAD``, in the connection's transaction; no other process writes.

    ``target`` names the database in errors. Raises ``DatabaseUnusable`` and ``DatabaseTooNew``.
    """
    check_server(connection, target)
    current = revision(connection, target)
    if current is None:
        create_tables(connection)
    elif current != HEAD:
        run_migrations(connection, "head", POSTGRES_MIGRATIONS)
        _log.info("database_upgraded", extra={"from": current, "to": HEAD})


def prepare_cluster(connection: Connection, target: str, *, cluster: str | None) -> None:
    """Prepare the tables for the deployment ``cluster``, whose name is stored if there is none yet.

    Raises ``DatabaseUnusable`` for the database of another deployment.
    """
    prepare(connection, target)
    claim_cluster(connection, target, cluster)


def claim_cluster(connection: Connection, target: str, cluster: str | None) -> None:
    """Store the name of the deployment if there is none yet. Raises as ``check_cluster`` does."""
    if check_cluster(connection, target, cluster) is None and cluster is not None:
        connection.exec_driver_sql("INSERT INTO cluster VALUES (%s)", (cluster,))


def check_cluster(connection: Connection, target: str, cluster: str | None) -> str | None:
    """Return the stored name of the deployment, if there is one.

    Raises ``DatabaseUnusable`` for the database of another deployment.
    """
    stored = connection.exec_driver_sql("SELECT name FROM cluster").scalar()
    if stored is not None and stored != cluster:
        own = f"{cluster!r}" if cluster else "without a name"
        raise DatabaseUnusable(
            f"the PostgreSQL database {target} belongs to the cluster {stored!r}, and this gateway is {own}. "
            "Name another database with TORANA_DATABASE_URL. If the gateway belongs to that cluster, set "
            f"TORANA_CLUSTER={stored}. If the database is a copy for another cluster, "
            "change the name in its table cluster"
        )
    return None if stored is None else str(stored)


def read_identity(connection: Connection) -> str:
    """Return a text that differs from that of any other database; a standby server that takes over keeps it.

    Databases of two servers may have the same text if the user may not read the server's identifier.
    """
    number = connection.exec_driver_sql("SELECT oid FROM pg_database WHERE datname = current_database()")
    may_read = connection.exec_driver_sql("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")
    server = ""
    if may_read.scalar_one():
        control = connection.exec_driver_sql("SELECT system_identifier FROM pg_control_system()")
        server = str(control.scalar_one())
    return f"{server}/{number.scalar_one()}"


def check_upgrade(connection: Connection, target: str) -> None:
    """Raise ``DatabaseBusy`` if running replicas of an older version cannot work with upgraded tables."""
    current = revision(connection, target)
    if current not in (None, HEAD) and not is_additive(current, POSTGRES_MIGRATIONS):
        raise DatabaseBusy(
            f"the PostgreSQL database {target} is used by replicas of an older version, which cannot work "
            f"with its tables after the upgrade to revision {HEAD}. Stop them, then start this version"
        )


def revision(connection: Connection, target: str, *, unfinished: bool = False) -> str | None:
    """Return the revision of the tables; None if there are none.

    Raises ``DatabaseTooNew`` for an unknown revision, and ``DatabaseUnusable`` for another program's tables. An
    unfinished copy raises it too, unless ``unfinished``.
    """
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        return None
    if UNFINISHED_COPY in tables and not unfinished:
        raise DatabaseUnusable(
            f"the PostgreSQL database {target} is an unfinished copy. Continue it with `torana database copy "
            "--to postgresql`, or name another database with TORANA_DATABASE_URL"
        )
    if not {"alembic_version", "turns", "memories"}.issubset(tables):
        raise DatabaseUnusable(
            f"the PostgreSQL database {target} has tables of another program; create a database for Torana "
            "alone: CREATE DATABASE torana ENCODING 'UTF8' TEMPLATE template0"
        )
    current = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if current not in revisions(POSTGRES_MIGRATIONS):
        raise DatabaseTooNew(
            f"the database is at revision {current}, which this version does not know: a newer Torana wrote "
            "it. Install that version, or restore a backup made with this one into an empty database"
        )
    return str(current)


def create_tables(connection: Connection) -> None:
    """Create the newest tables without Alembic, whose import is slow."""
    copy_conditions()
    metadata.create_all(connection, checkfirst=False)
    for statement in (REPLICAS_TABLE, CLUSTER_TABLE, *TRIGGERS, *ERASURES):
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql(_VERSION_TABLE)
    connection.execute(sa.text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def copy_conditions() -> None:
    """Give the partial indices the conditions that they have in SQLite.

    If the indices contained them in advance, every gateway would import the dialect of PostgreSQL (12 MB).
    """
    for table in metadata.tables.values():
        for index in table.indexes:
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]


def check_server(connection: Connection, target: str) -> None:
    """Raise ``DatabaseUnusable`` for a version or an encoding that is not supported."""
    version, encoding = connection.exec_driver_sql(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
    ).one()
    if version < OLDEST:
        raise DatabaseUnusable(
            f"the PostgreSQL server of {target} has version {version // 10_000}; upgrade it to "
            f"{OLDEST // 10_000} or newer"
        )
    if encoding != "UTF8":
        raise DatabaseUnusable(
            f"the PostgreSQL database {target} has the encoding {encoding}, which cannot store every text; "
            "create another: CREATE DATABASE torana ENCODING 'UTF8' TEMPLATE template0"
        )
