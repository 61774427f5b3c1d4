"""Tables and migrations agree, and an upgrade cannot lose anything."""

from __future__ import annotations

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

from torana.errors import DatabaseTooNew, DataDirUnusable
from torana.store import migrate as module
from torana.store.check import check_database
from torana.store.database import sqlite_engine
from torana.store.migrate import HEAD, migrate
from torana.store.tables import metadata

MIGRATIONS = Path(module.__file__).with_name("migrations")

NEXT = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "0002", "0001"


def upgrade():
    op.add_column("sessions", sa.Column("topic", sa.Text()))
    {rest}
"""


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def layout(path: Path) -> dict[str, object]:
    """Every table's columns and foreign keys, and every index as it was written."""
    found: dict[str, object] = {
        str(name): " ".join(str(sql).split())
        for name, sql in rows(path, "SELECT name, sql FROM sqlite_schema WHERE type = 'index'")
    }
    for (table,) in rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table'"):
        columns = rows(path, f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')")
        found[str(table)] = (
            columns,
            rows(path, f'SELECT "from", "table", "to" FROM pragma_foreign_key_list(\'{table}\')'),
        )
    return found


@pytest.fixture
def new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program's next version, with a revision more; gives the file of that revision."""
    migrations = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, migrations)
    revision = migrations / "versions" / "0002_topic.py"
    revision.write_text(NEXT.format(rest=""))
    monkeypatch.setattr(module, "_MIGRATIONS", migrations)
    monkeypatch.setattr(module, "HEAD", "0002")
    return revision


def test_a_new_database_is_what_the_migrations_build(tmp_path: Path, path: Path) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    migrated = sqlite_engine(tmp_path / "migrated.db")
    with migrated.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    migrated.dispose()

    assert layout(path) == layout(tmp_path / "migrated.db")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_a_new_database_is_readable_by_its_owner_alone(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert check_database(path) == (HEAD, "ok")


def test_migrating_twice_changes_nothing(path: Path) -> None:
    before = layout(path)

    migrate(path)

    assert layout(path) == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_upgrade_keeps_what_is_there_and_a_copy_of_how_it_was(path: Path, new_version: Path) -> None:
    change(
        path, "INSERT INTO sessions VALUES ('ses_1', 'gateway', 'home', 1, NULL, 0, '2026-01-01', '2026-01-01')"
    )

    migrate(path)

    assert rows(path, "SELECT id, topic FROM sessions") == [("ses_1", None)]
    assert check_database(path) == ("0002", "ok")
    copy = path.with_name("torana.db.before-0002")
    assert check_database(copy) == ("0001", "ok")
    assert rows(copy, "SELECT id FROM sessions") == [("ses_1",)]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_an_upgrade_that_fails_half_way_changes_nothing(path: Path, new_version: Path) -> None:
    before = layout(path)
    new_version.write_text(NEXT.format(rest="raise LookupError('a bug')"))
    with pytest.raises(LookupError):
        migrate(path)

    assert layout(path) == before
    assert check_database(path) == ("0001", "ok")


def test_a_newer_database_is_refused_and_left_alone(path: Path) -> None:
    change(path, "UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(DatabaseTooNew, match=r"9999.*Install that version, or restore"):
        migrate(path)

    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"this is no database" * 1000, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
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
def test_a_place_that_cannot_hold_a_database_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataDirUnusable):
        migrate(tmp_path / name)


def test_alembic_is_not_imported_for_a_database_of_the_same_revision(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from torana.store.migrate import migrate; path = pathlib.Path(sys.argv[1])\n"
        "migrate(path); migrate(path); print('alembic' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "torana.db")], capture_output=True, check=True, text=True
    )

    assert done.stdout == "False\n"
