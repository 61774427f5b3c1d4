"""Users' files in folders of an earlier version move to the database."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from torana.errors import DataDirUnusable
from torana.store.engine.database import Database
from torana.store.rows.workspace_files import owner_key
from torana.store.workspace_folders import MOVED_NAME, WORKSPACES_NAME, delete_folder, move_folders
from torana.store.workspaces import Workspaces

LAST_YEAR = datetime(2025, 3, 2, 10, tzinfo=UTC)


def write(data_dir: Path, name: str, body: bytes, *, user: str = "ana", at: datetime = LAST_YEAR) -> Path:
    """Write a user's file as an earlier version does."""
    file = data_dir / WORKSPACES_NAME / owner_key(user) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(body)
    os.utime(file, (at.timestamp(), at.timestamp()))
    return file


async def contents(workspaces: Workspaces, user: str = "ana") -> dict[str, bytes]:
    files = await workspaces.list_files(user)
    return {file.name: await workspaces.read(user, file.name, limit=1_000) for file in files}


async def test_files_move_with_their_names_and_times(
    tmp_path: Path, database: Database, workspaces: Workspaces, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, "notes.txt", b"milk")
    write(tmp_path, "trips/Oslo/plan.md", b"ferry")
    write(tmp_path, "empty", b"", user="ben")
    write(tmp_path, "../.unfinished/0123", b"half a file")

    await move_folders(tmp_path, database)

    assert await contents(workspaces) == {"notes.txt": b"milk", "trips/Oslo/plan.md": b"ferry"}
    assert await contents(workspaces, "ben") == {"empty": b""}
    assert {file.changed_at for file in await workspaces.list_files("ana")} == {LAST_YEAR}
    assert not (tmp_path / WORKSPACES_NAME).exists()
    assert (tmp_path / MOVED_NAME / owner_key("ana") / "notes.txt").read_bytes() == b"milk"
    assert [(record.msg, record.__dict__["files"]) for record in caplog.records] == [("workspaces_moved", 3)]


async def test_nothing_happens_without_folders(
    tmp_path: Path, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    await move_folders(tmp_path, database)

    assert caplog.records == []
    assert not (tmp_path / MOVED_NAME).exists()


async def test_file_that_is_newer_in_the_database_stays(
    tmp_path: Path, database: Database, workspaces: Workspaces
) -> None:
    await workspaces.write("ana", "Notes.txt", b"new")
    write(tmp_path, "notes.txt", b"old")
    (tmp_path / MOVED_NAME / "earlier").mkdir(parents=True)

    await move_folders(tmp_path, database)
    assert await contents(workspaces) == {"Notes.txt": b"new"}

    write(tmp_path, "notes.txt", b"newest", at=datetime(2100, 1, 1, tzinfo=UTC))
    await move_folders(tmp_path, database)
    assert await contents(workspaces) == {"Notes.txt": b"newest"}


async def test_only_regular_files_of_the_folder_move(
    tmp_path: Path, database: Database, workspaces: Workspaces
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    folder = write(tmp_path, "a.txt", b"x").parent
    (folder / "link.txt").symlink_to(secret / "key")
    (folder / "dangling.txt").symlink_to(secret / "new")
    (folder / "out").symlink_to(secret)
    (folder / "hard.txt").hardlink_to(secret / "key")
    os.mkfifo(folder / "pipe")
    (tmp_path / WORKSPACES_NAME / owner_key("ben")).symlink_to(secret)

    await move_folders(tmp_path, database)

    assert await contents(workspaces) == {"a.txt": b"x"}
    assert await contents(workspaces, "ben") == {}


async def test_names_that_are_no_text_move(tmp_path: Path, database: Database, workspaces: Workspaces) -> None:
    for name in (b"caf\xe9", b"caf\xe8", "caf\ufffd".encode()):
        write(tmp_path, os.fsdecode(name), name)

    await move_folders(tmp_path, database)

    sizes = sorted(file.size for file in await workspaces.list_files("ana"))
    assert sizes == [4, 4, 6]


async def test_obstacle_is_named_and_nothing_is_lost(
    tmp_path: Path, database: Database, workspaces: Workspaces
) -> None:
    write(tmp_path, "notes.txt", b"milk")
    (tmp_path / MOVED_NAME).write_text("a file where the directory has its place")

    with pytest.raises(DataDirUnusable, match=f"{MOVED_NAME}: Not a directory; correct that"):
        await move_folders(tmp_path, database)

    (tmp_path / MOVED_NAME).unlink()
    await move_folders(tmp_path, database)
    assert await contents(workspaces) == {"notes.txt": b"milk"}


def test_folder_of_a_user_is_deleted(tmp_path: Path) -> None:
    folder, other = write(tmp_path, "a/b", b"x").parent.parent, write(tmp_path, "c", b"x", user="ben")

    delete_folder(tmp_path, "ana")
    delete_folder(tmp_path, "ana")

    assert (folder.exists(), other.exists()) == (False, True)
