"""Delete copies of the database that Torana left in the data directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from torana.store.backup.archive import DATABASE_NAME
from torana.store.engine.database_file import RESTORE_PREFIX
from torana.store.workspace_folders import WORKSPACES_NAME

#: Copies of upgrades and restores, and remains of interrupted ones.
_PATTERNS = (
    f"{DATABASE_NAME}.before-*",
    f"{DATABASE_NAME}.replaced-*",
    f"{WORKSPACES_NAME}.before-*",
    f"{WORKSPACES_NAME}.replaced-*",
    f"{RESTORE_PREFIX}*",
    ".torana-backup-*",
)


def delete_copies(data_dir: Path) -> int:
    """Delete the copies, and return the number of files and directories.

    A backup that is being written into the data directory fails. Raises ``OSError``.
    """
    found = [copy for pattern in _PATTERNS for copy in data_dir.glob(pattern)]
    for copy in found:
        if copy.is_dir() and not copy.is_symlink():
            shutil.rmtree(copy)
        else:
            copy.unlink(missing_ok=True)
    return len(found)
