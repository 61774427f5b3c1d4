"""Backups: one zip file with the database, the user's skills, and what made it."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from torana.errors import BackupInvalid, OperatorError

DATABASE_NAME = "torana.db"

_MANIFEST = "manifest.json"
_SKILLS = "skills"
_PAGES = 256  # copied between two reports of progress

#: Called with how many of how many parts are done.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a backup held: who made it and when, and how many files of skills."""

    version: str
    created_at: str
    skill_files: int


def copy_database(source: Path, target: Path, progress: Progress = lambda _done, _all: None) -> None:
    """Copy a database as it is now, by SQLite's own backup; a gateway may write to it meanwhile.

    The copy is readable by its owner alone.
    """
    target.touch(mode=0o600)
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        # One reader's view for all steps: without it the copy starts anew whenever the gateway has written.
        old.execute("BEGIN")
        old.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        old.backup(new, pages=_PAGES, progress=lambda _status, left, all_: progress(all_ - left, all_))
        new.execute("PRAGMA journal_mode=DELETE")


def write_backup(
    *, data_dir: Path, skills_dir: Path, target: Path, version: str, at: datetime, progress: Progress
) -> None:
    """Write a backup to ``target``, which appears whole or not at all. A running gateway is not disturbed.

    Raises ``OperatorError`` where something cannot be read or written.
    """
    try:
        _write(data_dir, skills_dir, target, version, at, progress)
    except (OSError, sqlite3.Error) as error:
        raise OperatorError(f"cannot write the backup {target}: {error}; nothing was written") from error


def _write(
    data_dir: Path, skills_dir: Path, target: Path, version: str, at: datetime, progress: Progress
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".torana-backup-") as scratch:
        database = Path(scratch, DATABASE_NAME)
        copy_database(data_dir / DATABASE_NAME, database, progress)
        archive = Path(scratch, "archive.zip")
        # A zip file knows no time before 1980, and some packers date every file 1970.
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
            out.write(database, DATABASE_NAME)
            for file in _files(skills_dir):
                out.write(file, str(PurePosixPath(_SKILLS, *file.relative_to(skills_dir).parts)))
            manifest = {"version": version, "createdAt": at.isoformat(), "sha256": _sha256(database)}
            out.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        archive.chmod(0o600)
        archive.replace(target)


def restore_backup(*, source: Path, data_dir: Path, skills_dir: Path, at: datetime) -> Restored:
    """Put a backup's database and skills in the place of what is there, which is kept beside it.

    The caller holds the data directory's lock. The backup is checked whole before anything is touched; raises
    ``BackupInvalid`` for a file that is not one, and ``OperatorError`` where something cannot be written. What
    was there before stays as ``<name>.replaced-<time>``.
    """
    try:
        with tempfile.TemporaryDirectory(dir=data_dir, prefix=".torana-restore-") as scratch:
            restored = _unpack(source, Path(scratch))
            _put_in_place(Path(scratch), data_dir, skills_dir, f".replaced-{at:%Y%m%dT%H%M%SZ}")
    except OSError as error:
        raise OperatorError(f"cannot put the backup in place: {error}") from error
    return restored


def _put_in_place(scratch: Path, data_dir: Path, skills_dir: Path, suffix: str) -> None:
    for journal in ("-wal", "-shm"):
        # Beside the old database and named after it, so that whoever opens that still finds its last writes.
        leftover = data_dir / f"{DATABASE_NAME}{journal}"
        if leftover.exists():
            leftover.replace(data_dir / f"{DATABASE_NAME}{suffix}{journal}")
    _swap(scratch / DATABASE_NAME, data_dir / DATABASE_NAME, suffix)
    if (scratch / _SKILLS).exists():
        _swap(scratch / _SKILLS, skills_dir, suffix)


def _swap(new: Path, old: Path, suffix: str) -> None:
    if old.exists():
        shutil.move(old, old.with_name(old.name + suffix))
    old.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(new, old)


def _unpack(source: Path, scratch: Path) -> Restored:
    """Extract the parts we know by name and check them; the archive's own paths never leave ``scratch``."""
    try:
        with zipfile.ZipFile(source) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            skills = [entry for entry in archive.infolist() if _is_skill_file(entry.filename)]
            for entry in (archive.getinfo(DATABASE_NAME), *skills):
                _extract(archive, entry, scratch)
        _check(scratch / DATABASE_NAME, manifest["sha256"])
        return Restored(version=manifest["version"], created_at=manifest["createdAt"], skill_files=len(skills))
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
    sqlite3.Error,
)


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, scratch: Path) -> None:
    """Write one file; of its permissions it keeps that it may be run, and nobody but the owner gets any."""
    runs = (entry.external_attr >> 16) & 0o100
    Path(archive.extract(entry, scratch)).chmod(0o600 | runs)


def _check(database: Path, sha256: str) -> None:
    """Raise ``ValueError`` or ``sqlite3.Error`` for a database that is damaged or not Torana's."""
    if sha256 != _sha256(database):
        raise ValueError("its database is damaged")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("SELECT version_num FROM alembic_version")
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise ValueError(f"its database is damaged: {verdict}")


def _is_skill_file(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return len(parts) > 1 and parts[0] == _SKILLS and ".." not in parts and not name.endswith("/")


def _files(directory: Path) -> Iterator[Path]:
    """Every regular file below, links left out."""
    return (file for file in sorted(directory.rglob("*")) if file.is_file() and not file.is_symlink())


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
