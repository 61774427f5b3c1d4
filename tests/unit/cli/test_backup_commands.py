"""``torana backup`` and ``torana restore`` without a running gateway."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from torana.store.engine.integrity import check_database
from torana.store.engine.lock import DataDirLock
from torana.store.engine.migrate import HEAD

Command = Callable[..., tuple[int, str, str]]
AddSkill = Callable[[str, str], Path]

TEA = "---\nname: tea\ndescription: Brews tea.\n---\n"


def _backup_path(out: str) -> Path:
    return Path(out.rpartition(" (")[0])


def test_backup_is_written_here_with_a_time_stamp(command: Command, data: Path) -> None:
    code, out, err = command("backup")
    file = _backup_path(out)
    assert (code, err) == (0, "")
    assert file.match("torana-*Z.zip")
    assert file.parent == Path()
    assert out == f"{file} ({file.stat().st_size:,} bytes)\n"


def test_backup_in_a_directory_has_a_time_stamp(command: Command, data: Path, place: Path) -> None:
    (place / "safe").mkdir()
    file = _backup_path(command("backup", "safe")[1])
    assert file.parent == Path("safe")
    assert file.exists()


def test_backup_is_written_to_the_named_file(command: Command, data: Path, place: Path) -> None:
    assert command("backup", "mine.zip")[1].startswith("mine.zip (")
    assert (place / "mine.zip").exists()


def test_backup_overwrites_no_file_and_creates_no_directory(command: Command, data: Path, place: Path) -> None:
    (place / "mine.zip").write_text("of yesterday")
    line = "mine.zip already exists; name another file, or a directory\n"
    assert command("backup", "mine.zip") == (1, "", line)
    assert (place / "mine.zip").read_text() == "of yesterday"
    line = "the directory nowhere does not exist; create it, or name another file\n"
    assert command("backup", "nowhere/mine.zip") == (1, "", line)
    assert not (place / "nowhere").exists()


def test_backup_without_a_database_is_refused(command: Command, place: Path) -> None:
    code, out, err = command("backup")
    assert (code, out) == (1, "")
    assert err.startswith(f"there is no database {place / 'data' / 'torana.db'} yet; start the gateway")


def test_unwritable_backup_is_reported_in_one_line(command: Command, data: Path, place: Path) -> None:
    (place / "file").touch()
    assert command("backup", "file/x.zip") == (
        1,
        "",
        "the directory file does not exist; create it, or name another file\n",
    )


def test_restore_keeps_the_replaced_data(
    command: Command, data: Path, add_skill: AddSkill, place: Path
) -> None:
    folder = add_skill("tea", TEA)
    command("backup", "mine.zip")
    (folder / "SKILL.md").write_text("spoilt")
    code, out, err = command("restore", "mine.zip")
    assert (code, err) == (0, "")
    assert "skill files: 1" in out
    assert out.endswith("; the replaced data is kept as *.replaced-*\n")
    assert (folder / "SKILL.md").read_text() == TEA
    (kept,) = data.glob("skills.replaced-*/tea/SKILL.md")
    assert kept.read_text() == "spoilt"
    assert len(list(data.glob("torana.db.replaced-*Z"))) == 1


def test_restore_into_an_empty_directory_mentions_no_replaced_data(
    command: Command, data: Path, place: Path
) -> None:
    command("backup", "mine.zip")
    code, out, _ = command("restore", "mine.zip", "--data-dir", str(place / "elsewhere"))
    assert code == 0
    assert out.endswith(f" into {place / 'elsewhere'}\n")


def test_restore_is_refused_while_a_gateway_runs(command: Command, data: Path, place: Path) -> None:
    command("backup", "mine.zip")
    before = (data / "torana.db").stat()
    with DataDirLock(data_dir=data, address="http://127.0.0.1:9"):
        code, out, err = command("restore", "mine.zip")
    assert (code, out) == (1, "")
    assert err.startswith("already running at http://127.0.0.1:9 ")
    assert (data / "torana.db").stat().st_ino == before.st_ino


@pytest.mark.parametrize("name", ["missing.zip", "torana.toml"])
def test_file_that_is_no_backup_is_refused(command: Command, place: Path, name: str) -> None:
    (place / "torana.toml").write_text("port = 1\n")
    code, out, err = command("restore", name)
    assert (code, out) == (1, "")
    assert err.startswith(name)
    assert err.count("\n") == 1


def test_backup_that_a_restore_would_refuse_gives_a_warning(command: Command, data: Path) -> None:
    with closing(sqlite3.connect(data / "torana.db")) as database, database:
        database.execute("CREATE INDEX quick ON turns (content)")

    code, out, err = command("backup", "mine.zip")

    assert (code, out.startswith("mine.zip (")) == (0, True)
    assert err == (
        "warning: `torana restore` refuses this backup, because of its database: the index 'quick' is added\n"
    )
    assert "the index 'quick' is added" in command("restore", "mine.zip")[2]


def test_max_size_bounds_a_restore(command: Command, data: Path) -> None:
    command("backup", "mine.zip")
    assert "more than 1,000; if you trust" in command("restore", "mine.zip", "--max-size", "1KB")[2]
    for size in ("0", "much", "-5"):
        code, _, err = command("restore", "mine.zip", "--max-size", size)
        assert (code, err) == (
            1,
            f"--max-size: {size!r} is not a size; write a number with a unit, such as 20GB\n",
        )
    assert command("restore", "mine.zip", "--max-size", "1GB")[0] == 0


@pytest.mark.parametrize("arguments", [("backup",), ("sessions", "list"), ("token", "list"), ("audit",)])
def test_every_command_refuses_an_empty_database(
    command: Command, place: Path, arguments: tuple[str, ...]
) -> None:
    database = place / "data" / "torana.db"
    database.parent.mkdir()
    database.touch()

    code, out, err = command(*arguments)

    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith(f"{database} is empty: ")
    assert database.stat().st_size == 0


def test_restore_replaces_an_empty_database(command: Command, data: Path) -> None:
    command("backup", "mine.zip")
    (data / "torana.db").write_bytes(b"")

    assert command("restore", "mine.zip")[0] == 0

    assert check_database(data / "torana.db") == HEAD


def test_backups_in_a_directory_are_limited_to_the_newest(command: Command, data: Path, place: Path) -> None:
    backups = place / "backups"
    backups.mkdir()
    old = [backups / f"torana-2026010{day}T040000Z.zip" for day in (1, 2, 3)]
    others = [backups / "torana-before-the-move.zip", backups / "photos.zip"]
    for file in (*old, *others):
        file.touch()

    code, out, err = command("backup", "--to", "backups", "--keep", "2")

    written = _backup_path(out.partition("\n")[0])
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == [f"deleted {Path('backups') / file.name}" for file in old[:2]]
    assert {file.name for file in backups.iterdir()} == {file.name for file in (written, old[2], *others)}


def test_old_backups_stay_if_the_database_is_damaged(command: Command, data: Path, place: Path) -> None:
    (place / "backups").mkdir()
    old = place / "backups" / "torana-20260101T040000Z.zip"
    old.touch()
    with closing(sqlite3.connect(data / "torana.db")) as database:
        ((page, size),) = database.execute(
            "SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE name = 'audit'"
        )
    with (data / "torana.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))

    code, _, err = command("backup", "--to", "backups", "--keep", "1")

    assert code == 1
    assert err.startswith("no old backup was deleted, because the database is damaged: ")
    assert old.exists()


def test_backup_is_durable_before_old_ones_are_deleted(
    command: Command, data: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def sync(file: int) -> None:
        synced.append(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", sync)
    file = _backup_path(command("backup", "--to", "backups")[1])
    assert {file.stat().st_ino, file.parent.stat().st_ino} <= set(synced)


def test_directory_of_backups_is_created_for_its_owner_only(command: Command, data: Path, place: Path) -> None:
    assert command("backup", "--to", "backups")[0] == 0
    assert (place / "backups").stat().st_mode & 0o777 == 0o700


def test_directory_of_backups_on_a_missing_disk_is_not_created(
    command: Command, data: Path, place: Path
) -> None:
    assert command("backup", "--to", "disk/backups") == (1, "", "disk/backups: No such file or directory\n")
    assert not (place / "disk").exists()


def test_remains_of_a_killed_backup_are_deleted_after_a_day(command: Command, data: Path, place: Path) -> None:
    left, running = place / ".torana-backup-left", place / ".torana-backup-running"
    for scratch in (left, running):
        scratch.mkdir()
        (scratch / "torana.db").touch()
    os.utime(left, (0, 0))

    assert command("backup", "--to", ".", "--keep", "1")[0] == 0
    assert not left.exists()
    assert (running / "torana.db").exists()


def test_commands_work_on_postgresql(
    command: Command, place: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_DATABASE_URL", postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("INSERT INTO subscriptions VALUES ('turn.failed', 'telegram')")
    (place / "backups").mkdir()
    old = place / "backups" / "torana-20260101T040000Z.zip"
    old.touch()

    code, out, err = command("backup", "--to", "backups", "--keep", "1")
    assert (code, err) == (0, "")
    assert not old.exists()
    code, out, err = command("restore", str(_backup_path(out.partition("\n")[0])))

    assert (code, err) == (0, "")
    assert " into PostgreSQL 127.0.0.1:" in out
    assert out.endswith(f"/tables and {place / 'data'}; the replaced data is kept as *.replaced-*\n")
    assert "not-needed" not in out
    assert len(list((place / "data").glob("torana.db.replaced-*Z"))) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--keep", "3"), "--keep needs --to, the directory whose old backups are deleted\n"),
        (("mine.zip", "--to", "backups"), "name either --to or mine.zip, not both\n"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    command: Command, data: Path, arguments: tuple[str, ...], line: str
) -> None:
    assert command("backup", *arguments) == (1, "", line)
