"""Backups: one zip file with the database, skills, users' files, the pins of MCP servers, and what made it."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath

from torana.errors import BackupInvalid, DataDirUnusable, OperatorError
from torana.store.check import check_database
from torana.store.snapshot import Progress, copy_database
from torana.store.workspaces import WORKSPACES_NAME, everything

DATABASE_NAME = "torana.db"

_MANIFEST = "manifest.json"
_SKILLS = "skills"
#: The directory of installed skills, in the data directory as in a backup.
INSTALLED = "installed-skills"
#: The directory of what is kept of MCP servers; a backup has of it which tools were seen.
MCP_NAME = "mcp"
_CHUNK = 1024 * 1024  # bytes unpacked between two reports of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a backup held: who made it and when, and how many files of skills."""

    version: str
    created_at: str
    skill_files: int
    #: Whether something was there before, which is kept.
    replaced: bool


def write_backup(
    *,
    data_dir: Path,
    skill_files: Iterable[tuple[str, Path]],
    installed_files: Iterable[tuple[str, Path]] = (),
    target: Path,
    version: str,
    at: datetime,
    progress: Progress,
) -> None:
    """Write a backup to ``target``, which appears whole or not at all. A running gateway is not disturbed.

    Its directory has to be there.

    ``skill_files`` come each after its path in the skills directory, with forward slashes, ``installed_files``
    after that in the directory of installed ones. Raises
    ``OperatorError`` where something cannot be read or written.
    """
    try:
        named = [(_SKILLS, skill_files), (INSTALLED, installed_files)]
        files = ((f"{folder}/{name}", file) for folder, kept in named for name, file in kept)
        _write(data_dir, files, target, version, at, progress)
    except (OSError, sqlite3.Error) as error:
        raise OperatorError(f"cannot write the backup {target}: {error}; nothing was written") from error


def _write(
    data_dir: Path,
    files: Iterable[tuple[str, Path]],
    target: Path,
    version: str,
    at: datetime,
    progress: Progress,
) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".torana-backup-") as scratch:
        database = Path(scratch, DATABASE_NAME)
        copy_database(data_dir / DATABASE_NAME, database, progress)
        archive = Path(scratch, "archive.zip")
        # A zip file knows no time before 1980, and some packers date every file 1970.
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
            out.write(database, DATABASE_NAME)
            for name, file in files:
                out.write(file, name)
            for pins in _pins(data_dir):
                out.write(pins, f"{MCP_NAME}/{pins.name}")
            for name, body in everything(data_dir / WORKSPACES_NAME):
                out.writestr(f"{WORKSPACES_NAME}/{name}", body)
            manifest = {"version": version, "createdAt": at.isoformat(), "sha256": _sha256(database)}
            out.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        archive.chmod(0o600)
        archive.replace(target)


def _pins(directory: Path) -> list[Path]:
    """What was seen of MCP servers; below it are the homes of programs, which are their own."""
    found = sorted(directory.glob(f"{MCP_NAME}/*.json"))
    return [file for file in found if file.is_file() and not file.is_symlink()]


def restore_backup(
    *, source: Path, data_dir: Path, skills_dir: Path, at: datetime, progress: Progress
) -> Restored:
    """Put a backup's database and skills in the place of what is there, which is kept beside it.

    The caller holds the data directory's lock. The backup is checked whole before anything is touched; raises
    ``BackupInvalid`` for a file that is not one, ``DatabaseTooNew`` for one that this program cannot use, and
    ``OperatorError`` where something cannot be written. What was there before stays as
    ``<name>.replaced-<time>``. ``progress`` counts bytes.
    """
    try:
        with tempfile.TemporaryDirectory(dir=data_dir, prefix=".torana-restore-") as scratch:
            restored = _unpack(source, Path(scratch), progress)
            replaced = _put_in_place(Path(scratch), data_dir, skills_dir, f".replaced-{at:%Y%m%dT%H%M%SZ}")
    except OSError as error:
        raise OperatorError(f"cannot put the backup in place: {error}") from error
    return replace(restored, replaced=replaced)


