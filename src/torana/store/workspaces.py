"""A folder of files for each user, under the data directory.

Names come from the model and from people, and what lies in a folder may have been put there by a script: so
every step of a path is opened from the folder above it, no link is followed, and nothing is read but plain
files. Synchronous: callers use a thread.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import threading
import unicodedata
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

#: Where the workspaces are in the data directory.
WORKSPACES_NAME = "workspaces"

#: Folders within folders, and bytes of one name.
_DEPTH = 8
_NAME_BYTES = 200
#: Beside the users' folders, so that nobody sees a file that is not whole.
_UNFINISHED = ".unfinished"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Not waiting: a FIFO would be waited for.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PUNCTUATION = frozenset(" ._-+,@()'&=")


class FileFault(Exception):
    """A file cannot be had or kept; the message says which, why, and what would help."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a workspace."""

    #: With forward slashes.
    name: str
    size: int
    changed_at: datetime


class Workspaces:
    """The folders of all users; each may hold ``max_bytes`` in ``max_files`` files."""

    def __init__(self, *, directory: Path, max_bytes: int, max_files: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_files = max_files
        # What a write adds is counted and written without another one between.
        self._writing = threading.Lock()

    def folder(self, user: str) -> Path:
        """Where a user's files are; it need not be there yet. Its name does not tell whose it is."""
        return self._directory / hashlib.sha256(user.encode()).hexdigest()[:32]

    def listed(self, user: str) -> list[Entry]:
        """The files by name."""
        return _listed(self.folder(user))

    def read(self, user: str, name: str, *, limit: int) -> bytes:
        """The first ``limit`` bytes of a file. Raises ``FileFault``."""
        return _read_at(self.folder(user), name, _parts(name), limit)

    def contents(self, user: str) -> Iterator[tuple[str, bytes]]:
        """Every file under its name, also under one that nobody could ask for, if it can be read."""
        for name, body in _contents(self.folder(user)):
            yield os.fsencode(name).decode("utf-8", "replace"), body

    def write(self, user: str, name: str, body: bytes) -> bool:
        """Keep ``body`` under ``name``, whole or not at all, durably; returns whether it replaced a file.

        Done twice it does what once does. Raises ``FileFault``, also where the quota would be passed.
        """
        *folders, last = _parts(name)
        with self._writing, _told(name):
            folder = self.folder(user)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(folder) as top:
                # Checked before folders are made for it.
                self._check_quota(top, name, len(body))
                with _descended(top, folders, make=True) as parent:
                    return self._put(parent, _found(parent, last), body)

    def delete(self, user: str, name: str) -> None:
        """Delete a file, and folders that it leaves empty. Raises ``FileFault``."""
        *folders, last = _parts(name)
        with self._writing, _told(name), _opened(self.folder(user)) as top:
            with _descended(top, folders) as parent:
                found = _found(parent, last)
                _demand_plain(os.stat(found, dir_fd=parent, follow_symlinks=False))
                os.unlink(found, dir_fd=parent)
            for depth in range(len(folders), 0, -1):
                with suppress(OSError), _descended(top, folders[: depth - 1]) as above:
                    os.rmdir(_found(above, folders[depth - 1]), dir_fd=above)

    def erase(self, user: str) -> int:
        """Delete all of a user's files; returns how many there were. Raises ``OSError``.

        What a crash left of files that were being written goes too: nobody knows whose it is.
        """
        with self._writing:
            _clear(self._directory / _UNFINISHED)
            count = len(_listed(self.folder(user)))
            with suppress(FileNotFoundError):
                shutil.rmtree(self.folder(user))
        return count

    def _check_quota(self, top: int, name: str, size: int) -> None:
        others = [entry for entry in _walk(top) if _key(entry.name) != _key(name)]
        if len(others) >= self._max_files:
            raise FileFault(f"There are {self._max_files:,} files, and more may not be; delete one first.")
        room = self._max_bytes - sum(entry.size for entry in others)
        if size > room:
            raise FileFault(
                f"{name} has {size:,} bytes, and there is room for {max(room, 0):,}; delete something first."
            )

    def _put(self, parent: int, name: str, body: bytes) -> bool:
        aside = self._directory / _UNFINISHED
        aside.mkdir(mode=0o700, exist_ok=True)
        with _opened(aside) as unfinished:
            _clear(aside)
            draft = secrets.token_hex(8)
            file = os.open(
                draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=unfinished
            )
            with os.fdopen(file, "wb") as stream:
                stream.write(body)
                stream.flush()
                os.fsync(stream.fileno())
            replaced = _replaced(parent, name)
            os.replace(draft, name, src_dir_fd=unfinished, dst_dir_fd=parent)
        os.fsync(parent)
        return replaced


def everything(directory: Path) -> Iterator[tuple[str, bytes]]:
    """The files of all users of a directory of workspaces, each behind the name of its user's folder.

    No two have the same name: a file whose own name is no text gets one that nothing else can have.
    """
    unnamed = f".unnamed-{secrets.token_hex(8)}"
    with suppress(FileNotFoundError):
        for folder in sorted(directory.iterdir()):
            if folder.name != _UNFINISHED:
                for name, body in _contents(folder):
                    yield f"{folder.name}/{name if _is_text(name) else _digest(unnamed, name)}", body


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _digest(folder: str, name: str) -> str:
    return f"{folder}/{hashlib.sha256(os.fsencode(name)).hexdigest()}"


def _clear(aside: Path) -> None:
    """Delete what a crash left of files; called by who alone writes at this moment."""
    with suppress(FileNotFoundError):
        for left in aside.iterdir():
            left.unlink()


def _listed(folder: Path) -> list[Entry]:
    try:
        with _opened(folder) as top:
            return sorted(_walk(top), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for entry in _listed(folder):
        with suppress(FileFault):  # gone meanwhile, or not to be read
            yield entry.name, _read_at(folder, entry.name, entry.name.split("/"), None)


def _read_at(folder: Path, name: str, parts: list[str], limit: int | None) -> bytes:
    *folders, last = parts
    with _told(name), _opened(folder) as top, _descended(top, folders) as parent:
        file = os.open(_found(parent, last), _FILE, dir_fd=parent)
        with os.fdopen(file, "rb") as stream:
            _demand_plain(os.fstat(stream.fileno()))
            return stream.read(limit)


def _replaced(parent: int, name: str) -> bool:
    """Whether a plain file of that name is there; anything else there is not written over."""
    try:
        _demand_plain(os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False
    return True


def _parts(name: str) -> list[str]:
    """The names on the way to a file, in Unicode's composed form (NFC)."""
    parts = unicodedata.normalize("NFC", name).split("/")
    if not name or len(parts) > _DEPTH:
        raise FileFault(f"A file needs a name such as notes.txt or trips/oslo.md, with at most {_DEPTH} parts.")
    for part in parts:
        if not _usable(part):
            raise FileFault(
                f"{part[:80]!r} is no name for a file; use letters, digits, spaces and ._-+,@()'&= , with no "
                "dot or space at either end."
            )
    return parts


def _usable(part: str) -> bool:
    """Letters, digits and marks of any script, and harmless punctuation within; nothing hidden."""
    if not part or part[0] in " .-" or part[-1] in " ." or len(part.encode("utf-8", "replace")) > _NAME_BYTES:
        return False
    return all(
        char in _PUNCTUATION or char.isalnum() or unicodedata.category(char) in {"Mn", "Mc"} for char in part
    )


def _key(name: str) -> str:
    """What two names have in common that a person would take for one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _found(folder: int, name: str) -> str:
    """The name as it is in the folder, be it written in other case there; else as it is given."""
    names = os.listdir(folder)
    if name in names:
        return name
    return next((other for other in sorted(names) if _key(other) == _key(name)), name)


@contextmanager
def _opened(path: Path) -> Generator[int]:
    folder = os.open(path, _FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _descended(top: int, folders: list[str], *, make: bool = False) -> Generator[int]:
    """The folder behind ``folders``, each opened from the one above it."""
    current = os.dup(top)
    try:
        for name in folders:
            found = _found(current, name)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(found, 0o700, dir_fd=current)
            below = os.open(found, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _walk(folder: int, prefix: str = "", depth: int = 1) -> Iterator[Entry]:
    """The plain files below; links and devices are passed over, and so is what lies too deep to be named."""
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # gone meanwhile
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and depth < _DEPTH:
                below = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(below, f"{prefix}{name}/", depth + 1)
                finally:
                    os.close(below)
            elif stat.S_ISREG(status.st_mode):
                changed = datetime.fromtimestamp(status.st_mtime, UTC)
                yield Entry(f"{prefix}{name}", status.st_size, changed)


def _demand_plain(status: os.stat_result) -> None:
    """Raise for all but a plain file of one name: another name may be anybody's."""
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(errno.ELOOP, "not a plain file")


@contextmanager
def _told(name: str) -> Generator[None]:
    """Say in the file's name what the system says in numbers."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileFault(f"There is no file {name}.") from error
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK, errno.EOPNOTSUPP}:
            raise FileFault(f"{name} is not a plain file.") from error
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise FileFault("The gateway's disk is full; nothing was written.") from error
        raise FileFault(f"{name} cannot be reached: {error.strerror}.") from error
