"""The entries of a backup: which ones there may be, how large they may be, and writing them to files."""

from __future__ import annotations

import io
import os
import stat
import sys
import zipfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torana.store.snapshot import Progress
from torana.store.workspaces import WORKSPACES_NAME

DATABASE_NAME = "torana.db"
MANIFEST = "manifest.json"
SKILLS = "skills"
#: The directory of installed skills, in the data directory as in a backup.
INSTALLED = "installed-skills"
#: The directory of what is kept of MCP servers; a backup has of it which tools were seen.
MCP_NAME = "mcp"

#: Bytes of the archive's list of entries, which is read into memory: more than a million files.
_LIST_LIMIT = 128 * 1024 * 1024
_MANIFEST_LIMIT = 64 * 1024
_PINS_LIMIT = 16 * 1024 * 1024
#: What any other file but the database may have, and all together, unless the caller names a bound. Text and
#: databases pack to a fifth or a tenth; a file of zeros, which fills a disk, to a thousandth.
_FILE_LIMIT = 512 * 1024 * 1024
_TOTAL_LIMIT = 1024 * 1024 * 1024
_RATIO_LIMIT = 50
#: Bytes that stay free on the disk.
_SPARE = 64 * 1024 * 1024
#: Of one name, as file systems have it, and of a path, so that it can be opened below any data directory.
_NAME_BYTES = 255
_PATH_BYTES = 3_000

_FOLDERS = (SKILLS, INSTALLED, WORKSPACES_NAME, MCP_NAME)
_ALLOW = "; where you trust its origin, allow more with --max-size"

_CHUNK = 1024 * 1024  # bytes unpacked between two reports of progress


@dataclass(frozen=True, slots=True)
class Entries:
    """What a backup holds besides its manifest."""

    database: zipfile.ZipInfo
    skills: Sequence[zipfile.ZipInfo]
    others: Sequence[zipfile.ZipInfo]


class ArchiveFile(io.FileIO):
    """A zip file whose list of entries is not read beyond the bound.

    Reading raises ``ValueError`` for every fault, so that ``OSError`` means one of writing.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Read so many bytes, or the rest of the file up to the bound."""
        if size is None or size < 0:
            size = _LIST_LIMIT
        if size > _LIST_LIMIT:
            raise ValueError("its list of files is too large")
        try:
            return super().read(size) or b""
        except OSError as error:
            raise ValueError(f"it cannot be read: {error.strerror}") from error

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place."""
        try:
            return super().seek(offset, whence)
        except (OSError, OverflowError) as error:
            raise ValueError("it refers to places outside of itself") from error


def select_entries(archive: zipfile.ZipFile, *, packed: int, max_size: int | None, free: int) -> Entries:
    """Return the entries of a backup of ``packed`` bytes, which are all of a kind that Torana writes.

    ``max_size`` is how many bytes they may unpack to, ``free`` is the room on the disk. ``zipfile`` gives no
    more of an entry than it declares, so the declared sizes can be judged. Raises ``ValueError``.
    """
    found = {entry.filename: entry for entry in archive.infolist()}
    if len(found) < len(archive.infolist()):
        raise ValueError("it holds two files of one name")
    for entry in found.values():
        _check_entry(entry, max_size)
    for name in found:
        _check_folders(name, found)
    for name in (MANIFEST, DATABASE_NAME):
        if name not in found:
            raise ValueError(f"it holds no {name}")
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
    """Write files; of its permissions each keeps that it may be run, and only the owner gets any."""
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
        raise ValueError(f"{name[:80]!r} is no file of a backup")
    if {"", ".", ".."}.intersection(parts):
        raise ValueError(f"the path {name[:80]!r} could lead elsewhere")
    if len(name.encode()) > _PATH_BYTES or any(len(part.encode()) > _NAME_BYTES for part in parts):
        raise ValueError(f"the path {name[:80]!r}… is too long")
    # Without a type in its mode an entry was not packed on Unix.
    if stat.S_IFMT(_mode(entry)) not in (0, stat.S_IFREG):
        raise ValueError(f"{name[:80]!r} is a link or a device")
    if entry.file_size > limit:
        raise ValueError(f"{name[:80]!r} has {entry.file_size:,} bytes, more than {limit:,}{_ALLOW}")


def _limit(name: str, max_size: int | None) -> int | None:
    """How large a file of that name may be; None for a name that no backup holds."""
    top, _, rest = name.partition("/")
    if name == DATABASE_NAME:
        return sys.maxsize  # it counts in the total
    if name == MANIFEST:
        return _MANIFEST_LIMIT
    if top == MCP_NAME and rest.endswith(".json") and "/" not in rest:
        return _PINS_LIMIT
    if top in _FOLDERS and top != MCP_NAME and rest:
        return max_size or _FILE_LIMIT
    return None


def _check_folders(name: str, names: Collection[str]) -> None:
    """Raise where a folder of the path is a file too."""
    parts = name.split("/")
    for depth in range(1, len(parts)):
        if (folder := "/".join(parts[:depth])) in names:
            raise ValueError(f"{folder[:80]!r} is a file and a folder")


def _check_total(total: int, packed: int, max_size: int | None, free: int) -> None:
    limit = max_size or max(_TOTAL_LIMIT, _RATIO_LIMIT * packed)
    if total > limit:
        raise ValueError(f"it unpacks to {total:,} bytes, more than {limit:,}{_ALLOW}")
    if total + _SPARE > free:
        raise ValueError(f"it unpacks to {total:,} bytes, and only {free:,} are free on the disk; make room")


def _mode(entry: zipfile.ZipInfo) -> int:
    return entry.external_attr >> 16
