"""The database on PostgreSQL: transactions, one gateway at a time, and lost connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from contextlib import aclosing, closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from tests.postgres import PostgresProxy, PostgresServer

from torana.errors import ConfigInvalid, DatabaseBusy, DatabaseTooNew, DatabaseUnusable, StoreUnavailable
from torana.store.engine.database import Announcement
from torana.store.engine.dialects import unread
from torana.store.engine.migrate import HEAD, POSTGRES_MIGRATIONS, revisions, run_migrations
from torana.store.engine.places import PostgresPlace
from torana.store.engine.postgres import connection as connection_module
from torana.store.engine.postgres import writer as writer_module
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.postgres.replicas import list_replicas, remove
from torana.store.engine.postgres.schema import LOCK_SPACE
from torana.store.engine.tables import subscriptions as notes
from torana.store.rows.extensions import change_counts

SESSIONS = "pg_stat_activity WHERE application_name LIKE 'torana %' AND datname = current_database()"


@pytest.fixture
def database(postgres_url: str) -> Generator[PostgresDatabase]:
    database = PostgresDatabase(url=PostgresUrl(postgres_url))
    yield database
    database.close()


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Generator[PostgresProxy]:
    proxy = PostgresProxy(postgres_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def behind_proxy(
    postgres_url: str, postgres_server: PostgresServer, proxy: PostgresProxy
) -> Generator[PostgresDatabase]:
    """A database whose connections go through the proxy."""
    url = PostgresUrl(postgres_url.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
    database = PostgresDatabase(url=url)
    yield database
    database.close()


def note(connection: Connection, text: str) -> str:
    connection.execute(sa.insert(notes), {"event": text, "account": "a"})
    return text


def read(connection: Connection) -> list[str]:
    return list(connection.execute(sa.select(notes.c.event).order_by(notes.c.event)).scalars())


def end_sessions(url: str) -> None:
    """End the sessions of gateways, as an administrator or a restart of the server does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM {SESSIONS}".encode())


async def test_waiting_calls_commit_together_in_order(database: PostgresDatabase) -> None:
    done: list[str] = []

    def noted(connection: Connection, text: str) -> str:
        done.append(text)
        return note(connection, text)

    texts = [f"{number:03}" for number in range(200)]
    assert await asyncio.gather(*(database.run(partial(noted, text=text)) for text in texts)) == texts
    assert done == texts
    assert await database.run(read) == texts


async def test_failing_transaction_rolls_back_only_itself(database: PostgresDatabase) -> None:
    def fails(connection: Connection) -> None:
        note(connection, "lost")
        raise ValueError

    def repeats(connection: Connection) -> None:
        note(connection, "lost too")
        note(connection, "first")

    outcomes = await asyncio.gather(
        *(
            database.run(work)
            for work in (partial(note, text="first"), fails, repeats, partial(note, text="last"))
        ),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes] == [str, ValueError, IntegrityError, str]
    assert await database.run(read) == ["first", "last"]


async def test_row_above_a_limit_of_the_server_is_an_error_of_its_transaction_alone(
    database: PostgresDatabase,
) -> None:
    with pytest.raises(OperationalError, match="index row"):
        await database.run(partial(note, text=os.urandom(8_000).hex()))

    assert await database.writable()
    assert await database.run(read) == []


class _FullQueue(psycopg.errors.ProgramLimitExceeded):
    """The error of a COMMIT if the queue of NOTIFY is full, which needs 8 GB."""

    diag = SimpleNamespace(source_function="PreCommit_Notify")  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


async def test_full_queue_of_announcements_is_an_error_of_the_database(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_writer: writer_module.Writer, _connection: Connection) -> bool:
        raise OperationalError("COMMIT", None, _FullQueue("too many notifications in the NOTIFY queue"))

    with monkeypatch.context() as patch:
        patch.setattr(writer_module.Writer, "commit", fail)
        with pytest.raises(StoreUnavailable):
            await database.run(lambda connection: connection.execute(sa.select(1)).scalar_one())
        assert not await database.writable()

    assert await database.run(lambda connection: connection.execute(sa.select(1)).scalar_one()) == 1


