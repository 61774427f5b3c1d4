"""Faults of a PostgreSQL server: TLS required, missing rights, no free connection, a full disk."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import Generator
from contextlib import aclosing, closing, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.postgres import PostgresServer

from torana.errors import DatabaseUnusable, StoreUnavailable
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.tables import subscriptions as notes

pytestmark = pytest.mark.long

#: The size of a small disk: an empty database needs about 10 MB.
_SMALL_DISK = "32m"


@pytest.fixture(scope="module")
def server() -> Generator[PostgresServer]:
    """A server whose settings the tests may change."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def guest_url(server: PostgresServer) -> Generator[str]:
    """The address of a database whose user is no administrator and owns it."""
    server.execute("CREATE ROLE guest LOGIN")
    server.execute("CREATE DATABASE guests OWNER guest TEMPLATE template0")
    yield server.url("guests").replace("torana:not-needed@", "guest@")
    server.execute("DROP DATABASE guests WITH (FORCE)")
    server.execute("DROP ROLE guest")


@pytest.fixture
def tls_server() -> Generator[PostgresServer]:
    """A server that refuses connections without TLS."""
    with PostgresServer() as server:
        _require_tls(server)
        yield server


@pytest.fixture
def small_disk(server: PostgresServer) -> Generator[Path]:
    """A tablespace ``small`` on a small disk."""
    place = server.directory / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this user cannot mount a small disk")
    try:
        shutil.chown(place, server.directory.owner())
        server.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        yield place
    finally:
        server.execute("DROP DATABASE IF EXISTS crowded WITH (FORCE)")
        server.execute("DROP TABLESPACE IF EXISTS small")
        subprocess.run(["umount", str(place)], check=True)


def note(connection: Connection, text: str) -> None:
    connection.execute(sa.insert(notes), {"event": text, "account": "a"})


def read(connection: Connection) -> set[str]:
    return set(connection.execute(sa.select(notes.c.event)).scalars())


def open_database(url: str, *, replicated: bool = False) -> PostgresDatabase:
    return PostgresDatabase(url=PostgresUrl(url), replicated=replicated)


def test_server_that_requires_tls_refuses_other_connections(tls_server: PostgresServer) -> None:
    url = tls_server.create("secured")

    with pytest.raises(DatabaseUnusable, match="no encryption"):
        open_database(f"{url}?sslmode=disable")

    open_database(f"{url}?sslmode=require").close()


def test_user_without_rights_is_refused_with_the_cure(server: PostgresServer, guest_url: str) -> None:
    server.execute("ALTER DATABASE guests OWNER TO torana")
    server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", "guests")

    with pytest.raises(DatabaseUnusable, match=r"permission denied .* let the user own the database"):
        open_database(guest_url)


def test_start_without_a_free_connection_is_refused(server: PostgresServer, guest_url: str) -> None:
    server.execute("ALTER ROLE guest CONNECTION LIMIT 0")

    with pytest.raises(DatabaseUnusable, match="too many connections"):
        open_database(guest_url)


async def test_replica_without_a_connection_for_announcements_works(
    server: PostgresServer, guest_url: str
) -> None:
    server.execute("ALTER ROLE guest CONNECTION LIMIT 1")
    with closing(await asyncio.to_thread(open_database, guest_url, replicated=True)) as database:
        assert database.announcements is not None
        async with aclosing(database.announcements()) as announcements:
            with pytest.raises(StoreUnavailable):
                await anext(announcements)

        await database.run(partial(note, text="stored"))

        assert await database.run(read) == {"stored"}


async def test_lost_connection_is_replaced_as_soon_as_one_is_free(
    server: PostgresServer, guest_url: str
) -> None:
    with closing(await asyncio.to_thread(open_database, guest_url)) as database:
        server.execute("ALTER ROLE guest CONNECTION LIMIT 0")
        server.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'guest'")
        with pytest.raises(StoreUnavailable):
            await database.run(partial(note, text="refused"))
        server.execute("ALTER ROLE guest CONNECTION LIMIT -1")

        await database.run(partial(note, text="stored"))

        assert await database.run(read) == {"stored"}


@pytest.mark.usefixtures("small_disk")
async def test_full_disk_of_the_server_loses_no_acknowledged_row(server: PostgresServer) -> None:
    server.execute("CREATE DATABASE crowded TABLESPACE small TEMPLATE template0")
    stored: set[str] = set()

    async def store(database: PostgresDatabase) -> None:
        text = secrets.token_hex(1000)
        await database.run(partial(note, text=text))
        stored.add(text)

    async def store_until_refused(database: PostgresDatabase) -> None:
        while True:  # pages that exist have some room left
            await store(database)

    with closing(await asyncio.to_thread(open_database, server.url("crowded"))) as database:
        await store(database)
        _fill(server.url("crowded"))
        with pytest.raises(StoreUnavailable):
            await store_until_refused(database)
        assert not await database.writable()
        assert await database.run(read) == stored
        server.execute("DROP TABLE filler", "crowded")

        await store(database)

        assert await database.run(read) == stored


def _fill(url: str) -> None:
    """Fill the disk of a database with a table of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE filler (body BYTEA)")
        connection.execute("ALTER TABLE filler ALTER body SET STORAGE EXTERNAL")
        for size in (1_000_000, 1_000):
            with suppress(psycopg.errors.DiskFull):
                while True:
                    connection.execute("INSERT INTO filler VALUES (%s)", (secrets.token_bytes(size),))


def _require_tls(server: PostgresServer) -> None:
    key, certificate = server.directory / "key.pem", server.directory / "certificate.pem"
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*new, "-keyout", str(key), "-out", str(certificate)], capture_output=True, check=True)
    key.chmod(0o600)
    for file in (key, certificate):
        shutil.chown(file, server.directory.owner())
    server.execute(f"ALTER SYSTEM SET ssl_key_file = '{key}'")
    server.execute(f"ALTER SYSTEM SET ssl_cert_file = '{certificate}'")
    server.execute("ALTER SYSTEM SET ssl = on")
    ((rules,),) = server.execute("SHOW hba_file")
    Path(str(rules)).write_text("hostssl all all 127.0.0.1/32 trust\n")
    server.stop()
    server.start()
