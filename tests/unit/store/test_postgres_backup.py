"""Backups of PostgreSQL databases, restored into databases of both kinds."""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from tests.postgres import PostgresProxy, PostgresServer

from torana.errors import (
    BackupInvalid,
    DatabaseBusy,
    DatabaseTooNew,
    DatabaseUnusable,
    DataDirUnusable,
    OperatorError,
    StoreUnavailable,
)
from torana.store.backup.archive import DATABASE_NAME, Restored, restore_backup, write_backup
from torana.store.backup.postgres import PostgresBackupTarget
from torana.store.backup.targets import BackupTarget, SqliteBackupTarget
from torana.store.engine.integrity import check_restorable
from torana.store.engine.migrate import HEAD, migrate, run_migrations
from torana.store.engine.places import PostgresPlace
from torana.store.engine.postgres import connection as connection_module
from torana.store.engine.postgres import writer as writer_module
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.postgres.writer import Writer
from torana.store.engine.sqlite import sqlite_engine
from torana.store.engine.table_copy import read_last_number, tables_to_copy
from torana.store.engine.tables import deliveries, message_words, metadata, sessions, turns
from torana.store.rows.reports import memory_index

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
KEPT = f"{DATABASE_NAME}.replaced-20260302T093000Z"

#: More rows than a page; one of them is deleted from a table, which has a full page then.
MANY = 101

#: Two channels that differ by a character that PostgreSQL does not store.
TWINS = """
UPDATE sessions SET owner = 'o', channel = CASE id WHEN 'id 001' THEN 'c' ELSE 'c' || char(0) END
WHERE id < 'id 002'
"""

Rows = dict[str, list[dict[str, Any]]]


def ignore(_done: int, _all: int) -> None:
    """Ignore the progress."""