def _put_in_place(scratch: Path, data_dir: Path, skills_dir: Path, suffix: str) -> bool:
    """Whether something was there before."""
    for journal in ("-wal", "-shm"):
        # Beside the old database and named after it, so that whoever opens that still finds its last writes.
        leftover = data_dir / f"{DATABASE_NAME}{journal}"
        if leftover.exists():
            leftover.replace(data_dir / f"{DATABASE_NAME}{suffix}{journal}")
    places = [(scratch / DATABASE_NAME, data_dir / DATABASE_NAME)]
    if (scratch / _SKILLS).exists():
        places.append((scratch / _SKILLS, skills_dir))
    # Also where the backup has none: the rows that name what is there go with the old database, and files of
    # now are not those of the users of then.
    places += [(scratch / folder, data_dir / folder) for folder in (INSTALLED, WORKSPACES_NAME)]
    # What was seen of other servers stays: without it whatever they offer next would be believed.
    places += [(pins, data_dir / MCP_NAME / pins.name) for pins in _pins(scratch)]
    were_there = [_swap(new, old, suffix) for new, old in places]
    return any(were_there)


def _swap(new: Path, old: Path, suffix: str) -> bool:
    """Whether there was an old one, which is moved aside."""
    was_there = old.exists()
    if was_there:
        shutil.move(old, old.with_name(old.name + suffix))
    if new.exists():
        old.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(new, old)
    return was_there


def _unpack(source: Path, scratch: Path, progress: Progress) -> Restored:
    """Extract the parts we know by name and check them; the archive's own paths never leave ``scratch``."""
    try:
        with zipfile.ZipFile(source) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            skills = [*_below(archive, _SKILLS), *_below(archive, INSTALLED)]
            files = [*_below(archive, WORKSPACES_NAME), *_below(archive, MCP_NAME)]
            _extract(archive, [archive.getinfo(DATABASE_NAME), *skills, *files], scratch, progress)
        _check(scratch / DATABASE_NAME, manifest["sha256"])
        return Restored(
            version=manifest["version"],
            created_at=manifest["createdAt"],
            skill_files=len(skills),
            replaced=False,
        )
    except FileNotFoundError:
        raise BackupInvalid(f"{source}: no such file") from None
    except _BROKEN as error:
        raise BackupInvalid(f"{source} is not a whole backup of Torana ({error}); choose another") from error


#: What reading a file raises that is no zip file, a damaged or encrypted one, or one of somebody else's.
_BROKEN = (
    OSError,
    EOFError,
    RuntimeError,
    LookupError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def _extract(
    archive: zipfile.ZipFile, entries: Iterable[zipfile.ZipInfo], scratch: Path, progress: Progress
) -> None:
    """Write files; of its permissions each keeps that it may be run, and nobody but the owner gets any."""
    entries = tuple(entries)
    done, total = 0, sum(entry.file_size for entry in entries)
    for entry in entries:
        target = scratch / entry.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode=0o600 | ((entry.external_attr >> 16) & 0o100))
        with archive.open(entry) as packed, target.open("wb") as out:
            while chunk := packed.read(_CHUNK):
                done += out.write(chunk)
                progress(done, total)


def _check(database: Path, sha256: str) -> None:
    """Raise ``ValueError`` for a database that is damaged or not Torana's, ``DatabaseTooNew`` as it says."""
    if sha256 != _sha256(database):
        raise ValueError("its database is damaged")
    try:
        at = check_database(database)
    except DataDirUnusable as error:
        fault, _, _ = error.detail.partition(";")
        raise ValueError(fault.replace(str(database), "its database")) from error
    if at is None:
        raise ValueError("its database is empty")


def _below(archive: zipfile.ZipFile, folder: str) -> list[zipfile.ZipInfo]:
    return [entry for entry in archive.infolist() if _is_below(folder, entry.filename)]


def _is_below(folder: str, name: str) -> bool:
    parts = PurePosixPath(name).parts
    return len(parts) > 1 and parts[0] == folder and ".." not in parts and not name.endswith("/")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
