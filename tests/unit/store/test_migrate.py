"""Migrations build the declared tables, and an upgrade loses no data."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from torana.errors import DatabaseTooNew, DataDirUnusable
from torana.store.engine import migrate as module
from torana.store.engine.fts import terms
from torana.store.engine.integrity import check_database, foreign_objects
from torana.store.engine.migrate import HEAD, migrate
from torana.store.engine.sqlite import sqlite_engine
from torana.store.engine.tables import metadata
from torana.store.rows import memories as memory_rows
from torana.store.rows import transcript
from torana.store.rows import turns as turn_rows
from torana.store.rows.shared_turns import recover

MIGRATIONS = Path(module.__file__).with_name("migrations")

#: The revision after the newest one.
_AFTER_HEAD = f"{int(HEAD) + 1:04}"

NEXT = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "{revision}", "{head}"


def upgrade():
    op.add_column("sessions", sa.Column("topic", sa.Text()))
    {rest}
"""


VIRTUAL = "sql LIKE 'CREATE VIRTUAL TABLE %'"

FIRST = """
INSERT INTO sessions VALUES ('s1', 'gateway', 'home', 4, 'ana', 0, '2026-01-01', '2026-01-01');
INSERT INTO turns VALUES ('t1', 'gateway', 's1', 'home', 1, 'local', 'ana', 'hello', 'completed', 1, 'hi', NULL,
    NULL, 'm', 1, 2, 0.5, '2026-01-01 10:00:00.000000', '2026-01-01 10:00:01.000000');
INSERT INTO turns VALUES ('t2', 'gateway', 's1', 'home', 2, 'local', 'ana', 'hello', 'running', 1, NULL, NULL,
    NULL, NULL, 0, 0, 0, '2026-01-01 10:00:02.000000', NULL);
INSERT INTO turns VALUES ('t3', 'gateway', 's1', 'home', 3, 'local', 'ana', 'hello', 'queued', 0, NULL, NULL,
    NULL, NULL, 0, 0, 0, '2026-01-01 10:00:03.000000', NULL);
INSERT INTO history VALUES ('s1', 1, 'gateway', 't1', 2, x'5b5d');
INSERT INTO memories VALUES ('m1', 'gateway', 'ana', 'colour', 'blue', 't1', '2026-01-01 10:00:00.000000',
    '2026-01-01 10:00:02.000000');
INSERT INTO memories VALUES ('m2', 'gateway', 'ana', 'colour', 'red', 't2', '2026-01-01 10:00:02.000000', NULL);
INSERT INTO memories VALUES ('m3', 'gateway', 'ben', '', '我喜欢红茶', 't2', '2026-01-01 10:00:03.000000',
    NULL);
"""


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def visible_history(connection: Connection) -> list[bytes]:
    """Return the history of the first session that the model would see, newest turn first."""
    return [body or b"" for _, body, _ in transcript.newest(connection, "gateway", "s1", turns_limit=9).history]


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def is_no_index_of_words(name: str | None, _type: str, _parents: object) -> bool:
    return not (name or "").startswith(("memory_words", "message_words"))


def layout(path: Path) -> dict[str, object]:
    """Return the columns and foreign keys of every table, and the SQL of every index."""
    find_memories: dict[str, object] = {
        str(name): " ".join(str(sql).split())
        for name, sql in rows(path, f"SELECT name, sql FROM sqlite_schema WHERE type = 'index' OR {VIRTUAL}")
    }
    for (table,) in rows(path, f"SELECT name FROM sqlite_schema WHERE type = 'table' AND NOT {VIRTUAL}"):
        columns = rows(
            path, f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}') ORDER BY name"
        )
        find_memories[str(table)] = (
            columns,
            rows(path, f'SELECT "from", "table", "to" FROM pragma_foreign_key_list(\'{table}\')'),
        )
    return find_memories


def find_memories(connection: Connection, owner: str, query: str) -> list[str]:
    """Return the ids of the memories that contain a word of the query."""
    candidates, _ = memory_rows.holding(connection, owner, terms(query))
    return [candidate.memory.id for candidate in candidates]


@pytest.fixture
def new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The next version of the program with one more revision; returns the file of that revision."""
    migrations = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, migrations)
    revision = migrations / "versions" / f"{_AFTER_HEAD}_topic.py"
    revision.write_text(NEXT.format(revision=_AFTER_HEAD, head=HEAD, rest=""))
    monkeypatch.setattr(module, "SQLITE_MIGRATIONS", migrations)
    monkeypatch.setattr(module, "HEAD", _AFTER_HEAD)
    return revision


def upgrade(path: Path, target: str) -> Config:
    """Build a database at a revision by migrations alone."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    engine = sqlite_engine(path)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, target)
    engine.dispose()
    return config


