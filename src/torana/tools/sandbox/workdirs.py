"""The working directories of runs. Each is locked by its process, so that abandoned ones can be detected."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

#: The prefix of a working directory's name, in the system's directory for temporary files.
PREFIX = "torana-run-"

#: The maximum number of directories that one sweep removes. A crash leaves at most one per concurrent run.
_SWEPT_LIMIT = 100
_TRIES = 10
#: The modes of a directory. If the gateway is root, the sandbox's user may pass through it.
_PRIVATE, _PASSABLE = 0o700, 0o710


@dataclass(frozen=True, slots=True)
class Workdir:
    path: Path
    _lock: int

    def remove(self) -> None:
        """Remove the directory with its content. Blocks. Call it once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def make_workdir(*, group: int | None = None) -> Workdir:
    """Create an empty private directory, through which ``group`` may pass. Raises ``OSError``."""
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock_directory(path)
        # Before it is locked, another gateway's sweep may remove it.
        if lock is not None and path.exists():
            break
        if lock is not None:
            os.close(lock)
        shutil.rmtree(path, ignore_errors=True)
    else:
        raise OSError(errno.ENOLCK, f"cannot lock a new directory in {tempfile.gettempdir()}")
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(_PASSABLE)
    return Workdir(path, lock)


def sweep_workdirs() -> int:
    """Remove the directories that killed gateways of this user left, and return their number. Blocks.

    Directories of running gateways are locked. Removes at most 100, and skips those that cannot be removed.
    """
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            found = [Path(entry) for entry in entries if entry.name.startswith(PREFIX)]
    except OSError:
        return 0
    return sum(islice((1 for path in found if _sweep_directory(path)), _SWEPT_LIMIT))


def _sweep_directory(path: Path) -> bool:
    lock = _lock_directory(path)
    if lock is None:
        return False
    try:
        # Other users may create a directory of this name, or rename a writable one of this user.
        found = os.fstat(lock)
        ours = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) in (_PRIVATE, _PASSABLE)
        if ours:
            shutil.rmtree(path, ignore_errors=True)
        return ours
    finally:
        os.close(lock)


def _lock_directory(path: Path) -> int | None:
    """Lock a directory, and return its descriptor, or None if that fails or another process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
