"""The entries of a backup: check their names and sizes, and extract them."""

from __future__ import annotations

import io
import os
import stat
import sys
import zipfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torana.store.engine.places import DATABASE_NAME
from torana.store.engine.snapshot import Progress
from torana.store.workspace_folders import WORKSPACES_NAME

MANIFEST = "manifest.json"
SKILLS = "skills"
#: The directory of installed skills, in the data directory and in a backup.
INSTALLED = "installed-skills"
#: The directory for MCP servers; a backup contains only the pins of their tools.
MCP_NAME = "mcp"

#: Maximum bytes of the list of entries, which is read into memory: more than a million files.
_LIST_LIMIT = 128 * 1024 * 1024
_MANIFEST_LIMIT = 64 * 1024
_PINS_LIMIT = 16 * 1024 * 1024
#: Maximum size of a file other than the database, and of all files, unless the caller gives a limit. Text and
#: databases compress to a fifth or a tenth; a file of zeros, which fills a disk, to a thousandth.
_FILE_LIMIT = 512 * 1024 * 1024
_TOTAL_LIMIT = 1024 * 1024 * 1024
_RATIO_LIMIT = 50
#: Maximum number of names in a path: each folder of each path is compared with all names.
_NAMES_LIMIT = 100
#: Bytes that must stay free on the disk.
_RESERVED_BYTES = 64 * 1024 * 1024
#: Maximum bytes of a name in file systems, and of a path below any data directory.
_NAME_BYTES = 255
_PATH_BYTES = 3_000

_FOLDERS = (SKILLS, INSTALLED, WORKSPACES_NAME, MCP_NAME)
_ALLOW = "; if you trust its origin, allow more with --max-size"

_CHUNK = 1024 * 1024  # bytes between two reports of progress


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a backup besides its manifest."""

    database: zipfile.ZipInfo
    skills: Sequence[zipfile.ZipInfo]
    others: Sequence[zipfile.ZipInfo]


class ArchiveFile(io.FileIO):
    """A zip file whose list of entries is read only up to ``_LIST_LIMIT``.

    Reading raises ``ValueError`` for every error, so that ``OSError`` means a failed write.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Read ``size`` bytes, or up to the limit if it is negative or None."""
        if size is None or size < 0:
            size = _LIST_LIMIT
        if size > _LIST_LIMIT:
            raise ValueError("its list of files is too large")
        try:
            return super().read(size) or b""
        except OSError as error:
            raise ValueError(f"it cannot be read: {error.strerror}") from error

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Change the position."""
        try:
            return super().seek(offset, whence)
        except (OSError, OverflowError) as error:
            raise ValueError("it refers to paths outside of itself") from error


def select_entries(archive: zipfile.ZipFile, *, packed: int, max_size: int | None, free: int) -> Entries:
    """Check and return the entries of a backup of ``packed`` bytes.

    ``max_size`` limits the unpacked bytes; ``free`` is the free disk space. The declared sizes are reliable
    because ``zipfile`` extracts no more than them. Raises ``ValueError`` for entries that Torana does not
    write.
    """
    found = {entry.filename: entry for entry in archive.infolist()}
    if len(found) < len(archive.infolist()):
        raise ValueError("it contains two files with the same name")
    for entry in found.values():
        _check_entry(entry, max_size)
    for name in found:
        _check_folders(name, found)
    for name in (MANIFEST, DATABASE_NAME):
        if name not in found:
            raise ValueError(f"it has no {name}")
    _check_total(sum(entry.file_size for entry in found.values()), packed, max_size, free)
    below = {top: [found[name] for name in found if name.startswith(f"{top}/")] for top in _FOLDERS}
    return Entries(
        database=found[DATABASE_NAME],
        skills=[*below[SKILLS], *below[INSTALLED]],
        others=[*below[WORKSPACES_NAME], *below[MCP_NAME]],
    )


def extract(
    archive: zipfile.ZipFile, entries: Iterable[zipfile.ZipInfo], target: Path, progress: Progress
) -> None:
    """Write the entries to files, readable only by the owner; the owner's execute permission is preserved."""
    entries = tuple(entries)
    done, total = 0, sum(entry.file_size for entry in entries)
    for entry in entries:
        file = target / entry.filename
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600 | (_mode(entry) & 0o100), exist_ok=False)
        with archive.open(entry) as packed, file.open("wb") as out:
            while chunk := packed.read(_CHUNK):
                done += out.write(chunk)
                progress(done, total)


def _check_entry(entry: zipfile.ZipInfo, max_size: int | None) -> None:
    name = entry.filename
    limit = _limit(name, max_size)
    parts = name.split("/")
    if limit is None or name != entry.orig_filename:
        raise ValueError(f"{name[:80]!r} is not a file of a backup")
    if {"", ".", ".."}.intersection(parts):
        raise ValueError(f"the path {name[:80]!r} could lead elsewhere")
    if len(name.encode()) > _PATH_BYTES or any(len(part.encode()) > _NAME_BYTES for part in parts):
        raise ValueError(f"the path {name[:80]!r}… is too long")
    # Entries that were not packed on Unix have no type.
    if stat.S_IFMT(_mode(entry)) not in (0, stat.S_IFREG):
        raise ValueError(f"{name[:80]!r} is a link or a device")
    if entry.file_size > limit:
        raise ValueError(f"{name[:80]!r} has {entry.file_size:,} bytes, more than {limit:,}{_ALLOW}")


def _limit(name: str, max_size: int | None) -> int | None:
    """Return the maximum size of a file with that name, or None if no backup contains such a file."""
    top, _, rest = name.partition("/")
    if name == DATABASE_NAME:
        return sys.maxsize  # limited by the total
    if name == MANIFEST:
        return _MANIFEST_LIMIT
    if top == MCP_NAME and rest.endswith(".json") and "/" not in rest:
        return _PINS_LIMIT
    if top in _FOLDERS and top != MCP_NAME and rest:
        return max_size or _FILE_LIMIT
    return None


def _check_folders(name: str, names: Collection[str]) -> None:
    """Raise ``ValueError`` if a folder of the path is also a file, or the path has too many names."""
    parts = name.split("/")
    if len(parts) > _NAMES_LIMIT:
        raise ValueError(f"{name[:80]!r} has more than {_NAMES_LIMIT} names")
    for depth in range(1, len(parts)):
        if (folder := "/".join(parts[:depth])) in names:
            raise ValueError(f"{folder[:80]!r} is both a file and a folder")


def _check_total(total: int, packed: int, max_size: int | None, free: int) -> None:
    limit = max_size or max(_TOTAL_LIMIT, _RATIO_LIMIT * packed)
    if total > limit:
        raise ValueError(f"it unpacks to {total:,} bytes, more than {limit:,}{_ALLOW}")
    if total + _RESERVED_BYTES > free:
        raise ValueError(f"it unpacks to {total:,} bytes, and only {free:,} are free on the disk; make room")


def _mode(entry: zipfile.ZipInfo) -> int:
    return entry.external_attr >> 16
