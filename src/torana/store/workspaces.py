"""A folder of files for each user, in the data directory.

File names come from the model and from users, and scripts may create files. Every folder of a path is therefore
opened from the folder above it, links are not followed, and only plain files are read. Synchronous: callers use
a thread.
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
from functools import lru_cache
from pathlib import Path

from torana.characters import normalize

#: The directory of all workspaces in the data directory.
WORKSPACES_NAME = "workspaces"

#: Maximum depth of folders, and bytes of a name.
_DEPTH = 8
_NAME_BYTES = 200
#: Outside of the users' folders, so that no user sees a partial file.
_UNFINISHED = ".unfinished"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Non-blocking: opening a FIFO would wait.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PUNCTUATION = frozenset(" ._-+,@()'&=")


class FileFault(Exception):
    """A file cannot be read or written; the message names the file, the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class WorkspaceFile:
    #: With forward slashes.
    name: str
    size: int
    changed_at: datetime


class Workspaces:
    """The folders of all users; each user has ``max_bytes`` in at most ``max_files`` files."""

    def __init__(self, *, directory: Path, max_bytes: int, max_files: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_files = max_files
        # The quota check and the write must not interleave with another write.
        self._writing = threading.Lock()

    def folder(self, user: str) -> Path:
        """Return the path of a user's files, which may not exist yet. Its name does not reveal the user."""
        return self._directory / hashlib.sha256(user.encode()).hexdigest()[:32]

    def list_files(self, user: str) -> list[WorkspaceFile]:
        """Return the user's files by name."""
        return _list_folder(self.folder(user))

    def read(self, user: str, name: str, *, limit: int) -> bytes:
        """Return the first ``limit`` bytes of a file. Raises ``FileFault``."""
        return _read_at(self.folder(user), name, _parts(name), limit)

    def contents(self, user: str) -> Iterator[tuple[str, bytes]]:
        """Yield the name and content of every readable file, including files with invalid names."""
        for name, body in _contents(self.folder(user)):
            yield os.fsencode(name).decode("utf-8", "replace"), body

    def write(self, user: str, name: str, body: bytes) -> bool:
        """Store ``body`` under ``name`` atomically and durably; return whether it replaced a file.

        Idempotent. Raises ``FileFault``, also if the quota would be exceeded.
        """
        *folders, last = _parts(name)
        with self._writing, _name_os_errors(name):
            folder = self.folder(user)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _open_directory(folder) as top:
                # The quota is checked before folders are created.
                self._check_quota(top, name, len(body), replaced=_size_of(top, folders, last))
                with _open_subdirectory(top, folders, make=True) as parent:
                    return self._write(parent, _stored_name(parent, last), body)

    def delete(self, user: str, name: str) -> None:
        """Delete a file and the folders that become empty. Raises ``FileFault``."""
        *folders, last = _parts(name)
        with self._writing, _name_os_errors(name), _open_directory(self.folder(user)) as top:
            with _open_subdirectory(top, folders) as parent:
                found = _stored_name(parent, last)
                _demand_plain(os.stat(found, dir_fd=parent, follow_symlinks=False))
                os.unlink(found, dir_fd=parent)
            for depth in range(len(folders), 0, -1):
                with suppress(OSError), _open_subdirectory(top, folders[: depth - 1]) as above:
                    os.rmdir(_stored_name(above, folders[depth - 1]), dir_fd=above)

    def erase(self, user: str) -> int:
        """Delete all of a user's files; return their number. Raises ``OSError``.

        Remains of interrupted writes are deleted too: their user is unknown.
        """
        with self._writing:
            _clear(self._directory / _UNFINISHED)
            count = len(_list_folder(self.folder(user)))
            with suppress(FileNotFoundError):
                shutil.rmtree(self.folder(user))
            _key.cache_clear()  # the cache has names of the user's files
        return count

    def _check_quota(self, top: int, name: str, size: int, *, replaced: int | None) -> None:
        """Check the quota for a new size; ``replaced`` is the size of the file of that name, if it exists."""
        sizes = [entry.size for entry in _walk(top)]
        if len(sizes) - (replaced is not None) >= self._max_files:
            raise FileFault(f"The limit of {self._max_files:,} files is reached; delete a file first.")
        room = self._max_bytes - sum(sizes) + (replaced or 0)
        if size > room:
            raise FileFault(f"{name} has {size:,} bytes, and {max(room, 0):,} are free; delete a file first.")

    def _write(self, parent: int, name: str, body: bytes) -> bool:
        aside = self._directory / _UNFINISHED
        aside.mkdir(mode=0o700, exist_ok=True)
        with _open_directory(aside) as unfinished:
            _clear(aside)
            draft = secrets.token_hex(8)
            file = os.open(
                draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=unfinished
            )
            with os.fdopen(file, "wb") as stream:
                stream.write(body)
                stream.flush()
                os.fsync(stream.fileno())
            replaced = _is_plain_file(parent, name)
            os.replace(draft, name, src_dir_fd=unfinished, dst_dir_fd=parent)
        os.fsync(parent)
        return replaced


def everything(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of all files of all users; a name starts with the user's folder.

    Names are unique: a file whose name is not valid Unicode gets a generated name.
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
    """Delete remains of interrupted writes. The caller holds the write lock."""
    with suppress(FileNotFoundError):
        for left in aside.iterdir():
            left.unlink()


def _list_folder(folder: Path) -> list[WorkspaceFile]:
    try:
        with _open_directory(folder) as top:
            return sorted(_walk(top), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for entry in _list_folder(folder):
        with suppress(FileFault):  # deleted in the meantime, or unreadable
            yield entry.name, _read_at(folder, entry.name, entry.name.split("/"), None)


def _read_at(folder: Path, name: str, parts: list[str], limit: int | None) -> bytes:
    *folders, last = parts
    with _name_os_errors(name), _open_directory(folder) as top, _open_subdirectory(top, folders) as parent:
        file = os.open(_stored_name(parent, last), _FILE, dir_fd=parent)
        with os.fdopen(file, "rb") as stream:
            _demand_plain(os.fstat(stream.fileno()))
            return stream.read(limit)


def _is_plain_file(parent: int, name: str) -> bool:
    """Return whether a plain file of that name exists. Raises ``OSError`` for any other file."""
    try:
        _demand_plain(os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False
    return True


def _parts(name: str) -> list[str]:
    """Return the folders and the name of a file path, in Unicode's composed form (NFC)."""
    parts = normalize("NFC", name).split("/")
    if not name or len(parts) > _DEPTH:
        raise FileFault(f"A file needs a name such as notes.txt or trips/oslo.md, with at most {_DEPTH} parts.")
    for part in parts:
        if not _usable(part):
            raise FileFault(
                f"{part[:80]!r} is not a valid file name; use letters, digits, "
                "spaces and ._-+,@()'&= , with no "
                "dot or space at either end."
            )
    return parts


def _usable(part: str) -> bool:
    """Return whether a name has only letters, digits, marks and safe punctuation, and is not hidden."""
    if not part or part[0] in " .-" or part[-1] in " ." or len(part.encode("utf-8", "replace")) > _NAME_BYTES:
        return False
    return all(
        char in _PUNCTUATION or char.isalnum() or unicodedata.category(char) in {"Mn", "Mc"} for char in part
    )


def _size_of(top: int, folders: list[str], name: str) -> int | None:
    """Return the size of a plain file, None if there is none."""
    with suppress(OSError), _open_subdirectory(top, folders) as parent:
        found = os.stat(_stored_name(parent, name), dir_fd=parent, follow_symlinks=False)
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


@lru_cache(maxsize=2_000)
def _key(name: str) -> str:
    """Return a form of one name of a path that is equal for names that look the same."""
    return normalize("NFKC", normalize("NFKC", name).casefold())


def _stored_name(folder: int, name: str) -> str:
    """Return the name as it is stored, which may differ in case; ``name`` if there is none."""
    names = os.listdir(folder)
    if name in names:
        return name
    key = _key(name)
    return next((other for other in sorted(names) if _key(other) == key), name)


@contextmanager
def _open_directory(path: Path) -> Generator[int]:
    folder = os.open(path, _FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _open_subdirectory(top: int, folders: list[str], *, make: bool = False) -> Generator[int]:
    """Open the folder at ``folders``, each from the one above it."""
    current = os.dup(top)
    try:
        for name in folders:
            found = _stored_name(current, name)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(found, 0o700, dir_fd=current)
            below = os.open(found, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _walk(folder: int, prefix: str = "", depth: int = 1) -> Iterator[WorkspaceFile]:
    """Yield the plain files below; skip links, devices and folders that are too deep."""
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # deleted in the meantime
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and depth < _DEPTH:
                below = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(below, f"{prefix}{name}/", depth + 1)
                finally:
                    os.close(below)
            elif stat.S_ISREG(status.st_mode):
                changed = datetime.fromtimestamp(status.st_mtime, UTC)
                yield WorkspaceFile(f"{prefix}{name}", status.st_size, changed)


def _demand_plain(status: os.stat_result) -> None:
    """Raise ``OSError`` unless it is a plain file with one link: other links may be outside."""
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(errno.ELOOP, "not a plain file")


@contextmanager
def _name_os_errors(name: str) -> Generator[None]:
    """Convert ``OSError`` to a ``FileFault`` that names the file."""
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