def test_new_database_equals_a_migrated_one(tmp_path: Path, path: Path) -> None:
    config = upgrade(tmp_path / "migrated.db", "head")
    migrated = sqlite_engine(tmp_path / "migrated.db")
    with migrated.begin() as connection:
        # Alembic does not know full-text indexes and would report their tables.
        context = MigrationContext.configure(connection, opts={"include_name": is_no_index_of_words})
        assert compare_metadata(context, metadata) == []
    migrated.dispose()

    assert layout(path) == layout(tmp_path / "migrated.db")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_new_database_is_readable_only_by_its_owner(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert check_database(path) == HEAD


def test_migrating_twice_changes_nothing(path: Path) -> None:
    before = layout(path)

    migrate(path)

    assert layout(path) == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_upgrade_keeps_the_data_and_a_copy_of_the_old_database(path: Path, new_version: Path) -> None:
    change(
        path,
        "INSERT INTO sessions (id, owner, channel, next_seq, shared, created_at, updated_at) "
        "VALUES ('ses_1', 'gateway', 'home', 1, 0, '2026-01-01', '2026-01-01')",
    )

    migrate(path)

    assert rows(path, "SELECT id, topic FROM sessions") == [("ses_1", None)]
    assert check_database(path) == _AFTER_HEAD
    copy = path.with_name(f"torana.db.before-{_AFTER_HEAD}")
    assert check_database(copy) == HEAD
    assert rows(copy, "SELECT id FROM sessions") == [("ses_1",)]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_first_revision_is_upgraded_with_all_its_data(tmp_path: Path, path: Path) -> None:
    old = tmp_path / "old.db"
    upgrade(old, "0001")
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.executescript(FIRST)

    migrate(old)

    assert foreign_objects(old) == foreign_objects(path) == []
    assert layout(old) == layout(path)
    assert check_database(old) == HEAD
    assert rows(old, "SELECT id, state, seq, crashes, on_busy, merged_into, reply FROM turns ORDER BY id") == [
        ("t1", "completed", 1, 0, "queue", None, "hi"),
        ("t2", "running", 2, 0, "queue", None, None),
        ("t3", "queued", 3, 0, "queue", None, None),
    ]
    assert rows(old, "SELECT id, next_seq, fresh_from FROM sessions") == [("s1", 4, 0)]
    engine = sqlite_engine(old)
    with engine.begin() as connection:
        running, queued = recover(connection)
        assert [(turn.id, turn.crashes, turn.attempt) for turn in (running, queued)] == [
            ("t2", 1, 1),
            ("t3", 0, 0),
        ]
        assert visible_history(connection) == [b"[]"]
        first = turn_rows.claim_next(connection, "s1")
        assert first is not None
        answer = turn_rows.Ending(at=first.created_at, history=(b"[1]", 1))
        turn_rows.finish(connection, first, answer, hold=False)
        assert visible_history(connection) == [b"[1]", b"[]"]
        assert [memory.id for memory in memory_rows.history(connection, "user:ana", "m2")] == ["m1"]
        assert find_memories(connection, "user:ana", "colour") == ["m2"]
        assert find_memories(connection, "user:ana", "blue") == []
        assert find_memories(connection, "user:ben", "红茶") == ["m3"]
    engine.dispose()


def test_failed_upgrade_changes_nothing(path: Path, new_version: Path) -> None:
    before = layout(path)
    new_version.write_text(NEXT.format(revision=_AFTER_HEAD, head=HEAD, rest="raise LookupError('a bug')"))
    with pytest.raises(LookupError):
        migrate(path)

    assert layout(path) == before
    assert check_database(path) == HEAD


def test_upgrade_is_refused_when_the_copy_fails(path: Path, new_version: Path) -> None:
    before = layout(path)
    # Where the copy belongs there is an entry that SQLite cannot open, as on a full disk.
    path.with_name(f"torana.db.before-{_AFTER_HEAD}.part").mkdir()

    with pytest.raises(DataDirUnusable, match=r"torana\.db cannot be copied .* Free enough disk space"):
        migrate(path)

    assert layout(path) == before
    assert check_database(path) == HEAD
    assert not path.with_name(f"torana.db.before-{_AFTER_HEAD}").exists()


def test_newer_database_is_refused_unchanged_in_one_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(path, "UPDATE alembic_version SET version_num = '9999'")
    caplog.set_level(logging.DEBUG)

    with pytest.raises(DatabaseTooNew, match=r"9999.*Install that version, or restore"):
        migrate(path)

    assert caplog.records == []
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"this is no database" * 1000, b"SQLite format 3\0" + b"\xff" * 4000])
def test_file_that_is_not_a_database_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "torana.db"
    file.write_bytes(content)

    with pytest.raises(DataDirUnusable, match=r"torana\.db: .*; move the file away"):
        migrate(file)

    assert file.read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    change(tmp_path / "torana.db", "CREATE TABLE invoices (id)")

    with pytest.raises(DataDirUnusable, match="of another program"):
        migrate(tmp_path / "torana.db")

    assert rows(tmp_path / "torana.db", "SELECT name FROM sqlite_schema") == [("invoices",)]


@pytest.mark.parametrize("name", ["missing/torana.db", "."])
def test_unusable_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataDirUnusable):
        migrate(tmp_path / name)


def test_alembic_is_not_imported_for_a_database_of_the_same_revision(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from torana.store.engine.migrate import migrate\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "migrate(path); migrate(path); print('alembic' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "torana.db")], capture_output=True, check=True, text=True
    )

    assert done.stdout == "False\n"
