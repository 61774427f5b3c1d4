"""The names of backups in a directory, and the deletion of old ones."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path

#: Prefix of the directory in which a backup is written; a backup that is killed leaves it behind.
SCRATCH_PREFIX = ".torana-backup-"

#: A directory that is older than this is not in use any more.
_LEFT_BEHIND = timedelta(days=1)

_NAME = re.compile(r"torana-\d{8}T\d{6}Z\.zip")


def backup_name(at: datetime) -> str:
    """Return the file name of a backup of this time (UTC). Names sort by time."""
    return f"torana-{at:%Y%m%dT%H%M%SZ}.zip"


def delete_old_backups(directory: Path, *, keep: int, now: datetime) -> list[Path]:
    """Delete all backups but the newest ``keep``, and the remains of interrupted backups.

    Return the deleted backups, the oldest first. Files with other names stay. Raises ``OSError``.
    """
    backups = sorted(file for file in directory.iterdir() if _NAME.fullmatch(file.name) and file.is_file())
    old = backups[: max(len(backups) - keep, 0)]
    for file in old:
        file.unlink()
    for left in directory.glob(f"{SCRATCH_PREFIX}*"):
        if left.stat().st_mtime < (now - _LEFT_BEHIND).timestamp():
            shutil.rmtree(left)
    return old
