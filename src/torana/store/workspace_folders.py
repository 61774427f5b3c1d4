"""Folders of users' files in the data directory, in which earlier versions stored them.

The name of a folder is the owner of the rows. Links are not followed, and only plain files are read.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy.engine import Connection

from torana.errors import DataDirUnusable
from torana.store.engine.database import Database
from torana.store.rows import workspace_files as rows
from torana.store.workspaces import name_key

#: The directory of all folders in the data directory.
WORKSPACES_NAME = "workspaces"
#: The name of the directory after its files were moved into the database. After a downgrade, rename it back to
#: ``WORKSPACES_NAME``.
MOVED_NAME = f"{WORKSPACES_NAME}.before-0019"

#: The directory in which earlier versions wrote files before they moved them to their place.
_UNFINISHED = ".unfinished"
#: Non-blocking: opening a FIFO would wait.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file in a folder."""

    #: The name of the folder.
    owner: str
    #: The path in the folder, with forward slashes.
    name: str
    body: bytes
    changed_at: datetime


def read_folders(directory: Path) -> Iterator[FolderFile]:
    """Yield all files of all folders. The names of a folder's files are unique. Raises ``OSError``."""
    with suppress(FileNotFoundError):
        for folder in sorted(directory.iterdir()):
            if folder.name != _UNFINISHED:
                yield from _read_folder(folder)


async def move_folders(data_dir: Path, database: Database) -> None:
    """Store the files of all folders in the database, and rename their directory to ``MOVED_NAME``.

    A newer file in the database is not replaced. Quotas are not checked. Idempotent: the next start repeats it
    after a crash. Raises ``DataDirUnusable`` and ``StoreUnavailable``.
    """
    directory = data_dir / WORKSPACES_NAME
    if not directory.exists():
        return
    try:
        count = 0
        files = read_folders(directory)
        while (file := await asyncio.to_thread(next, files, None)) is not None:
            await database.run(partial(_store, file=file))
            count += 1
        await asyncio.to_thread(_set_aside, directory)
    except OSError as error:
        raise DataDirUnusable(
            f"{error.filename}: {error.strerror}; correct that, so that the users' files in {directory} can be "
            "moved to the database"
        ) from error
    _log.info("workspaces_moved", extra={"files": count, "directory": str(directory.with_name(MOVED_NAME))})


def delete_folder(data_dir: Path, user: str) -> None:
    """Delete the folder of a user, if it has not been moved yet. Raises ``OSError``."""
    with suppress(FileNotFoundError):
        shutil.rmtree(data_dir / WORKSPACES_NAME / rows.owner_key(user))


def _read_folder(folder: Path) -> Iterator[FolderFile]:
    for path, _, names, directory in os.fwalk(folder):
        for name in sorted(names):
            with suppress(_Skipped):
                body, changed_at = _read_plain(name, directory)
                relative = Path(path, name).relative_to(folder).as_posix()
                yield FolderFile(folder.name, _text(relative), body, changed_at)


class _Skipped(Exception):
    """A link, a device, or a file with several names (hard links)."""


def _read_plain(name: str, directory: int) -> tuple[bytes, datetime]:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise _Skipped
    with os.fdopen(os.open(name, _FILE, dir_fd=directory), "rb") as stream:
        return stream.read(), datetime.fromtimestamp(status.st_mtime, UTC)


def _text(name: str) -> str:
    """Return the name as text; a name that is not valid Unicode gets a digest."""
    raw = os.fsencode(name)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"unnamed-{hashlib.sha256(raw).hexdigest()}"


def _store(connection: Connection, file: FolderFile) -> None:
    key = name_key(file.name)
    stored = rows.find(connection, file.owner, key)
    if stored is None or stored.changed_at < file.changed_at:
        rows.put(connection, file.owner, key, name=file.name, body=file.body, at=file.changed_at)


def _set_aside(directory: Path) -> None:
    moved = directory.with_name(MOVED_NAME)
    with suppress(FileNotFoundError):
        shutil.rmtree(moved)
    directory.rename(moved)