def value_of(column: sa.Column[Any], number: int) -> Any:
    """Return a value of a column's type, which differs between rows."""
    if column.foreign_keys:
        return f"id {number:03}"
    if isinstance(column.type, sa.Boolean):
        return number % 2 == 1
    if isinstance(column.type, sa.Integer | sa.BigInteger):
        return number + (1 << 40)
    if isinstance(column.type, sa.Float):
        return number + 0.1
    if isinstance(column.type, sa.LargeBinary):
        return bytes([number % 256, number // 256, 0])
    if isinstance(column.type, sa.Text):
        return f"{column.name} {number:03}"
    return AT + timedelta(days=number, microseconds=number)


def fill(connection: Connection, numbers: Sequence[int] = range(3)) -> None:
    """Add a row with each number to each table, and two words to the text indexes."""
    for table in metadata.sorted_tables:
        rows = [{column.name: value_of(column, number) for column in table.c} for number in numbers]
        connection.execute(sa.insert(table), rows)
    for number in numbers:
        memory_index.add(connection, "owner", f"id {number:03}", f"Tea 東京 {number}")
        row = {"rowid": number + (1 << 40), "owner": "o", "session": "s", "words": "tea"}
        connection.execute(sa.insert(message_words), row)


def rows_of(engine: Engine) -> Rows:
    """Return all rows of all tables, without the leases of processes that have ended."""
    with engine.begin() as connection:
        return {
            table.table.name: [row for page in table.pages(connection) for row in page]
            for table in tables_to_copy()
            if table.table.name != "leases"
        }


def connect(url: str) -> Engine:
    parsed = PostgresUrl(url)
    return parsed.engine(lambda: parsed.connect("test", autocommit=False))


@pytest.fixture
def engine(postgres_url: str) -> Generator[Engine]:
    """A connection to the PostgreSQL database."""
    engine = connect(postgres_url)
    yield engine
    engine.dispose()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data directory of a gateway on PostgreSQL, with a skill."""
    directory = tmp_path / "data"
    (directory / "skills" / "tea").mkdir(parents=True)
    (directory / "skills" / "tea" / "SKILL.md").write_text("# Tea\n")
    return directory


@pytest.fixture
def database(postgres_url: str, data_dir: Path) -> PostgresBackupTarget:
    """The PostgreSQL database with its data directory."""
    return PostgresBackupTarget(url=PostgresUrl(postgres_url), data_dir=data_dir)


def back_up(database: BackupTarget, data_dir: Path, progress: Callable[[int, int], None] = ignore) -> Path:
    target = data_dir.with_name("backup.zip")
    skill = data_dir / "skills" / "tea" / "SKILL.md"
    files = [("tea/SKILL.md", skill)] if skill.exists() else []
    write_backup(
        database=database,
        data_dir=data_dir,
        skill_files=files,
        target=target,
        version="1.2.3",
        at=AT,
        progress=progress,
    )
    return target


def restore(source: Path, database: BackupTarget, data_dir: Path) -> Restored:
    return restore_backup(
        source=source,
        database=database,
        data_dir=data_dir,
        skills_dir=data_dir / "skills",
        at=AT,
        progress=ignore,
    )


def archive_of(database: Path, data_dir: Path) -> Path:
    """Return a backup with this SQLite file and a matching digest."""
    target = data_dir.with_name("prepared.zip")
    body = database.read_bytes()
    manifest = {"version": "1.2.3", "createdAt": AT.isoformat(), "sha256": hashlib.sha256(body).hexdigest()}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(DATABASE_NAME, body)
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("skills/tea/SKILL.md", "# Another\n")
    return target


def test_postgresql_is_restored_with_all_rows_and_numbers(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path
) -> None:
    with engine.begin() as connection:
        fill(connection, range(MANY))
        connection.execute(sa.delete(deliveries).where(deliveries.c.number == (1 << 40) + MANY - 1))
        connection.exec_driver_sql(f"SELECT setval('deliveries_number_seq', {(1 << 40) + MANY - 1})")
    expected = rows_of(engine)
    backup = back_up(database, data_dir)
    (data_dir / "skills" / "tea" / "SKILL.md").write_text("# Changed\n")
    with engine.begin() as connection:
        connection.execute(sa.update(turns).values(content="changed"))
        connection.exec_driver_sql("SELECT setval('deliveries_number_seq', 1)")

    restored = restore(backup, database, data_dir)

    assert restored == Restored(version="1.2.3", created_at=AT.isoformat(), skill_files=1, replaced=True)
    assert rows_of(engine) == expected
    assert min(len(rows) for rows in expected.values()) >= MANY - 1
    assert (data_dir / "skills" / "tea" / "SKILL.md").read_text() == "# Tea\n"
    with engine.begin() as connection:
        row = {column.name: value_of(column, MANY) for column in deliveries.c if column.name != "number"}
        row |= {"turn_id": None, "state": "pending"}
        number = connection.execute(sa.insert(deliveries).returning(deliveries.c.number), row).scalar_one()
        memory_index.add(connection, "owner", "new", "coffee")
    assert number == (1 << 40) + MANY


def test_replaced_rows_are_kept_in_a_private_file(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path
) -> None:
    backup = back_up(database, data_dir)
    with engine.begin() as connection:
        fill(connection)
    expected = rows_of(engine)

    restore(backup, database, data_dir)

    assert rows_of(engine) == {name: [] for name in expected}
    kept = data_dir / KEPT
    assert kept.stat().st_mode & 0o777 == 0o600
    check_restorable(kept)
    old = sqlite_engine(kept)
    assert rows_of(old) == expected
    old.dispose()


def test_empty_database_leaves_no_copy(engine: Engine, database: PostgresBackupTarget, data_dir: Path) -> None:
    backup = back_up(database, data_dir)

    restore(backup, database, data_dir)

    assert [file.name for file in data_dir.iterdir() if file.name.startswith(DATABASE_NAME)] == []


def test_backup_of_postgresql_is_restored_into_sqlite(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        fill(connection, range(MANY))
    backup = back_up(database, data_dir)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    restore(backup, SqliteBackupTarget(elsewhere), elsewhere)

    migrate(elsewhere / DATABASE_NAME)
    restored = sqlite_engine(elsewhere / DATABASE_NAME)
    assert rows_of(restored) == rows_of(engine)
    with restored.begin() as connection:
        found = connection.execute(memory_index.holding("owner", ["東京"])).all()
        assert len(found) == MANY
        assert read_last_number(connection) == (1 << 40) + MANY - 1
    restored.dispose()


def test_backup_of_sqlite_is_restored_into_postgresql(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path, path: Path
) -> None:
    old = sqlite_engine(path)
    with old.begin() as connection:
        fill(connection, range(MANY))
    expected = rows_of(old)
    old.dispose()
    backup = back_up(SqliteBackupTarget(path.parent), path.parent)

    restore(backup, database, data_dir)

    assert rows_of(engine) == expected
    with engine.begin() as connection:
        assert len(connection.execute(memory_index.holding("owner", ["東京"])).all()) == MANY
        assert read_last_number(connection) == (1 << 40) + MANY - 1


@pytest.mark.parametrize("revision", ["0001", "0008", "0013"])
def test_backup_of_an_older_revision_is_upgraded(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path, tmp_path: Path, revision: str
) -> None:
    old = sqlite_engine(tmp_path / "old.db")
    with old.begin() as connection:
        run_migrations(connection, revision)
        connection.exec_driver_sql(
            "INSERT INTO sessions (id, owner, channel, next_seq, shared, created_at, updated_at) VALUES "
            "('s', 'ana', 'tea', 7, 0, '2026-03-02 09:30:00.000000', '2026-03-02 09:30:00.000000')"
        )
    old.dispose()

    restore(archive_of(tmp_path / "old.db", data_dir), database, data_dir)

    (session,) = rows_of(engine)["sessions"]
    assert (session["channel"], session["created_at"]) == ("tea", AT)


def test_backup_sees_one_moment_beside_a_writer(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        fill(connection, range(MANY))
    expected = rows_of(engine)
    written: list[int] = []

    def write_between_pages(_done: int, _total: int) -> None:
        if len(written) < 20:
            written.append(MANY + len(written))
            with engine.begin() as connection:
                fill(connection, written[-1:])
                connection.execute(sa.update(turns).values(content="changed"))

    backup = back_up(database, data_dir, write_between_pages)

    assert len(written) == 20
    (tmp_path / "elsewhere").mkdir()
    restore(backup, SqliteBackupTarget(tmp_path / "elsewhere"), tmp_path / "elsewhere")
    copied = sqlite_engine(tmp_path / "elsewhere" / DATABASE_NAME)
    assert rows_of(copied) == expected
    copied.dispose()


@pytest.mark.parametrize("replicated", [False, True])
def test_restore_is_refused_while_a_gateway_uses_the_database(
    engine: Engine,
    database: PostgresBackupTarget,
    data_dir: Path,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    replicated: bool,
) -> None:
    monkeypatch.setattr(writer_module, "_LOCK_TIMEOUT", 0)
    gateway = PostgresDatabase(url=PostgresUrl(postgres_url), replicated=replicated)
    try:
        with engine.begin() as connection:
            fill(connection)
        backup = back_up(database, data_dir)
        expected = rows_of(engine)

        with pytest.raises(DatabaseBusy, match="is used by 'torana gateway on "):
            restore(backup, database, data_dir)
    finally:
        gateway.close()

    assert rows_of(engine) == expected
    assert sorted(file.name for file in data_dir.iterdir()) == ["skills"]


def test_restore_waits_only_shortly_for_a_reader(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_SESSION", {"lock_timeout": "100ms"})
    backup = back_up(database, data_dir)
    with engine.begin() as connection:
        fill(connection)
    with engine.begin() as connection:
        connection.execute(sa.select(sessions.c.id)).all()

        with pytest.raises(DatabaseBusy, match="is being read, restored or rewritten by another program; try"):
            restore(backup, database, data_dir)

    assert len(rows_of(engine)["turns"]) == 3
    assert not (data_dir / KEPT).exists()


def test_backup_waits_only_shortly_for_a_restore(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_SESSION", {"lock_timeout": "100ms"})
    with engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE attachments IN ACCESS EXCLUSIVE MODE")

        with pytest.raises(DatabaseBusy, match="is being read, restored or rewritten by another program"):
            back_up(database, data_dir)

    assert list(data_dir.parent.glob("*.zip")) == []


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("UPDATE turns SET seq = 'many'", 'invalid input syntax for type bigint: "many"'),
        (TWINS, "duplicate key value violates unique"),
        ("UPDATE turns SET created_at = 'yesterday'", "its database has an unreadable value: "),
        ("UPDATE turns SET created_at = 5", "its database has an unreadable value: "),
        ("UPDATE turns SET content = CAST(x'ff' AS TEXT)", "its database cannot be read: "),
        ("UPDATE sqlite_sequence SET seq = 9223372036854775807", "cannot store a value of its database"),
        (
            "UPDATE sqlite_sequence SET seq = 'last'",
            "its database has an unreadable value: invalid literal for int",
        ),
        ("CREATE TRIGGER spy AFTER INSERT ON turns BEGIN DELETE FROM audit; END", "the trigger 'spy' is added"),
        ("DROP TABLE audit", "the table 'audit' is missing"),
        ("PRAGMA foreign_keys=OFF; DELETE FROM sessions", "refers to a missing row"),
    ],
)
def test_hostile_database_is_refused_without_changes(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path, path: Path, sql: str, fault: str
) -> None:
    hostile = sqlite_engine(path)
    with hostile.begin() as connection:
        fill(connection)
    hostile.dispose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.executescript(sql)
    with engine.begin() as connection:
        fill(connection, [7])
    expected = rows_of(engine)

    with pytest.raises(BackupInvalid, match=f"prepared.zip is not a complete backup of Torana .*({fault})"):
        restore(archive_of(path, data_dir), database, data_dir)

    assert rows_of(engine) == expected
    assert (data_dir / "skills" / "tea" / "SKILL.md").read_text() == "# Tea\n"
    assert sorted(file.name for file in data_dir.iterdir()) == ["skills"]
    with engine.begin() as connection:
        assert read_last_number(connection) == 0


def test_backup_of_a_newer_version_is_refused(
    database: PostgresBackupTarget, data_dir: Path, path: Path
) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(DatabaseTooNew, match="9999"):
        restore(archive_of(path, data_dir), database, data_dir)


def test_files_that_cannot_be_placed_leave_the_rows(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path
) -> None:
    backup = back_up(database, data_dir)
    with engine.begin() as connection:
        fill(connection)
    expected = rows_of(engine)

    with pytest.raises(OperatorError, match="cannot put the backup in place"):
        restore_backup(
            source=backup,
            database=database,
            data_dir=data_dir,
            skills_dir=data_dir / "skills" / "tea" / "SKILL.md" / "x",
            at=AT,
            progress=ignore,
        )

    assert rows_of(engine) == expected
    assert sorted(file.name for file in data_dir.iterdir()) == ["skills"]


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Generator[PostgresProxy]:
    proxy = PostgresProxy(postgres_server.port)
    yield proxy
    proxy.close()


def cut_at_commit(
    proxy: PostgresProxy, cut: Literal["before", "after"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut the connection at the COMMIT of the restore."""
    commit = Writer.commit

    def cut_and_commit(writer: Writer, connection: Connection) -> bool:
        proxy.cut = cut
        return commit(writer, connection)

    monkeypatch.setattr(Writer, "commit", cut_and_commit)


def refuse(_writer: Writer, _number: int) -> bool:
    """Behave as a server that cannot be reached."""
    raise StoreUnavailable


@pytest.mark.parametrize(
    ("cut", "reconnects", "done"), [("after", True, True), ("before", True, False), ("after", False, None)]
)
def test_restore_reports_the_outcome_of_an_unconfirmed_commit(
    engine: Engine,
    postgres_url: str,
    postgres_server: PostgresServer,
    proxy: PostgresProxy,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    cut: Literal["before", "after"],
    reconnects: bool,
    done: bool | None,
) -> None:
    url = PostgresUrl(postgres_url.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
    database = PostgresBackupTarget(url=url, data_dir=data_dir)
    backup = back_up(database, data_dir)
    (data_dir / "skills" / "tea" / "SKILL.md").write_text("# Changed\n")
    with engine.begin() as connection:
        fill(connection)
    cut_at_commit(proxy, cut, monkeypatch)
    if not reconnects:
        monkeypatch.setattr(Writer, "was_committed", refuse)

    if done:
        assert restore(backup, database, data_dir).replaced
    else:
        reason = "cannot be used" if done is False else "it is unknown whether it is restored. Run `torana rest"
        with pytest.raises(DatabaseUnusable, match=reason):
            restore(backup, database, data_dir)

    assert (rows_of(engine)["turns"] == []) == (done is not False)
    assert (data_dir / KEPT).exists() == (done is not False)
    assert (data_dir / "skills" / "tea" / "SKILL.md").read_text() == ("# Tea\n" if done else "# Changed\n")


#: Restores a backup, and is killed at its COMMIT.
MORTAL = """
import datetime, os, pathlib, signal, sys
from torana.store.backup.archive import restore_backup
from torana.store.backup.postgres import PostgresBackupTarget
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.writer import Writer

source, data_dir = map(pathlib.Path, sys.argv[2:])
Writer.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
restore_backup(
    source=source, database=PostgresBackupTarget(url=PostgresUrl(sys.argv[1]), data_dir=data_dir),
    data_dir=data_dir, skills_dir=data_dir / "skills", at=datetime.datetime.now(datetime.UTC),
    progress=lambda *_: None,
)
"""


def test_start_after_a_killed_restore_is_refused(
    engine: Engine, database: PostgresBackupTarget, data_dir: Path, postgres_url: str
) -> None:
    place = PostgresPlace(postgres_url, data_dir=data_dir)
    backup = back_up(database, data_dir)
    (data_dir / ".torana-restore-left").mkdir()  # of a restore that was killed while it unpacked
    place.open().close()
    with engine.begin() as connection:
        fill(connection)
    expected = rows_of(engine)

    killed = subprocess.run(
        [sys.executable, "-c", MORTAL, postgres_url, str(backup), str(data_dir)], timeout=60, check=False
    )

    assert killed.returncode == -signal.SIGKILL
    assert len(list(data_dir.glob("skills.replaced-*"))) == 1
    assert rows_of(engine) == expected
    with pytest.raises(DataDirUnusable, match=r"was interrupted.*Run `torana restore` again"):
        place.open()
    restore(backup, database, data_dir)
    place.open().close()
    assert rows_of(engine)["turns"] == []
    assert not list(data_dir.glob(".torana-restore-*"))


def test_database_of_an_older_revision_is_not_backed_up(
    postgres_server: PostgresServer, data_dir: Path
) -> None:
    url = postgres_server.create("older")
    PostgresDatabase(url=PostgresUrl(url)).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0013'")
    try:
        with pytest.raises(DatabaseUnusable, match=f"revision 0013, and this version backs up revision {HEAD}"):
            back_up(PostgresBackupTarget(url=PostgresUrl(url), data_dir=data_dir), data_dir)
    finally:
        postgres_server.execute("DROP DATABASE older WITH (FORCE)")


def test_database_without_tables_is_created_by_a_restore(
    postgres_server: PostgresServer, data_dir: Path, path: Path
) -> None:
    old = sqlite_engine(path)
    with old.begin() as connection:
        fill(connection)
    expected = rows_of(old)
    old.dispose()
    url = postgres_server.create("fresh")
    database = PostgresBackupTarget(url=PostgresUrl(url), data_dir=data_dir)
    try:
        with pytest.raises(DatabaseUnusable, match="has no tables yet"):
            back_up(database, data_dir)
        restore(archive_of(path, data_dir), database, data_dir)
        engine = connect(url)
        assert rows_of(engine) == expected
        engine.dispose()
    finally:
        postgres_server.execute("DROP DATABASE fresh WITH (FORCE)")


def test_database_of_another_deployment_is_neither_backed_up_nor_replaced(
    postgres_server: PostgresServer, data_dir: Path, path: Path
) -> None:
    url = postgres_server.create("production")
    try:
        ours = PostgresBackupTarget(url=PostgresUrl(url), data_dir=data_dir, cluster="production")
        theirs = PostgresBackupTarget(url=PostgresUrl(url), data_dir=data_dir, cluster="staging")
        unnamed = PostgresBackupTarget(url=PostgresUrl(url), data_dir=data_dir)
        restore(archive_of(path, data_dir), ours, data_dir)
        backup = back_up(ours, data_dir)

        for other in (theirs, unnamed):
            with pytest.raises(DatabaseUnusable, match="belongs to the cluster 'production'"):
                restore(backup, other, data_dir)
            with pytest.raises(DatabaseUnusable, match="belongs to the cluster 'production'"):
                back_up(other, data_dir)
    finally:
        postgres_server.execute("DROP DATABASE production WITH (FORCE)")


def test_errors_do_not_contain_the_password(postgres_url: str, data_dir: Path, path: Path) -> None:
    url = PostgresUrl(postgres_url.replace("/tables", "/missing"))
    database = PostgresBackupTarget(url=url, data_dir=data_dir)
    for act in (
        lambda: back_up(database, data_dir),
        lambda: restore(archive_of(path, data_dir), database, data_dir),
    ):
        with pytest.raises(DatabaseUnusable, match="does not exist") as caught:
            act()
        assert "not-needed" not in f"{caught.value.detail} {database}"
