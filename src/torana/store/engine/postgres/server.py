"""Check the PostgreSQL server for ``torana doctor``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy.engine import Connection

from torana import __version__
from torana.errors import DatabaseUnusable
from torana.store.engine.migrate import HEAD
from torana.store.engine.postgres.connection import OWN, PostgresUrl
from torana.store.engine.postgres.reading import read_database
from torana.store.engine.postgres.replicas import list_replicas
from torana.store.engine.postgres.schema import check_server, revision

#: Seconds by which the clocks may differ without a remark.
_CLOCK = 2.0

#: Connections of a gateway: its own two, and those of exports and commands.
_CONNECTIONS = 6

_SERVER = """
SELECT current_setting('server_version'), current_setting('max_connections')::int,
(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), clock_timestamp(),
current_setting('synchronous_commit'), current_setting('fsync'),
has_schema_privilege(coalesce(current_schema(), 'public'), 'CREATE'), pg_database_size(current_database()),
coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false),
current_setting('default_transaction_isolation')
"""

#: Only a user with the role pg_read_all_stats sees the states; for others they are NULL.
_STANDBYS = """
SELECT current_setting('synchronous_standby_names') <> '', count(*), bool_or(sync_state IN ('sync', 'quorum'))
FROM pg_stat_replication
"""


def describe_server(url: PostgresUrl, *, now: Callable[[], datetime]) -> str:
    """Return the state of the server and of the tables, with warnings.

    Raises ``DatabaseUnusable`` for a fault that keeps a gateway from working, and ``DatabaseTooNew``.
    """
    return read_database(url, lambda connection: _describe(connection, str(url), now))


def _describe(connection: Connection, target: str, now: Callable[[], datetime]) -> str:
    check_server(connection, target)
    before = now()
    (version, most, used, clock, commit, fsync, may_create, size, encrypted, isolation) = (
        connection.exec_driver_sql(_SERVER).one()
    )
    ahead = (clock - before - (now() - before) / 2).total_seconds()
    current = revision(connection, target)
    if current is None and not may_create:
        raise DatabaseUnusable(f"the user of {target} may not create tables; {OWN}")
    standbys, unsafe = _describe_standbys(connection, commit)
    others = _other_versions(connection) if current == HEAD else ""
    faults = [
        (most - used < _CONNECTIONS, "few connections are free; raise max_connections"),
        (commit == "off", "synchronous_commit is off: a crash of the server may lose accepted messages"),
        (fsync == "off", "fsync is off: a crash of the machine may destroy the database"),
        (abs(ahead) > _CLOCK, "the clocks differ; set up NTP on both machines"),
        (unsafe, unsafe),
        (others, f"replicas of version {others} run, and this is {__version__}; complete the upgrade"),
    ]
    if current is None:
        tables = "the first start creates the tables"
    elif current == HEAD:
        tables = f"at revision {current}"
    else:
        tables = f"the next start upgrades revision {current} to {HEAD}"
    facts = [
        f"PostgreSQL {version.split()[0]} at {target}, {tables}",
        f"{size / 1e6:.1f} MB",
        f"{used} of {most} connections in use",
        f"isolation {isolation} by default (the gateway uses read committed)",
        f"TLS {'on' if encrypted else 'off'}",
        f"clock {ahead:+.1f} s",
        standbys,
        *(f"warning: {text}" for fault, text in faults if fault),
    ]
    return "; ".join(facts)


def _describe_standbys(connection: Connection, commit: str) -> tuple[str, str]:
    """Return the number of standby servers, and a warning if a fail-over may lose accepted messages."""
    waits, connected, synchronous = connection.exec_driver_sql(_STANDBYS).one()
    if not waits and not connected:
        return "no standby server: a loss of its disk loses the data since the last backup", ""
    warning = ""
    if not waits:
        warning = "no standby server is synchronous, so a fail-over may lose accepted messages; "
        warning += "set synchronous_standby_names"
    elif not connected or synchronous is False:
        warning = "no server of synchronous_standby_names is connected, so commits wait; connect one"
    elif commit == "local":
        warning = "synchronous_commit is local, so a fail-over may lose accepted messages; set it to on"
    return f"standby servers: {connected}", warning


def _other_versions(connection: Connection) -> str:
    """Return the versions of the running replicas that differ from this one."""
    versions = {one.version for one in list_replicas(connection) if one.alive}
    return ", ".join(sorted(versions - {__version__}))
