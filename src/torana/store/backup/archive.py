"""Backups: one zip file with the database, skills, the pins of MCP servers and a manifest.

A backup also contains users' files that are still in folders of an earlier version.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from torana.errors import BackupInvalid, DataDirUnusable, OperatorError
from torana.store.backup.entries import (
    DATABASE_NAME,
    INSTALLED,
    MANIFEST,
    MCP_NAME,
    SKILLS,
    ArchiveFile,
    extract,
    select_entries,
)
from torana.store.backup.file_moves import put, set_aside
from torana.store.backup.retention import SCRATCH_PREFIX
from torana.store.backup.targets import BackupTarget, Replacement
from torana.store.engine.database_file import RESTORE_PREFIX, sync_directory
from torana.store.engine.integrity import check_restorable
from torana.store.engine.snapshot import Progress
from torana.store.workspace_folders import WORKSPACES_NAME, read_folders


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The content of a restored backup: its version and time, and the number of skill files."""

    version: str
    created_at: str
    skill_files: int
    #: True if the restore replaced existing files, which are kept.
    replaced: bool


def write_backup(
    *,
    database: BackupTarget,
    data_dir: Path,
    skill_files: Iterable[tuple[str, Path]],
    installed_files: Iterable[tuple[str, Path]] = (),
    target: Path,
    version: str,
    at: datetime,
    progress: Progress,
) -> None:
    """Write a backup to ``target`` atomically. The gateway may be running.

    The target's directory must exist. ``skill_files`` and ``installed_files`` are paths relative to their
    directory, with forward slashes, and files. Raises ``OperatorError`` if a file cannot be read or written.
    """
    try:
        named = [(SKILLS, skill_files), (INSTALLED, installed_files)]
        files = ((f"{folder}/{name}", file) for folder, kept in named for name, file in kept)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=SCRATCH_PREFIX) as scratch:
            database.copy_to(Path(scratch, DATABASE_NAME), progress)
            _write(Path(scratch), data_dir, files, target, {"version": version, "createdAt": at.isoformat()})
        sync_directory(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise OperatorError(f"cannot write the backup {target}: {error}; no file was written") from error


def _write(
    scratch: Path,
    data_dir: Path,
    files: Iterable[tuple[str, Path]],
    target: Path,
    about: Mapping[str, str],
) -> None:
    """Write the archive of all files and of the database in ``scratch``, and move it to ``target``."""
    database, archive = scratch / DATABASE_NAME, scratch / "archive.zip"
    # Zip files store no time before 1980, and some packers date every file 1970.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
        out.write(database, DATABASE_NAME)
        for name, file in files:
            out.write(file, name)
        for pins in _pins(data_dir):
            out.write(pins, f"{MCP_NAME}/{pins.name}")
        for file in read_folders(data_dir / WORKSPACES_NAME):
            out.writestr(f"{WORKSPACES_NAME}/{file.owner}/{file.name}", file.body)
        out.writestr(MANIFEST, json.dumps({**about, "sha256": _sha256(database)}, indent=1))
    archive.chmod(0o600)
    _sync(archive)  # the caller may delete older backups
    archive.replace(target)


def _pins(directory: Path) -> list[Path]:
    """Return the files of accepted MCP tools; subdirectories are homes of MCP programs."""
    found = sorted(directory.glob(f"{MCP_NAME}/*.json"))
    return [file for file in found if file.is_file() and not file.is_symlink()]


def restore_backup(
    *,
    source: Path,
    database: BackupTarget,
    data_dir: Path,
    skills_dir: Path,
    at: datetime,
    progress: Progress,
    max_size: int | None = None,
) -> Restored:
    """Replace the database, skills and files with those of a backup.

    The caller holds the data directory's lock. The whole backup is checked first: it contains only files that
    Torana writes, within limits (``max_size`` bytes in total, if given), and a database with exactly Torana's
    schema. Existing files are kept as ``<name>.replaced-<time>``. ``progress`` counts bytes, and then rows.
    After an error nothing is changed. Raises ``BackupInvalid``, ``DatabaseTooNew`` and, if something cannot be
    written, ``OperatorError``.
    """
    try:
        earlier = list(data_dir.glob(f"{RESTORE_PREFIX}*"))
        with tempfile.TemporaryDirectory(dir=data_dir, prefix=RESTORE_PREFIX) as scratch:
            restored = _unpack(source, Path(scratch), progress, max_size)
            suffix = _suffix(data_dir, at)
            with database.replace(Path(scratch, DATABASE_NAME), suffix, progress) as replacement:
                replaced = _put_in_place(Path(scratch), data_dir, skills_dir, suffix, replacement)
        for left in earlier:  # left by interrupted restores
            shutil.rmtree(left)
    except ValueError as error:
        raise _incomplete(source, error) from error
    except (OSError, sqlite3.Error) as error:
        raise OperatorError(f"cannot put the backup in place: {error}") from error
    return replace(restored, replaced=replaced)


def _suffix(data_dir: Path, at: datetime) -> str:
    """Return the suffix for replaced files: the time, and a number if two restores have the same time."""
    suffix, number = f".replaced-{at:%Y%m%dT%H%M%SZ}", 1
    while any(data_dir.glob(f"*{suffix}*")):
        number += 1
        suffix = f".replaced-{at:%Y%m%dT%H%M%SZ}-{number}"
    return suffix


def _put_in_place(
    scratch: Path, data_dir: Path, skills_dir: Path, suffix: str, replacement: Replacement
) -> bool:
    """Replace the files, and then the database; return whether there were earlier ones.

    If a step fails, the earlier steps are undone.
    """
    places = [(scratch / SKILLS, skills_dir)] if (scratch / SKILLS).exists() else []
    # These folders are replaced even if the backup does not contain them: their files belong to the old
    # database.
    places += [(scratch / folder, data_dir / folder) for folder in (INSTALLED, WORKSPACES_NAME)]
    # Pins of other servers stay: without them the gateway would accept any tools they offer next.
    places += [(pins, data_dir / MCP_NAME / pins.name) for pins in _pins(scratch)]
    were_there = [replacement.replaces]
    with ExitStack() as undo:
        for new, old in places:
            were_there.append(set_aside(old, f"{old.name}{suffix}", undo))
            put(new, old, undo)
        replacement.finish()
        undo.pop_all()
    return any(were_there)


def _unpack(source: Path, scratch: Path, progress: Progress, max_size: int | None) -> Restored:
    """Extract and check the files of a backup. Raises ``OSError`` if they cannot be written."""
    with ExitStack() as opened:
        try:
            file = opened.enter_context(ArchiveFile(source))
        except FileNotFoundError:
            raise BackupInvalid(f"{source}: no such file") from None
        except OSError as error:
            raise BackupInvalid(f"{source} cannot be read: {error.strerror}; choose another") from error
        try:
            archive = opened.enter_context(zipfile.ZipFile(file))
            free = shutil.disk_usage(scratch).free
            entries = select_entries(archive, packed=file.seek(0, os.SEEK_END), max_size=max_size, free=free)
            manifest = json.loads(archive.read(MANIFEST))
            restored = Restored(
                version=str(manifest["version"]),
                created_at=str(manifest["createdAt"]),
                skill_files=len(entries.skills),
                replaced=False,
            )
            extract(archive, [entries.database, *entries.skills, *entries.others], scratch, progress)
            _check(scratch / DATABASE_NAME, manifest["sha256"])
        except _BROKEN as error:
            raise _incomplete(source, error) from error
    return restored


def _incomplete(source: Path, error: Exception) -> BackupInvalid:
    return BackupInvalid(f"{source} is not a complete backup of Torana ({error}); choose another")


#: Errors of reading a file that is damaged, encrypted, not a zip file, or not a backup of Torana.
_BROKEN = (EOFError, RuntimeError, LookupError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)


def _check(database: Path, sha256: object) -> None:
    """Raise ``ValueError`` for a database that is damaged or not Torana's, and ``DatabaseTooNew``."""
    if sha256 != _sha256(database):
        raise ValueError("its database is damaged")
    try:
        check_restorable(database)
    except DataDirUnusable as error:
        fault, _, _ = error.detail.partition(";")
        raise ValueError(fault.replace(str(database), "its database")) from error
    _sync(database)


def _sync(file: Path) -> None:
    """Make the content of a file durable."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
