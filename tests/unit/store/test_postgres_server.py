"""The checks of a PostgreSQL server for ``torana doctor``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import datetime, timedelta

import pytest
from tests.postgres import PostgresServer, create_tables

from torana import __version__
from torana.messages import utc_now
from torana.store.engine.migrate import HEAD
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.server import describe_server

UNSAFE = "no standby server is synchronous, so a fail-over may lose accepted messages"


@pytest.fixture(scope="module")
def server() -> Generator[PostgresServer]:
    """A server whose settings the tests may change."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def configure(server: PostgresServer) -> Generator[Callable[[str], None]]:
    """``configure("name = value")`` changes a setting of the server until the end of the test."""

    def change(setting: str) -> None:
        server.execute(f"ALTER SYSTEM SET {setting}")
        server.execute("SELECT pg_reload_conf()")
        name, _, value = setting.partition(" = ")
        while server.execute(f"SHOW {name}") != [(value.strip("'"),)]:
            pass

    yield change
    server.execute("ALTER SYSTEM RESET ALL")
    server.execute("SELECT pg_reload_conf()")


def describe(
    server: PostgresServer, *, now: Callable[[], datetime] = utc_now, database: str = "postgres"
) -> str:
    return describe_server(PostgresUrl(server.url(database)), now=now)


def test_server_without_a_standby_is_described(server: PostgresServer) -> None:
    described = describe(server)

    assert described.startswith("PostgreSQL ")
    assert "the first start creates the tables" in described
    assert "isolation read committed by default" in described
    assert "no standby server: a loss of its disk loses the data since the last backup" in described
    assert "warning: fsync is off" in described
    assert UNSAFE not in described


def test_asynchronous_standby_is_a_warning(server: PostgresServer) -> None:
    with server.standby():
        described = describe(server)

    assert "standby servers: 1" in described
    assert f"warning: {UNSAFE}" in described


def test_synchronous_standby_is_no_warning(server: PostgresServer, configure: Callable[[str], None]) -> None:
    with server.standby():
        configure("synchronous_standby_names = '*'")
        while not server.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
            pass
        described = describe(server)
        configure("synchronous_commit = local")
        unsafe = describe(server)
        configure("synchronous_standby_names = 'another'")
        waits = describe(server)

    assert "standby servers: 1" in described
    assert "fail-over" not in described
    assert "warning: synchronous_commit is local, so a fail-over may lose accepted messages" in unsafe
    assert "warning: no server of synchronous_standby_names is connected, so commits wait" in waits


def test_commits_that_do_not_wait_for_the_disk_are_a_warning(
    server: PostgresServer, configure: Callable[[str], None]
) -> None:
    configure("synchronous_commit = off")

    assert "warning: synchronous_commit is off" in describe(server)


def test_clocks_that_differ_are_a_warning(server: PostgresServer) -> None:
    described = describe(server, now=lambda: utc_now() - timedelta(seconds=30))

    assert "clock +30." in described
    assert "warning: the clocks differ" in described


def test_replica_of_another_version_is_a_warning(server: PostgresServer) -> None:
    create_tables(server.create("torana"))
    assert f"at revision {HEAD}" in describe(server, database="torana")
    for id_, version in (("rep_1", "0.0.1"), ("rep_2", __version__)):
        lease = "now(), now() + interval '1 h'"
        server.execute(f"INSERT INTO replicas VALUES ('{id_}', 'r', '{version}', 0, {lease})", "torana")

    described = describe(server, database="torana")

    assert f"warning: replicas of version 0.0.1 run, and this is {__version__}" in described
