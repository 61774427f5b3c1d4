"""Find the files of a skill's folder, with limits, and never outside the directory of the skills."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path

from torana.skills.errors import SkillFileError, SkillInvalid

ENTRY_LIMIT = 2_000
DEPTH_LIMIT = 8
BYTES_LIMIT = 50 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A regular file of a skill. Two are equal if the file was not changed in between."""

    #: Relative to the skill's folder, with forward slashes.
    name: str
    #: A string, because thousands of ``Path`` objects would dominate the cost of a scan.
    path: str
    size: int
    #: Times of modification and of status change, in nanoseconds. The second also changes when an older file
    #: replaces this one.
    times: tuple[int, int]


def is_hidden(name: str) -> bool:
    """Return whether a name is excluded from skills: dot files (version control, ``.env``), Python's caches."""
    return name.startswith(".") or name == "__pycache__"


def find_files(directory: Path) -> tuple[SkillFile, ...]:
    """Return all files of the folder that are not hidden, sorted by name.

    Links are followed if they stay inside the folder's parent, the directory of the skills. Raises
    ``SkillInvalid`` for a link that leaves it, for anything that is neither file nor folder, and above a limit.
    """
    try:
        root = Path(os.path.realpath(directory.parent))
        _refuse_escape(str(directory), root=root, name=directory.name)
        entries = list(islice(_walk(str(directory), root=root, parents=()), ENTRY_LIMIT + 1))
    except OSError as error:
        where = os.path.relpath(error.filename or directory, directory)
        subject = "The folder" if where == "." else repr(where)
        raise SkillInvalid(f"{subject} cannot be read ({error.strerror}); repair or remove it.") from error
    if len(entries) > ENTRY_LIMIT:
        raise SkillInvalid(f"The folder has more than {ENTRY_LIMIT:,} entries; keep what the skill needs.")
    files = (entry for entry in entries if entry is not None)
    return tuple(sorted(files, key=attrgetter("name")))


def files_to_keep(skills_dir: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a skills directory for a backup: the relative path with forward slashes, and the file.

    Hidden files are omitted. Links are followed as in ``find_files``; of a folder that breaks its rules, only
    regular files are included. Raises ``OSError`` if a file cannot be read.
    """
    try:
        entries = sorted(skills_dir.iterdir())
    except FileNotFoundError:
        entries = []
    for entry in (entry for entry in entries if not is_hidden(entry.name)):
        if entry.is_dir():
            yield from ((f"{entry.name}/{name}", file) for name, file in _files_of(entry))
        elif entry.is_file() and not entry.is_symlink():
            yield entry.name, entry


def _files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    try:
        yield from ((file.name, Path(file.path)) for file in find_files(folder))
    except SkillInvalid:
        if not folder.is_symlink():
            yield from _own_files(folder)


def _own_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for directory, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        for path in (Path(directory, name) for name in names if not is_hidden(name)):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), path


def digest(files: Iterable[SkillFile]) -> str:
    """Return ``sha256:…`` of the names and contents of ``files``, in their order.

    It hashes the output of ``sha256sum --zero``, so it can be checked without Torana. Raises ``SkillInvalid``
    above the size limit, and for a file that cannot be read.
    """
    files = tuple(files)
    if sum(file.size for file in files) > BYTES_LIMIT:
        raise SkillInvalid(f"The folder holds more than {BYTES_LIMIT >> 20} MiB; keep what the skill needs.")
    lines = hashlib.sha256()
    for file in files:
        lines.update(f"{_content_digest(file)}  {file.name}\0".encode())
    return f"sha256:{lines.hexdigest()}"


def read_text(file: SkillFile, *, limit: int) -> str:
    """Return the file's text, without a byte order mark and with Unix line ends.

    Raises ``SkillFileError`` if the file has more than ``limit`` bytes or is not UTF-8 text.
    """
    try:
        with Path(file.path).open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise SkillFileError(f"{file.name} cannot be read ({error.strerror}); repair or remove it.") from error
    if len(data) > limit:
        raise SkillFileError(f"{file.name} has more than {limit:,} bytes; split it into smaller files.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SkillFileError(
            f"{file.name} is not text in UTF-8 (byte {error.start + 1}); save it as UTF-8."
        ) from error
    if "\0" in text:
        raise SkillFileError(f"{file.name} is not text: it holds U+0000; save it as plain text.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _walk(directory: str, *, root: Path, parents: tuple[str, ...]) -> Iterator[SkillFile | None]:
    """Yield the files below ``directory``, and None for each folder, so that folders count for the limit."""
    if len(parents) > DEPTH_LIMIT:
        raise SkillInvalid(
            f"{parents[0]!r} is nested more than {DEPTH_LIMIT} folders deep; flatten it, "
            "or remove a link that leads back."
        )
    with os.scandir(directory) as entries:
        for entry in entries:
            if not is_hidden(entry.name):
                yield from _visit(entry, root=root, parents=parents)


def _visit(entry: os.DirEntry[str], *, root: Path, parents: tuple[str, ...]) -> Iterator[SkillFile | None]:
    name = "/".join((*parents, entry.name))
    _refuse_undecodable(name)
    if entry.is_symlink():
        _refuse_escape(entry.path, root=root, name=name)
    status = entry.stat()
    if stat.S_ISDIR(status.st_mode):
        yield None
        yield from _walk(entry.path, root=root, parents=(*parents, entry.name))
    elif stat.S_ISREG(status.st_mode):
        yield SkillFile(name, entry.path, status.st_size, (status.st_mtime_ns, status.st_ctime_ns))
    else:
        raise SkillInvalid(f"{name!r} is neither a file nor a folder; remove it.")


def _refuse_escape(path: str, *, root: Path, name: str) -> None:
    if not Path(os.path.realpath(path)).is_relative_to(root):
        raise SkillInvalid(
            f"{name!r} is a link that leads out of the skills directory; copy what it points to."
        )


def _refuse_undecodable(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SkillInvalid(f"The file name {name!r} is not UTF-8; rename the file.") from error


def _content_digest(file: SkillFile) -> str:
    try:
        with Path(file.path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise SkillInvalid(f"{file.name} cannot be read ({error.strerror}); repair or remove it.") from error
