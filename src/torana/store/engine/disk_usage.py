"""The space that a data directory uses and has left."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torana.store.engine.database_file import RESTORE_PREFIX

#: Remains of restores and upgrades, which are never deleted by Torana.
_REMAINS = ("*.replaced-*", "*.before-*", f"{RESTORE_PREFIX}*")

#: Bytes that logs, users' files and growth may need within some days.
_RESERVE = 200 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """Sizes in bytes, and the remains of restores and upgrades in the data directory."""

    free: int
    #: The database with its log.
    database: int
    remains: Sequence[Path]

    @property
    def is_low(self) -> bool:
        """Return whether the disk may have too little space for a copy of the database (backup, upgrade)."""
        return self.free < self.database + _RESERVE


def measure_disk(data_dir: Path, database: str) -> DiskUsage:
    """Measure an existing data directory with the database file of this name. Raises ``OSError``."""
    files = (data_dir / f"{database}{suffix}" for suffix in ("", "-wal"))
    return DiskUsage(
        free=shutil.disk_usage(data_dir).free,
        database=sum(file.stat().st_size for file in files if file.exists()),
        remains=sorted(path for pattern in _REMAINS for path in data_dir.glob(pattern)),
    )
