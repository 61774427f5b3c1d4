"""The sources of a skill: a folder, an archive, a git address or a URL."""

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

from torana.skills.errors import SkillInvalid
from torana.skills.folder import is_hidden
from torana.skills.installation.archive import ENTRY_LIMIT, PACKED_LIMIT, UNPACKED_LIMIT

SourceKind = Literal["folder", "file", "git", "url"]

#: Sites on which an address with two path segments is a repository.
_CODE_HOSTS = frozenset({"github.com", "gitlab.com", "codeberg.org", "bitbucket.org"})
_SCP = re.compile(r"[\w.-]+@[\w.-]+:[^\s:]+")
#: Plain names of branches, tags and commits; never an option.
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]{0,199}")
ADDRESS_LIMIT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSource:
    """The source of a skill. ``address`` is a path, or the address for git or HTTPS."""

    kind: SourceKind
    address: str
    revision: str | None = None

    @property
    def is_local(self) -> bool:
        """Return whether the source is a path on this machine, or git over another protocol than HTTPS."""
        return not self.address.startswith("https://")

    def __str__(self) -> str:
        """Return the source in the form that ``read_source`` accepts."""
        git = "git+" if self.kind == "git" and self.address.startswith("https://") else ""
        return f"{git}{self.address}" + (f"#{self.revision}" if self.revision else "")


def read_source(text: str, *, local: bool) -> SkillSource:
    """Parse a source. With ``local``, an existing path on this machine is a source.

    Raises ``SkillInvalid``.
    """
    if not text.strip() or len(text) > ADDRESS_LIMIT or not text.isprintable():
        raise SkillInvalid(
            "The source is empty, too long or has control characters; name a folder, an archive, a git address "
            "or an https URL."
        )
    address, _, revision = text.partition("#")
    # Without `local`, the caller must not learn which paths exist.
    if local and _is_path(text):
        path = _path(text)
        if not path.is_file() and not path.is_dir():
            raise SkillInvalid(f"{path} is neither a file nor a folder.")
        return SkillSource(kind="file" if path.is_file() else "folder", address=str(path))
    if local and _is_path(address):
        return _git_source(str(_path(address)), revision)
    if text.startswith(("git+", "ssh://", "git://")) or _SCP.fullmatch(address):
        return _git_source(address.removeprefix("git+"), revision)
    parts = split_address(address)
    if parts.scheme == "http":
        raise SkillInvalid(
            "http is not allowed, because others on the network can change the content; use https."
        )
    if parts.scheme != "https" or not parts.hostname:
        here = f"{text!r} does not exist here, and it" if local else "That"
        raise SkillInvalid(f"{here} is neither a git address nor an https URL.")
    _refuse_credentials(address)
    names = [name for name in parts.path.split("/") if name]
    if parts.path.endswith(".git") or (parts.hostname in _CODE_HOSTS and len(names) == 2 and not parts.query):
        return _git_source(address, revision)
    return SkillSource(kind="url", address=address)


def split_address(address: str) -> SplitResult:
    """Split an address with a valid port. Raises ``SkillInvalid``."""
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        # The message does not repeat the address: a wrong port may be a password.
        raise SkillInvalid(
            "The host or port of the source is not valid; write it as https://host/path."
        ) from None
    return parts


def pack_folder(folder: Path) -> bytes:
    """Pack a folder as an archive without hidden files. Links and devices stay as they are.

    Raises ``SkillInvalid`` above a limit, and for a file that cannot be read.
    """
    entries = size = 0
    packed = io.BytesIO()
    try:
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as out,
            tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in _files_below(folder):
                entries, size = entries + 1, size + path.lstat().st_size
                if entries > ENTRY_LIMIT or size > UNPACKED_LIMIT:
                    raise SkillInvalid(
                        f"The folder has more than {ENTRY_LIMIT:,} entries or {UNPACKED_LIMIT >> 20} MiB; "
                        "keep what the skill needs."
                    )
                archive.add(path, arcname=f"{folder.name}/{path.relative_to(folder)}", recursive=False)
    except (OSError, ValueError) as error:
        raise SkillInvalid(f"{folder} cannot be read ({error}); correct its permissions.") from error
    return packed.getvalue()


def read_archive(file: Path) -> bytes:
    """Return an archive on this machine. Raises ``SkillInvalid``."""
    try:
        with file.open("rb") as stream:
            data = stream.read(PACKED_LIMIT + 1)
    except OSError as error:
        raise SkillInvalid(f"{file} cannot be read ({error.strerror}); correct its permissions.") from error
    if len(data) > PACKED_LIMIT:
        raise SkillInvalid(
            f"{file} has more than {PACKED_LIMIT >> 20} MiB; remove the files that the skill does not need."
        )
    return data


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


def _git_source(address: str, revision: str) -> SkillSource:
    if revision and (_REVISION.fullmatch(revision) is None or ".." in revision):
        raise SkillInvalid(
            f"{revision!r} is not the name of a branch, tag or commit; write the name after the '#'."
        )
    scheme = split_address(address).scheme if "://" in address else ""
    remote_helper = not scheme and "::" in address
    if scheme not in ("", "https", "ssh", "git") or address.startswith("-") or remote_helper:
        raise SkillInvalid(f"{address!r} is not a supported git address; use https, ssh or git.")
    _refuse_credentials(address)
    return SkillSource(kind="git", address=address, revision=revision or None)


def _refuse_credentials(address: str) -> None:
    parts = split_address(address) if "://" in address else None
    if parts is not None and (parts.password or (parts.scheme == "https" and parts.username)):
        raise SkillInvalid(
            "The address contains a user name or a password, which would be stored with it; omit them, or "
            "clone it yourself and install the folder."
        )
