"""Check the PostgreSQL server for ``torana doctor``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy.engine import Connection

from torana.errors import DatabaseUnusable
from torana.store.engine.migrate import HEAD
from torana.store.engine.postgres.connection import OWN, PostgresUrl
from torana.store.engine.postgres.reading import read_database
from torana.store.engine.postgres.schema import check_server, revision

#: Seconds by which the clocks may differ without a remark.
_CLOCK = 2.0

#: Connections of a gateway: its own, and those of exports and commands.
_CONNECTIONS = 5

_SERVER = """
SELECT current_setting('server_version'), current_setting('max_connections')::int,
(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), clock_timestamp(),
current_setting('synchronous_commit'), current_setting('fsync'),
has_schema_privilege(coalesce(current_schema(), 'public'), 'CREATE'), pg_database_size(current_database()),
coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false),
current_setting('default_transaction_isolation')
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
    faults = [
        (most - used < _CONNECTIONS, "few connections are free; raise max_connections"),
        (commit == "off", "synchronous_commit is off: a crash of the server may lose accepted messages"),
        (fsync == "off", "fsync is off: a crash of the machine may destroy the database"),
        (abs(ahead) > _CLOCK, "the clocks differ; set up NTP on both machines"),
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
        *(f"warning: {text}" for fault, text in faults if fault),
    ]
    return "; ".join(facts)
