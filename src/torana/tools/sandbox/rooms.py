"""The directories of runs, each locked by the process that made it: so those of dead ones can be told."""

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

#: What a room's name begins with, in the system's directory for temporary files.
PREFIX = "torana-run-"

#: Rooms that one sweep takes away. Of each crash there are at most as many as runs at once.
_SWEPT_LIMIT = 100
_TRIES = 10
#: Closed to all others; where the gateway is root, the sandbox's user may pass.
_PRIVATE, _PASSABLE = 0o700, 0o710


@dataclass(frozen=True, slots=True)
class Room:
    """A directory of one run's own, until it is removed."""

    path: Path
    _lock: int

    def remove(self) -> None:
        """Take it away with all that is in it. Blocks; to be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def make_room(*, group: int | None = None) -> Room:
    """An empty directory that nobody else can enter but ``group``, which may pass. Raises ``OSError``."""
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _locked(path)
        # Until it is locked, another gateway's sweep may take it for a dead one's.
        if lock is not None and path.exists():
            break
        if lock is not None:
            os.close(lock)
        shutil.rmtree(path, ignore_errors=True)
    else:
        raise OSError(errno.ENOLCK, "no temporary directory can be locked")
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(_PASSABLE)
    return Room(path, lock)


def sweep_rooms() -> int:
    """Remove the rooms that killed gateways of this user left, and say how many there were. Blocks.

    Those of living ones are locked. One sweep takes away at most 100, and passes over what it cannot.
    """
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            found = [Path(entry) for entry in entries if entry.name.startswith(PREFIX)]
    except OSError:
        return 0
    return sum(islice((1 for path in found if _swept(path)), _SWEPT_LIMIT))


def _swept(path: Path) -> bool:
    lock = _locked(path)
    if lock is None:
        return False
    try:
        # Anyone may make a directory of this name, or move one of ours to it that others can write to.
        found = os.fstat(lock)
        ours = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) in (_PRIVATE, _PASSABLE)
        if ours:
            shutil.rmtree(path, ignore_errors=True)
        return ours
    finally:
        os.close(lock)


def _locked(path: Path) -> int | None:
    """A descriptor of the directory that keeps it locked; None for what is none, or somebody else holds."""
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
