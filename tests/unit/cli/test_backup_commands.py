"""``torana backup`` and ``torana restore`` without a running gateway."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from torana.store.engine.integrity import check_database
from torana.store.engine.lock import DataDirLock
from torana.store.engine.migrate import HEAD, migrate

Command = Callable[..., tuple[int, str, str]]
AddSkill = Callable[[str, str], Path]

TEA = "---\nname: tea\ndescription: Brews tea.\n---\n"


@pytest.fixture
def data(place: Path) -> Path:
    """A data directory with a database."""
    directory = place / "data"
    directory.mkdir(exist_ok=True)
    migrate(directory / "torana.db")
    return directory


def _written(out: str) -> Path:
    return Path(out.rpartition(" (")[0])


def test_backup_is_written_here_with_a_time_stamp(command: Command, data: Path) -> None:
    code, out, err = command("backup")
    file = _written(out)
    assert (code, err) == (0, "")
    assert file.match("torana-*Z.zip")
    assert file.parent == Path()
    assert out == f"{file} ({file.stat().st_size:,} bytes)\n"


def test_backup_in_a_directory_has_a_time_stamp(command: Command, data: Path, place: Path) -> None:
    (place / "safe").mkdir()
    file = _written(command("backup", "safe")[1])
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
    assert "more than 1,000; where you trust" in command("restore", "mine.zip", "--max-size", "1KB")[2]
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
    assert err.splitlines()[-1].startswith(f"{database} is empty although it exists: ")
    assert database.stat().st_size == 0


def test_restore_replaces_an_empty_database(command: Command, data: Path) -> None:
    command("backup", "mine.zip")
    (data / "torana.db").write_bytes(b"")

    assert command("restore", "mine.zip")[0] == 0

    assert check_database(data / "torana.db") == HEAD