async def test_nul_is_dropped_from_texts(database: PostgresDatabase) -> None:
    await database.run(partial(note, text="a\0b"))

    assert await database.run(read) == ["ab"]


def test_second_gateway_is_refused_with_the_holder(
    database: PostgresDatabase, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_LOCK_TIMEOUT", 0)

    with pytest.raises(DatabaseBusy, match=r"is used by 'torana gateway on .*' at 127.0.0.1 since .* Stop it"):
        PostgresDatabase(url=PostgresUrl(postgres_url))


@pytest.fixture
def replicas(postgres_url: str) -> Generator[list[PostgresDatabase]]:
    """Two replicas."""
    opened = [PostgresDatabase(url=PostgresUrl(postgres_url), replicated=True) for _ in range(2)]
    yield opened
    for one in opened:
        one.close()


def end_lease(url: str, replica: PostgresDatabase) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        past = "UPDATE replicas SET lease_until = clock_timestamp() - interval '1 s' WHERE id = %s"
        connection.execute(past.encode(), (replica.replica,))


async def test_transactions_of_replicas_do_not_overlap(replicas: list[PostgresDatabase]) -> None:
    def add_next(connection: Connection) -> None:
        note(connection, f"{len(read(connection)):03}")

    await asyncio.gather(*(replicas[number % 2].run(add_next) for number in range(100)))

    assert await replicas[0].run(read) == [f"{number:03}" for number in range(100)]


async def test_replica_without_its_row_writes_no_more(
    replicas: list[PostgresDatabase], postgres_url: str
) -> None:
    ended, other = replicas
    end_lease(postgres_url, ended)
    names = await other.run(partial(remove, replicas=[str(one.replica) for one in replicas]))
    assert len(names) == 1

    with pytest.raises(StoreUnavailable, match="Another gateway has taken over"):
        await ended.run(partial(note, text="never"))
    assert await other.run(read) == []


async def test_writing_renews_the_lease(replicas: list[PostgresDatabase], postgres_url: str) -> None:
    first, other = replicas
    end_lease(postgres_url, first)
    await first.run(partial(note, text="kept"))

    assert await other.run(partial(remove, replicas=[str(first.replica)])) == []


async def test_replica_ignores_its_own_announcements(replicas: list[PostgresDatabase]) -> None:
    def announce(connection: Connection, session: str) -> None:
        text = "concat(current_setting('torana.replica'), ' ', %s::text)"
        connection.exec_driver_sql(f"SELECT pg_notify('torana', {text})", (session,))

    first, other = replicas
    assert first.announcements is not None
    async with aclosing(first.announcements()) as sessions:
        assert await anext(sessions) == Announcement(is_first=True)
        await first.run(partial(announce, session="own"))
        await other.run(partial(announce, session="theirs"))
        assert await anext(sessions) == Announcement(session="theirs")


def set_back(url: str, revision: str) -> None:
    """Give a database the revision of an older version, without the announcements of the newest one."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = %s", (revision,))
        connection.execute("DROP FUNCTION announce_turn, announce_decision, announce_erasure CASCADE")
        connection.execute(
            "DROP TABLE erasures, cluster, mcp_pins, skill_archives, change_counts, workspace_files, "
            "connector_records"
        )
        connection.execute("ALTER TABLE replicas DROP COLUMN erased")
        for column in ("streamed", "proposed", "checked"):
            connection.execute(f"ALTER TABLE approvals DROP COLUMN {column}".encode())
        connection.execute("ALTER TABLE steps DROP COLUMN text")


async def test_replica_upgrades_the_tables_while_older_replicas_write(postgres_server: PostgresServer) -> None:
    url = postgres_server.create("rolling_upgrade")
    with closing(PostgresDatabase(url=PostgresUrl(url), replicated=True)) as older:
        set_back(url, "0014")

        open_newer = partial(PostgresDatabase, url=PostgresUrl(url), replicated=True)
        with closing(await asyncio.to_thread(open_newer)) as newer:
            await older.run(partial(note, text="old"))
            await newer.run(partial(note, text="new"))
            assert await newer.run(read) == ["new", "old"]
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]


async def test_upgrade_that_older_replicas_do_not_survive_waits_for_their_end(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_LOCK_TIMEOUT", 0.0)
    url = postgres_server.create("upgrade_alone")
    open_replica = partial(PostgresDatabase, url=PostgresUrl(url), replicated=True)
    with closing(await asyncio.to_thread(open_replica)):
        set_back(url, "0013")

        with pytest.raises(DatabaseBusy, match=r"cannot work with its tables .* Stop them"):
            await asyncio.to_thread(open_replica)


async def test_only_a_replica_shares_the_database(
    replicas: list[PostgresDatabase], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_LOCK_TIMEOUT", 0)

    with pytest.raises(DatabaseBusy, match="is used by 'torana gateway on "):
        await asyncio.to_thread(lambda: PostgresDatabase(url=PostgresUrl(postgres_url), purpose="command"))


def test_replicas_of_one_database_have_an_identity_of_their_own(create: Callable[[str], str]) -> None:
    urls = [create("one"), create("other")]

    opened = [PostgresDatabase(url=PostgresUrl(url), replicated=True) for url in (*urls, urls[0])]
    first, other, again = (database.identity for database in opened)
    for database in opened:
        database.close()

    assert first == again != other


@pytest.mark.parametrize(("cluster", "named"), [("test", "'test'"), (None, "without a name")])
def test_gateway_of_another_cluster_is_refused(
    create: Callable[[str], str], tmp_path: Path, cluster: str | None, named: str
) -> None:
    url = create("clusters")
    PostgresPlace(url, data_dir=tmp_path).open().close()
    PostgresPlace(url, data_dir=tmp_path, cluster="production").open().close()

    with pytest.raises(DatabaseUnusable, match=f"the cluster 'production', and this gateway is {named}"):
        PostgresPlace(url, data_dir=tmp_path, cluster=cluster).open()

    PostgresPlace(url, data_dir=tmp_path, cluster="production").open().close()


async def test_closed_replica_leaves_no_row(replicas: list[PostgresDatabase]) -> None:
    first, other = replicas
    await asyncio.to_thread(first.close)

    assert [one.id for one in await other.run(list_replicas)] == [other.replica]


async def test_process_that_is_alone_removes_the_rows_of_killed_ones(
    postgres_url: str, database: PostgresDatabase
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO replicas VALUES ('rep_old', 'gateway', '0', 0, now(), now() + interval '1 h')"
        )
    await asyncio.to_thread(database.close)
    alone = await asyncio.to_thread(lambda: PostgresDatabase(url=PostgresUrl(postgres_url), replicated=True))
    try:
        assert [one.id for one in await alone.run(list_replicas)] == [alone.replica]
    finally:
        await asyncio.to_thread(alone.close)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_connection_lost_at_the_commit_of_a_start_is_replaced(
    postgres_url: str,
    postgres_server: PostgresServer,
    proxy: PostgresProxy,
    moment: Literal["before", "after"],
) -> None:
    proxy.cut = moment
    url = PostgresUrl(postgres_url.replace(f":{postgres_server.port}/", f":{proxy.port}/"))

    database = PostgresDatabase(url=url, replicated=True)
    assert proxy.cut is None
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT id FROM replicas").fetchall() == [(database.replica,)]
    database.close()


async def test_lost_idle_connection_is_replaced_unnoticed(
    database: PostgresDatabase, postgres_url: str
) -> None:
    end_sessions(postgres_url)

    assert await database.run(partial(note, text="kept")) == "kept"


async def test_connection_lost_within_a_transaction_is_replaced_and_the_work_repeated(
    database: PostgresDatabase, postgres_url: str
) -> None:
    runs: list[int] = []

    def loses(connection: Connection) -> None:
        runs.append(len(runs))
        note(connection, "once")
        if len(runs) == 1:
            end_sessions(postgres_url)
            note(connection, "never")

    await database.run(loses)

    assert len(runs) == 2
    assert await database.run(read) == ["once"]


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_conflicting_transaction_is_repeated(database: PostgresDatabase, state: str) -> None:
    runs: list[int] = []

    def conflicts(connection: Connection) -> None:
        runs.append(len(runs))
        note(connection, "once")
        if len(runs) == 1:
            connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$")

    await database.run(conflicts)

    assert len(runs) == 2
    assert await database.run(read) == ["once"]


async def test_commit_without_an_answer_that_was_done_is_not_repeated(
    behind_proxy: PostgresDatabase, proxy: PostgresProxy
) -> None:
    runs: list[int] = []

    def counted(connection: Connection) -> str:
        runs.append(len(runs))
        return note(connection, "once")

    proxy.cut = "after"
    assert await behind_proxy.run(counted) == "once"

    assert len(runs) == 1
    assert await behind_proxy.run(read) == ["once"]


async def test_commit_without_an_answer_that_was_not_done_is_repeated(
    behind_proxy: PostgresDatabase, proxy: PostgresProxy
) -> None:
    runs: list[int] = []

    def counted(connection: Connection) -> str:
        runs.append(len(runs))
        return note(connection, "once")

    proxy.cut = "before"
    assert await behind_proxy.run(counted) == "once"

    assert len(runs) == 2
    assert await behind_proxy.run(read) == ["once"]


async def test_gateway_whose_database_was_used_by_another_writes_no_more(
    database: PostgresDatabase, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def taken_over() -> None:
        end_sessions(postgres_url)
        PostgresDatabase(url=PostgresUrl(postgres_url)).close()

    await asyncio.to_thread(taken_over)

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="Another gateway has taken over"):
            await database.run(partial(note, text="never"))
    assert await database.writable() is False
    assert [record.message for record in caplog.records].count("database_taken_over") == 1


async def test_database_is_unavailable_while_another_gateway_holds_the_lock(
    database: PostgresDatabase, postgres_url: str
) -> None:
    end_sessions(postgres_url)
    other = await asyncio.to_thread(lambda: PostgresDatabase(url=PostgresUrl(postgres_url)))
    with pytest.raises(StoreUnavailable):
        await database.run(partial(note, text="never"))
    other.close()


async def test_erased_rows_are_rewritten(database: PostgresDatabase) -> None:
    await database.run(partial(note, text="a"))

    await database.rewrite()

    assert await database.empty_log()
    assert await database.run(read) == ["a"]


async def test_rows_are_not_rewritten_while_a_backup_reads_them(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_SESSION", {"lock_timeout": "100ms"})
    database = await asyncio.to_thread(lambda: PostgresDatabase(url=PostgresUrl(postgres_url)))
    with psycopg.connect(postgres_url) as reader:
        reader.execute("LOCK TABLE attachments IN ACCESS SHARE MODE")
        with pytest.raises(StoreUnavailable, match="such as `torana backup`, reads the database"):
            await database.rewrite()
    assert await database.writable()
    await database.rewrite()
    await asyncio.to_thread(database.close)


async def test_closed_database_raises(postgres_url: str) -> None:
    database = await asyncio.to_thread(lambda: PostgresDatabase(url=PostgresUrl(postgres_url)))
    database.close()
    database.close()

    with pytest.raises(StoreUnavailable):
        await database.run(read)


async def test_sums_are_whole_numbers(database: PostgresDatabase) -> None:
    total = await database.run(
        lambda connection: connection.execute(sa.select(sa.func.sum(sa.literal(3)))).scalar()
    )

    assert (total, type(total)) == (3, int)


@pytest.fixture
def create(postgres_server: PostgresServer) -> Generator[Callable[[str], str]]:
    """``create(name)`` creates an empty database, which is dropped at the end, and returns its URL."""
    created: list[str] = []

    def make(name: str) -> str:
        created.append(name)
        return postgres_server.create(name)

    yield make
    for name in created:
        postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_tables_of_another_program_are_refused(create: Callable[[str], str]) -> None:
    url = create("foreign_tables")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id int)")

    with pytest.raises(DatabaseUnusable, match="has tables of another program; create a database for Torana"):
        PostgresDatabase(url=PostgresUrl(url))


def test_newer_database_is_refused(create: Callable[[str], str]) -> None:
    url = create("newer")
    PostgresDatabase(url=PostgresUrl(url)).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(DatabaseTooNew, match="revision 9999"):
        PostgresDatabase(url=PostgresUrl(url))


def test_other_encoding_is_refused(postgres_server: PostgresServer, create: Callable[[str], str]) -> None:
    url = create("latin")
    postgres_server.execute("DROP DATABASE latin")
    postgres_server.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")

    with pytest.raises(DatabaseUnusable, match="encoding LATIN1"):
        PostgresDatabase(url=PostgresUrl(url))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("/tables", "/missing"), 'database "missing" does not exist'),
        (("127.0.0.1:", "127.0.0.1:1"), "port"),
    ],
)
def test_unreachable_database_is_refused_without_its_password(
    postgres_tables: str, change: tuple[str, str], reason: str
) -> None:
    with pytest.raises(DatabaseUnusable) as caught:
        PostgresDatabase(url=PostgresUrl(postgres_tables.replace(*change)))

    assert reason in caught.value.detail
    assert "not-needed" not in caught.value.detail


def test_unreadable_address_is_refused_without_its_text() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        PostgresUrl("postgresql://ann:secret word@host:port:x/d?nonsense")

    assert "secret" not in str(caught.value.detail)


def test_migrations_build_the_tables(create: Callable[[str], str]) -> None:
    built, migrated = create("built"), create("migrated")
    PostgresDatabase(url=PostgresUrl(built)).close()
    engine = sa.create_engine(migrated.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        run_migrations(connection, "head", POSTGRES_MIGRATIONS)
    engine.dispose()

    assert layout(migrated) == layout(built)
    assert max(revisions(POSTGRES_MIGRATIONS)) == HEAD


def layout(url: str) -> list[tuple[object, ...]]:
    """Return all columns, constraints, indices, triggers and functions."""
    queries = (
        """SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name,
        generation_expression FROM information_schema.columns WHERE table_schema = 'public'""",
        """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace""",
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "SELECT tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    )
    with psycopg.connect(url) as connection:
        found = [row for query in queries for row in connection.execute(query.encode())]
    ours = [row for row in found if row[0] != "alembic_version"]
    assert {"turns", "message_words", "replicas", "announce_turn"} <= {row[0] for row in ours}
    return sorted(ours, key=repr)


def test_gateway_on_sqlite_does_not_import_the_parts_for_postgresql(imported_at_start: frozenset[str]) -> None:
    parts = ("psycopg", "sqlalchemy.dialects.postgresql")
    assert [name for name in imported_at_start if name.startswith(parts)] == []


async def test_read_sees_the_newest_data_while_another_process_writes(postgres_server: PostgresServer) -> None:
    url = postgres_server.create("beside")
    with (
        closing(PostgresDatabase(url=PostgresUrl(url), replicated=True)) as first,
        closing(PostgresDatabase(url=PostgresUrl(url), replicated=True)) as second,
        psycopg.connect(url) as holder,
    ):
        await first.run(partial(change_counts.count, subject="skills"))
        holder.execute("SELECT pg_advisory_xact_lock(%s, 3)", (LOCK_SPACE,))  # the lock of the one who writes

        query = sa.select(change_counts.number_of("skills"))
        assert await second.read(lambda connection: connection.execute(query).scalar_one()) == 1


async def test_change_in_a_read_is_refused(database: PostgresDatabase) -> None:
    with pytest.raises(RuntimeError, match="a read has changed the database"):
        await database.read(partial(change_counts.count, subject="skills"))


async def test_error_of_one_read_does_not_affect_the_others(database: PostgresDatabase) -> None:
    def fail(connection: Connection) -> None:
        connection.exec_driver_sql("SELECT 1 / 0")

    def look(connection: Connection) -> int:
        return connection.exec_driver_sql("SELECT 1").scalar_one()

    results = await asyncio.gather(
        database.read(look), database.read(fail), database.read(look), return_exceptions=True
    )

    assert results[0] == results[2] == 1
    assert isinstance(results[1], DBAPIError)


def note_unread(connection: Connection, *texts: str) -> None:
    """Note texts by changes that wait for the next statement."""
    connection.execute(unread(sa.insert(notes)), [{"event": text, "account": "a"} for text in texts])


async def test_changes_that_wait_are_seen_by_the_next_statement_and_committed(
    database: PostgresDatabase,
) -> None:
    def work(connection: Connection) -> list[str]:
        note_unread(connection, "50 %")
        seen = read(connection)
        note_unread(connection, "it's \\ two", "nul \0")
        return seen

    assert await database.run(work) == ["50 %"]
    assert await database.run(read) == ["50 %", "it's \\ two", "nul "]


@pytest.mark.parametrize("encoding", ["LATIN1", "SJIS"])
async def test_client_encoding_of_the_environment_changes_no_text(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    with closing(PostgresDatabase(url=PostgresUrl(postgres_url))) as database:
        await database.run(lambda connection: note_unread(connection, "é", "あ表\\'"))

        assert await database.run(read) == ["é", "あ表\\'"]


async def test_error_of_a_change_that_waits_is_that_of_its_transaction_alone(
    database: PostgresDatabase,
) -> None:
    outcomes = await asyncio.gather(
        database.run(lambda connection: note_unread(connection, "first")),
        database.run(lambda connection: note_unread(connection, "lost", "first")),
        database.run(lambda connection: note_unread(connection, "last")),
        return_exceptions=True,
    )
    with pytest.raises(IntegrityError):
        await database.run(lambda connection: note_unread(connection, "lost", "last"))

    assert [type(outcome) for outcome in outcomes] == [type(None), IntegrityError, type(None)]
    assert await database.run(read) == ["first", "last"]


async def test_failed_savepoint_loses_only_its_own_changes(database: PostgresDatabase) -> None:
    def work(connection: Connection) -> None:
        note_unread(connection, "before")
        with suppress(IntegrityError), connection.begin_nested():
            note_unread(connection, "within")
            note_unread(connection, "before")
        with suppress(ValueError), connection.begin_nested():
            note_unread(connection, "within")
            raise ValueError
        with suppress(ValueError), connection.begin_nested():
            note_unread(connection, "within")
            read(connection)
            raise ValueError
        note_unread(connection, "after")

    await database.run(work)

    assert await database.run(read) == ["after", "before"]


async def test_change_that_waits_in_a_read_is_refused(database: PostgresDatabase) -> None:
    with pytest.raises(RuntimeError, match="a read has changed the database"):
        await database.read(lambda connection: note_unread(connection, "text"))

    assert await database.run(read) == []


async def test_rows_of_a_cursor_include_the_changes_that_wait(database: PostgresDatabase) -> None:
    def work(connection: Connection) -> list[str]:
        note_unread(connection, "a", "b", "c")
        query = sa.select(notes.c.event).order_by(notes.c.event)
        with connection.execute(query, execution_options={"yield_per": 2}) as rows:
            return list(rows.scalars())

    assert await database.run(work) == ["a", "b", "c"]


def prepared(connection: Connection) -> list[str]:
    """Return the names of the prepared statements, if one of them adds notes."""
    query = "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%%INSERT INTO subscriptions%%'"
    return list(connection.exec_driver_sql(query).scalars())


async def test_frequent_change_is_prepared_once_for_a_connection(
    postgres_url: str, database: PostgresDatabase
) -> None:
    async def note_all(numbers: range) -> None:
        for number in numbers:
            await database.run(lambda connection, text=f"{number:02} %": note_unread(connection, text))

    await note_all(range(5))
    names = await database.run(prepared)
    await note_all(range(5, 10))
    assert names
    assert await database.run(prepared) == names

    end_sessions(postgres_url)
    assert not await database.run(prepared)
    await note_all(range(10, 20))
    assert await database.run(prepared)
    assert await database.run(read) == [f"{number:02} %" for number in range(20)]


async def test_change_is_prepared_although_its_first_messages_failed(database: PostgresDatabase) -> None:
    await database.run(lambda connection: note_unread(connection, "a"))
    for _ in range(5):
        with pytest.raises(IntegrityError):
            await database.run(lambda connection: note_unread(connection, "lost", "a"))
    await database.run(lambda connection: note_unread(connection, "b"))
    await database.run(lambda connection: note_unread(connection, "c"))

    assert await database.run(prepared)
    assert await database.run(read) == ["a", "b", "c"]


async def test_rolled_back_savepoint_may_contain_the_first_execution_to_prepare(
    database: PostgresDatabase,
) -> None:
    def work(connection: Connection) -> None:
        note_unread(connection, "a", "b")
        with suppress(ValueError), connection.begin_nested():
            note_unread(connection, "lost")
            raise ValueError
        note_unread(connection, "c", "d")

    await database.run(work)

    assert await database.run(read) == ["a", "b", "c", "d"]
