"""A lost database is not silently replaced by a new one."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from torana.errors import DataDirUnusable
from torana.store.backup.archive import DATABASE_NAME
from torana.store.engine.database_file import database_exists
from torana.store.engine.integrity import check_database
from torana.store.engine.migrate import HEAD, migrate
from torana.store.engine.read_only import read_database

#: Runs ``migrate`` in one process after another; each is killed four events later than the previous one. An
#: event opens, renames or removes a file, or executes a statement. Prints how many were killed.
MORTAL = """
import itertools, os, pathlib, signal, sqlite3, sys
from torana.store.engine.migrate import migrate

left = 0

def count_down(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

class Connection(sqlite3.Connection):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.set_trace_callback(count_down)

connect = sqlite3.connect
sqlite3.connect = lambda *arguments, **options: connect(*arguments, factory=Connection, **options)
events = {"open", "os.rename", "os.remove", "sqlite3.connect"}
sys.addaudithook(lambda event, _: event in events and count_down())
for number in itertools.count(1, 4):
    place = pathlib.Path(sys.argv[1], str(number))
    place.mkdir()
    process = os.fork()
    if process == 0:
        left = number
        migrate(place / "torana.db")
        os._exit(0)
    if os.WIFEXITED(os.waitpid(process, 0)[1]):
        print(number - 4)
        break
"""

#: Every function that opens an existing database.
OPENERS: list[Callable[[Path], object]] = [
    migrate,
    check_database,
    lambda path: read_database(path, lambda _: None),
]


@pytest.fixture(params=OPENERS, ids=["migrate", "check", "read"])
def opening(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    """Opens a database."""
    return request.param


@pytest.mark.parametrize("size", [0, 1, 16, 99])
def test_file_without_its_header_is_refused_with_a_cure(
    tmp_path: Path, path: Path, opening: Callable[[Path], object], size: int
) -> None:
    cut_off = tmp_path / "data" / DATABASE_NAME
    cut_off.parent.mkdir()
    cut_off.write_bytes(path.read_bytes()[:size])

    with pytest.raises(
        DataDirUnusable, match=r"`torana restore`, or delete the file to start with an empty database"
    ) as caught:
        opening(cut_off)

    assert str(cut_off) in caught.value.detail
    assert cut_off.stat().st_size == size
    assert list(cut_off.parent.iterdir()) == [cut_off]


def test_truncated_file_is_refused_at_every_length(tmp_path: Path, path: Path) -> None:
    whole = path.read_bytes()
    for size in (100, 512, 4095, 4096, 4097, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        cut_off = tmp_path / f"{size}" / DATABASE_NAME
        cut_off.parent.mkdir()
        cut_off.write_bytes(whole[:size])

        with pytest.raises(DataDirUnusable):
            migrate(cut_off)

        assert cut_off.read_bytes() == whole[:size]


def test_database_without_tables_is_refused(tmp_path: Path, opening: Callable[[Path], object]) -> None:
    path = tmp_path / DATABASE_NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert path.stat().st_size > 0

    if opening is OPENERS[2]:
        return  # a reader raises only when it reads a table
    with pytest.raises(DataDirUnusable, match=r"without tables.*delete the file to start with an empty d"):
        opening(path)


def test_database_with_a_foreign_application_id_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 252006674")

    with pytest.raises(DataDirUnusable, match="of another program"):
        migrate(path)


def test_log_without_its_database_is_refused(tmp_path: Path, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO subscriptions VALUES ('turn.completed', 'home')")
        connection.commit()
        log = path.with_name(f"{DATABASE_NAME}-wal")
        lost = tmp_path / "data"
        lost.mkdir()
        (lost / log.name).write_bytes(log.read_bytes())

    with pytest.raises(DataDirUnusable, match=re.escape(f"{lost / DATABASE_NAME} is missing, but its log")):
        migrate(lost / DATABASE_NAME)

    assert [file.name for file in lost.iterdir()] == [log.name]
    (lost / log.name).write_bytes(b"")  # an empty log is no sign of data
    migrate(lost / DATABASE_NAME)


def test_dangling_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    path.symlink_to(tmp_path / "disk" / DATABASE_NAME)

    with pytest.raises(DataDirUnusable, match=r"is a link to .* which is missing"):
        migrate(path)

    assert path.is_symlink()


def test_interrupted_restore_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".torana-restore-x").mkdir()

    with pytest.raises(DataDirUnusable, match=r"a restore was interrupted\. Run `torana restore` again"):
        migrate(tmp_path / DATABASE_NAME)


def test_missing_database_does_not_exist(tmp_path: Path) -> None:
    assert not database_exists(tmp_path / DATABASE_NAME)
    assert not database_exists(tmp_path / "none" / DATABASE_NAME)


def test_first_start_killed_at_any_moment_can_be_repeated(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MORTAL, str(tmp_path)], check=True, capture_output=True, text=True
    )

    killed = int(done.stdout)
    assert killed > 50
    assert not (tmp_path / str(killed // 8 * 4 + 1) / DATABASE_NAME).exists()
    for number in range(1, killed + 1, 4):
        path = tmp_path / str(number) / DATABASE_NAME
        migrate(path)
        assert [file.name for file in path.parent.iterdir()] == [DATABASE_NAME]
        assert check_database(path) == HEAD
