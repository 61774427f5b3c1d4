"""Checking a database without changing it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from torana.errors import DatabaseTooNew, DataDirUnusable
from torana.store.engine.integrity import check_database, foreign_objects
from torana.store.engine.migrate import HEAD


def test_intact_database_passes_the_check(path: Path) -> None:
    before = path.read_bytes()

    assert check_database(path) == HEAD
    assert path.read_bytes() == before


def test_missing_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(DataDirUnusable, match="unable to open database file"):
        check_database(tmp_path / "torana.db")

    assert list(tmp_path.iterdir()) == []


def test_empty_file_is_refused_with_a_cure(tmp_path: Path) -> None:
    (tmp_path / "torana.db").touch()

    with pytest.raises(DataDirUnusable, match=r"torana\.db is empty.*`torana restore`"):
        check_database(tmp_path / "torana.db")


def test_objects_that_a_restore_would_refuse_are_named(path: Path) -> None:
    assert foreign_objects(path) == []

    change(path, "CREATE INDEX quick ON turns (content)")

    assert foreign_objects(path) == ["the index 'quick' is added"]
    assert check_database(path) == HEAD


def test_damaged_database_is_reported_with_sqlites_message(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)

    with pytest.raises(DataDirUnusable, match=r"torana\.db is damaged: .*(malformed|[bB]tree).*; restore a"):
        check_database(path)


@pytest.mark.parametrize("number", ["0003x", "9999", "10", "01"])
def test_unknown_revision_is_reported_as_a_newer_version(path: Path, number: str) -> None:
    change(path, f"UPDATE alembic_version SET version_num = '{number}'")

    with pytest.raises(DatabaseTooNew, match=f"at revision {number}, .* Install that version"):
        check_database(path)


@pytest.mark.parametrize("table", ["invoices", "alembic_version"])
def test_database_of_another_program_is_reported(tmp_path: Path, table: str) -> None:
    change(tmp_path / "torana.db", f"CREATE TABLE {table} (version_num)")

    with pytest.raises(DataDirUnusable, match="database of another program; move the file away"):
        check_database(tmp_path / "torana.db")


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)
