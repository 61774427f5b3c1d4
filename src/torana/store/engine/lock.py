"""Allow one running gateway per data directory, by a kernel lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

from torana.errors import DataDirBusy, DataDirUnusable

LOCK_NAME = "torana.lock"

#: Attempts to take the lock: ``read_address`` holds it briefly, and this must not keep a gateway from starting.
_TRIES = 5


class DataDirLock:
    """A ``flock`` on ``<data-dir>/torana.lock``; the kernel releases it when the process ends."""

    def __init__(self, *, data_dir: Path, address: str) -> None:
        """Take the lock and write ``address``, the gateway's URL or a command's name, into the file.

        Creates a missing directory, readable only by its owner. Raises ``DataDirBusy`` with the holder's
        address, or ``DataDirUnusable``.
        """
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = _open_locked(data_dir / LOCK_NAME, address)
        except BlockingIOError:
            raise _busy(data_dir) from None
        except OSError as error:
            foreign = _describe_owner(data_dir) if isinstance(error, PermissionError) else ""
            raise DataDirUnusable(
                f"cannot use the data directory {data_dir}: {error.strerror or error}{foreign}; "
                "choose another with --data-dir, correct its permissions, or free some space"
            ) from error

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _open_locked(path: Path, address: str) -> int:
    """Return the file, locked and with the address in it. Raises ``OSError`` and closes the file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(file, path.parent)
        os.ftruncate(file, 0)
        os.pwrite(file, address.encode(), 0)
    except OSError:
        os.close(file)
        raise
    return file


def _take(file: int, data_dir: Path) -> None:
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if read_address(data_dir) is not None:
                raise
        else:
            return
    raise BlockingIOError


def _describe_owner(data_dir: Path) -> str:
    """Return the cure if the directory belongs to another user, as the new volume of a container may."""
    try:
        owner, uid = data_dir.stat().st_uid, os.geteuid()
    except OSError:
        return ""
    return "" if owner == uid else f" (it belongs to user {owner}, not {uid}: chown -R {uid} {data_dir})"


def _busy(data_dir: Path) -> DataDirBusy:
    holder = read_address(data_dir) or "another process"
    if is_gateway(holder):
        return DataDirBusy(
            f"already running at {holder} with the data directory {data_dir}; stop it, or choose another with "
            "--data-dir"
        )
    return DataDirBusy(f"the data directory {data_dir} is being used by {holder}; try again when it has ended")


def is_gateway(holder: str) -> bool:
    """Return whether the holder is a gateway, which has an address, and not a command."""
    return holder.startswith("http")


def read_address(data_dir: Path) -> str | None:
    """Return the address or the command name of the lock's current holder, or None."""
    try:
        file = os.open(data_dir / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(file, 1024, 0).decode(errors="replace") or None
    else:
        return None  # an ended process has left the text
    finally:
        os.close(file)
