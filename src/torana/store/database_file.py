"""Look at the database's file before SQLite does, which takes an empty file for a new database."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torana.errors import DataDirUnusable

#: What a restore unpacks into; one that was killed leaves it behind.
RESTORE_PREFIX = ".torana-restore-"

#: SQLite's header (https://www.sqlite.org/fileformat.html, 1.3).
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_PAGE_SIZES = frozenset(2**power for power in range(9, 17))


def database_exists(path: Path) -> bool:
    """Return whether there is a database file; its content is SQLite's to judge.

    Raises ``DataDirUnusable`` for a file that is cut off before the end of its header, and for a missing file
    that other files show to have been there: no new database may silently take the place of a lost one.
    Raises ``OSError`` for a path that cannot be looked at.
    """
    try:
        status = path.stat()
    except NotADirectoryError:
        return False
    except FileNotFoundError:
        _refuse_traces(path)
        return False
    if stat.S_ISREG(status.st_mode) and (fault := _truncation(path, status.st_size)):
        raise DataDirUnusable(
            f"{path} {fault} although it exists: its data was lost, for example on a full disk or in a copy "
            "that broke off. Restore a backup with `torana restore`, or delete the file to begin anew"
        )
    return True


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _truncation(path: Path, size: int) -> str | None:
    """Describe how the file is cut off, or return None.

    SQLite rounds the number of pages up, so it does not notice a last page that is cut off. With a log beside
    the file, the log may hold that page.
    """
    if size == 0:
        return "is empty"
    if size < _HEADER_BYTES:
        return f"has {size} bytes, less than a database's header"
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    # A value of 1 stands for 65,536 bytes.
    page = int.from_bytes(header[16:18], "big")
    page = 65_536 if page == 1 else page
    is_database = header.startswith(_MAGIC) and page in _PAGE_SIZES
    if is_database and size % page and not _has_log(path):
        return f"has {size} bytes, which is no whole number of pages of {page} bytes,"
    return None


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _refuse_traces(path: Path) -> None:
    if path.is_symlink():
        raise DataDirUnusable(
            f"{path} is a link to {path.readlink()}, which is missing; mount or restore its target, or delete "
            "the link to begin anew"
        )
    if _has_log(path):
        raise DataDirUnusable(
            f"{path} is missing, but its log {path.name}-wal is there and holds data: the database was moved "
            f"or deleted without it. Put {path.name} back, or restore a backup with `torana restore`, or "
            "delete the log to begin anew"
        )
    if left := next(path.parent.glob(f"{RESTORE_PREFIX}*"), None):
        raise DataDirUnusable(
            f"{path} is missing: a restore was cut off. Run `torana restore` again, or move "
            f"{path.name}.replaced-* back to {path.name}, with its -wal file where there is one; to begin anew "
            f"delete {left}"
        )
