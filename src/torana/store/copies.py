"""Copies of the database that Torana itself left in the data directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from torana.store.backup import DATABASE_NAME
from torana.store.database_file import RESTORE_PREFIX
from torana.store.workspaces import WORKSPACES_NAME

#: What an upgrade kept, what a restore replaced, and what either left when it was cut off.
_PATTERNS = (
    f"{DATABASE_NAME}.before-*",
    f"{DATABASE_NAME}.replaced-*",
    f"{WORKSPACES_NAME}.replaced-*",
    f"{RESTORE_PREFIX}*",
    ".torana-backup-*",
)


def delete_copies(data_dir: Path) -> int:
    """Delete all of them, and return how many files and directories these were.

    A backup that is being written into the data directory at this moment fails. Raises ``OSError``.
    """
    found = [copy for pattern in _PATTERNS for copy in data_dir.glob(pattern)]
    for copy in found:
        if copy.is_dir() and not copy.is_symlink():
            shutil.rmtree(copy)
        else:
            copy.unlink(missing_ok=True)
    return len(found)
