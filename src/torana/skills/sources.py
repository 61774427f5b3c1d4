"""Where a skill is installed from, as people write it: a folder, an archive, a git address, a URL."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from torana.skills.archive import ENTRY_LIMIT, PACKED_LIMIT, UNPACKED_LIMIT
from torana.skills.faults import SkillInvalid
from torana.skills.folder import is_hidden

SourceKind = Literal["folder", "file", "git", "url"]

#: Sites where an address of two parts is a repository's.
_FORGES = frozenset({"github.com", "gitlab.com", "codeberg.org", "bitbucket.org"})
_SCP = re.compile(r"[\w.-]+@[\w.-]+:[^\s:]+")
#: What git takes for a branch, a tag or a commit, as far as it is plain; never an option.
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]{0,199}")
ADDRESS_LIMIT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSource:
    """Where a skill comes from. ``address`` is a path, or what git or HTTPS is asked for."""

    kind: SourceKind
    address: str
    revision: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, or reached with somebody's own keys."""
        return not self.address.startswith("https://")

    def __str__(self) -> str:
        """As it may be written again."""
        git = "git+" if self.kind == "git" and self.address.startswith("https://") else ""
        return f"{git}{self.address}" + (f"#{self.revision}" if self.revision else "")


def read_source(text: str, *, local: bool) -> SkillSource:
    """The source that a text means; where ``local``, what exists here as a path is one.

    Raises ``SkillInvalid``.
    """
    if not text.strip() or len(text) > ADDRESS_LIMIT or not text.isprintable():
        raise SkillInvalid("That names no source; name a folder, an archive, a git address or an https URL.")
    address, _, revision = text.partition("#")
    # Whether something is there is not told to those who may not read it.
    if local and _is_path(text):
        return _at(_path(text))
    if local and _is_path(address):
        return _git(str(_path(address)), revision)
    if text.startswith(("git+", "ssh://", "git://")) or _SCP.fullmatch(address):
        return _git(address.removeprefix("git+"), revision)
    parts = split_address(address)
    if parts.scheme == "http":
        raise SkillInvalid("http is not taken, as anybody on the way can change what it brings; use https.")
    if parts.scheme != "https" or not parts.hostname:
        here = f"There is no {text!r} here, and it" if local else "That"
        raise SkillInvalid(f"{here} is no git address and no https URL.")
    _refuse_credentials(address)
    names = [name for name in parts.path.split("/") if name]
    if parts.path.endswith(".git") or (parts.hostname in _FORGES and len(names) == 2 and not parts.query):
        return _git(address, revision)
    return SkillSource(kind="url", address=address)


def split_address(address: str) -> SplitResult:
    """The parts of an address, whose port can be read. Raises ``SkillInvalid``."""
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        # Not repeated, nor what is wrong with it: what should be a port may be a password.
        raise SkillInvalid("Its host or its port is none that can be; write it as https://host/path.") from None
    return parts


def _at(path: Path) -> SkillSource:
    if not path.is_file() and not path.is_dir():
        raise SkillInvalid(f"{path} is neither a file nor a folder.")
    return SkillSource(kind="file" if path.is_file() else "folder", address=str(path))


def pack_folder(folder: Path) -> bytes:
    """A folder as an archive, without what is hidden; its links and devices are in it as such.

    Raises ``SkillInvalid`` past the bounds, and for what cannot be read.
    """
    room = _Room()
    packed = io.BytesIO()
    try:
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as out,
            tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in _files_below(folder):
                room.take(path)
                archive.add(path, arcname=f"{folder.name}/{path.relative_to(folder)}", recursive=False)
    except (OSError, ValueError) as error:
        raise SkillInvalid(f"{folder} cannot be read ({error}); mend it.") from error
    return packed.getvalue()


def read_archive(file: Path) -> bytes:
    """An archive of this machine. Raises ``SkillInvalid``."""
    try:
        with file.open("rb") as stream:
            data = stream.read(PACKED_LIMIT + 1)
    except OSError as error:
        raise SkillInvalid(f"{file} cannot be read ({error.strerror}); mend its permissions.") from error
    if len(data) > PACKED_LIMIT:
        raise SkillInvalid(
            f"{file} has more than {PACKED_LIMIT >> 20} MiB; leave out what the skill needs not."
        )
    return data


class _Room:
    """What of the bounds is left while a folder is packed."""

    def __init__(self) -> None:
        self._entries, self._bytes = ENTRY_LIMIT, UNPACKED_LIMIT

    def take(self, path: Path) -> None:
        self._entries -= 1
        self._bytes -= path.lstat().st_size
        if self._entries < 0 or self._bytes < 0:
            raise SkillInvalid(
                f"The folder has more than {ENTRY_LIMIT:,} entries or {UNPACKED_LIMIT >> 20} MiB; "
                "keep what the skill needs."
            )


def _files_below(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if is_hidden(entry.name):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _files_below(entry)
        else:
            yield entry


def _is_path(text: str) -> bool:
    try:
        return "://" not in text and _path(text).exists()
    except (OSError, RuntimeError):
        return False


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _git(address: str, revision: str) -> SkillSource:
    if revision and (_REVISION.fullmatch(revision) is None or ".." in revision):
        raise SkillInvalid(f"{revision!r} is no branch, tag or commit; write its name behind the '#'.")
    scheme = split_address(address).scheme if "://" in address else ""
    remote_helper = not scheme and "::" in address
    if scheme not in ("", "https", "ssh", "git") or address.startswith("-") or remote_helper:
        raise SkillInvalid(f"{address!r} is no git address that is taken; https, ssh and git are.")
    _refuse_credentials(address)
    return SkillSource(kind="git", address=address, revision=revision or None)


def _refuse_credentials(address: str) -> None:
    parts = split_address(address) if "://" in address else None
    if parts is not None and (parts.password or (parts.scheme == "https" and parts.username)):
        raise SkillInvalid(
            "The address holds a user or a password, which would be written down with it; leave them out, or "
            "clone it yourself and install the folder."
        )
