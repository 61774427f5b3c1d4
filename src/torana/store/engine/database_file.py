"""Check the database file before SQLite opens it: SQLite takes an empty file for a new database."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torana.errors import DataDirUnusable

#: Prefix of a restore's temporary directory; an interrupted restore leaves it behind.
RESTORE_PREFIX = ".torana-restore-"

#: A file in that directory while the restored files and the PostgreSQL database may be of different backups.
UNFINISHED = "unfinished"

#: Suffix of the draft of a copy from PostgreSQL; an interrupted copy leaves it behind.
COPY_SUFFIX = ".copy"

#: SQLite's header (https://www.sqlite.org/fileformat.html, 1.3).
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_PAGE_SIZES = frozenset(2**power for power in range(9, 17))


def database_exists(path: Path) -> bool:
    """Return whether the database file exists; its content is not checked.

    Raises ``DataDirUnusable`` if the file is truncated, or if it is missing and its log, its copy or the traces
    of a restore remain: a lost database must not be replaced silently. Raises ``OSError`` if the path cannot be
    read.
    """
    try:
        status = path.stat()
    except NotADirectoryError:
        return False
    except FileNotFoundError:
        refuse_traces(path)
        _refuse_draft(path)
        return False
    if stat.S_ISREG(status.st_mode) and (fault := _truncation(path, status.st_size)):
        raise DataDirUnusable(
            f"{path} {fault}: its data was lost, for example on a full disk or in a copy that was interrupted. "
            "Restore a backup with `torana restore`, or delete the file to start with an empty database"
        )
    return True


def refuse_unfinished_restore(data_dir: Path) -> None:
    """Raise ``DataDirUnusable`` if a restore into a PostgreSQL database was interrupted at its end."""
    if left := next(data_dir.glob(f"{RESTORE_PREFIX}*/{UNFINISHED}"), None):
        raise DataDirUnusable(
            f"a restore into the PostgreSQL database and {data_dir} was interrupted, so the two may be of "
            f"different backups. Run `torana restore` again; to keep both as they are, delete {left.parent}"
        )


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _truncation(path: Path, size: int) -> str | None:
    """Describe how the file is truncated, or return None.

    SQLite rounds the number of pages up, so it does not notice a truncated last page. A log beside the file may
    hold that page.
    """
    if size == 0:
        return "is empty"
    if size < _HEADER_BYTES:
        return f"has {size} bytes, less than a database's header"
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    # 1 means 65,536 bytes.
    page = int.from_bytes(header[16:18], "big")
    page = 65_536 if page == 1 else page
    is_database = header.startswith(_MAGIC) and page in _PAGE_SIZES
    if is_database and size % page and not _has_log(path):
        return f"has {size} bytes, which is not a whole number of pages of {page} bytes"
    return None


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def refuse_traces(path: Path) -> None:
    """Raise ``DataDirUnusable`` if other files of the missing database remain."""
    if path.is_symlink():
        raise DataDirUnusable(
            f"{path} is a link to {path.readlink()}, which is missing; mount or restore its target, or delete "
            "the link to start with an empty database"
        )
    if _has_log(path):
        raise DataDirUnusable(
            f"{path} is missing, but its log {path.name}-wal exists and contains data: the database was "
            f"moved or deleted without its log. Put {path.name} back, or restore a backup with "
            "`torana restore`, or delete the log to start with an empty database"
        )
    if left := next(path.parent.glob(f"{RESTORE_PREFIX}*"), None):
        raise DataDirUnusable(
            f"{path} is missing: a restore was interrupted. Run `torana restore` again, or move "
            f"{path.name}.replaced-* back to {path.name}, with its -wal file if there is one; to start "
            f"with an empty database, delete {left}"
        )


def _refuse_draft(path: Path) -> None:
    draft = path.with_name(f"{path.name}{COPY_SUFFIX}")
    if draft.exists():
        raise DataDirUnusable(
            f"{path} is missing, and {draft.name} is an unfinished copy from PostgreSQL. Continue it with "
            f"`torana database copy --to sqlite`, or delete {draft} to start with an empty database"
        )
