"""Archives of strangers: what they hold is written below one directory, or nothing of it is kept.

What an archive is, its first bytes say and not its name: a zip file or a tar file packed with gzip. Everything
is counted while it is read, because headers lie. Only files and folders come out: no links, no devices, no
permissions but that a file may be run, and none of the hidden files, which are no part of a skill.
"""

from __future__ import annotations

import gzip
import io
import re
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

from torana.skills.faults import SkillInvalid
from torana.skills.folder import is_hidden

PACKED_LIMIT = 10 * 1024 * 1024
UNPACKED_LIMIT = 50 * 1024 * 1024
ENTRY_LIMIT = 2_000
DEPTH_LIMIT = 16
#: In bytes; a file system's own limit for one name is 255.
PATH_LIMIT = 1_000
#: Bytes of what a tar file says about an entry apart from it, its longer name above all. Some releases of
#: Python look through it in time that grows with the square of it.
HEADER_LIMIT = 2 * PATH_LIMIT
#: What it may say of all entries, which is gone through for each of them.
COMMON_LIMIT = 100

#: What a tar file holds besides its files: a header and some padding for each, and longer names.
_TAR_OVERHEAD = 4 * 1024 * 1024
_CHUNK = 256 * 1024
_CENTRAL = b"PK\x01\x02"
#: Kinds of headers that tell of the next entry, or of all that follow.
_ABOUT_ENTRIES = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)

#: What archives of other kinds begin with.
_OTHERS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7-Zip",
    b"Rar!": "RAR",
}
_DRIVE = re.compile(r"[A-Za-z]:")

#: What reading a damaged archive raises; a header that nests without end is a ``RecursionError``.
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
    LookupError,
    NotImplementedError,
    RecursionError,
    RuntimeError,
)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """A name in an archive that was checked, and what stands under it."""

    parts: tuple[str, ...]
    kind: Literal["file", "folder"]
    executable: bool = False

    @property
    def hidden(self) -> bool:
        return any(map(is_hidden, self.parts))


def unpack(archive: bytes, target: Path) -> None:
    """Write the files of ``archive`` below ``target``, an empty directory, which may be left half full.

    Raises ``SkillInvalid`` for an archive that is too large, damaged, encrypted or of another kind, and for one
    with a name that leads elsewhere or stands for two files, a link, a device, or a sparse file.
    """
    if len(archive) > PACKED_LIMIT:
        raise SkillInvalid(
            f"The archive has more than {PACKED_LIMIT >> 20} MiB; leave out what the skill needs not."
        )
    try:
        _unpack(archive, _Writer(target))
    except _DAMAGED as error:
        what = str(error)[:200] or type(error).__name__
        raise SkillInvalid(f"The archive is damaged ({what}); fetch it again.") from error


def _unpack(archive: bytes, writer: _Writer) -> None:
    if archive[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        _unpack_zip(archive, writer)
    elif archive[:2] == b"\x1f\x8b":
        _unpack_tar(archive, writer)
    else:
        raise SkillInvalid(_other(archive))


def _other(archive: bytes) -> str:
    found = next((name for magic, name in _OTHERS.items() if archive.startswith(magic)), None)
    what = f"That is packed with {found}" if found else "That is no archive"
    return f"{what}; a zip file or a .tar.gz is taken."


class _Writer:
    """Writes checked entries below a directory, within the bounds."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._entries = 0
        self._room = UNPACKED_LIMIT
        #: Every path there is, as it is written, under what a forgiving file system takes it for.
        self._taken: dict[str, _Entry] = {}

    def count(self) -> None:
        """Count an entry, whatever it is."""
        self._entries += 1
        if self._entries > ENTRY_LIMIT:
            raise SkillInvalid(_TOO_MANY)

    def add(self, entry: _Entry, body: _Readable | None) -> None:
        """Write an entry; what is hidden is read, so that it counts, and not kept."""
        if body is not None and not entry.parts:
            raise SkillInvalid("The archive holds a file without a name; pack it anew.")
        for depth in range(1, len(entry.parts)):
            self._take(_Entry(entry.parts[:depth], "folder"))
        self._take(entry)
        path = self._target.joinpath(*entry.parts)
        if body is None:
            if not entry.hidden:
                path.mkdir(parents=True, exist_ok=True)
        elif entry.hidden:
            for _ in self._chunks(body):
                pass
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                for chunk in self._chunks(body):
                    out.write(chunk)
            path.chmod(0o755 if entry.executable else 0o644)

    def _take(self, entry: _Entry) -> None:
        key = _folded("/".join(entry.parts))
        known = self._taken.setdefault(key, entry)
        if known is not entry and (known.parts != entry.parts or "file" in (known.kind, entry.kind)):
            raise SkillInvalid(
                f"{_shown(entry)} is in the archive twice, or is another name in other letters; rename one."
            )

    def _chunks(self, body: _Readable) -> Iterator[bytes]:
        while chunk := body.read(_CHUNK):
            self._room -= len(chunk)
            if self._room < 0:
                raise SkillInvalid(_TOO_LARGE)
            yield chunk


_TOO_MANY = f"The archive has more than {ENTRY_LIMIT:,} entries; keep what the skill needs."
_TOO_LARGE = f"The archive unpacks to more than {UNPACKED_LIMIT >> 20} MiB; leave out what the skill needs not."


def _unpack_zip(archive: bytes, writer: _Writer) -> None:
    # The library reads the whole list of entries before it tells the first one. Files inside may hold such
    # marks too, so this bound is but one on memory.
    if archive.count(_CENTRAL) > 10 * ENTRY_LIMIT:
        raise SkillInvalid(_TOO_MANY)
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        for info in opened.infolist():
            writer.count()
            entry = _zip_entry(info)
            if entry.kind == "folder":
                writer.add(entry, None)
            else:
                with opened.open(info) as body:
                    writer.add(entry, body)


def _zip_entry(info: zipfile.ZipInfo) -> _Entry:
    # What the library makes of a name ends at its first U+0000.
    name = info.orig_filename
    parts = _parts(name)
    mode = info.external_attr >> 16
    if info.flag_bits & 0x1:
        raise SkillInvalid(f"{name!r} in the archive is encrypted; pack it without a password.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise SkillInvalid(f"{name!r} is packed in a way that is not taken; pack it with 'deflate', as usual.")
    if name.endswith("/"):
        return _Entry(parts, "folder")
    # Without a type in its mode it was not packed on Unix.
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise SkillInvalid(_no_file(name, "link" if stat.S_ISLNK(mode) else "device or the like"))
    return _Entry(parts, "file", bool(mode & 0o100))


def _unpack_tar(archive: bytes, writer: _Writer) -> None:
    with gzip.GzipFile(fileobj=io.BytesIO(archive)) as unzipped:
        bounded = _Bounded(unzipped, UNPACKED_LIMIT + _TAR_OVERHEAD)
        with _Tar.open(fileobj=bounded, mode="r|", errorlevel=2, tarinfo=_Header) as opened:
            for member in opened:
                writer.count()
                entry = _tar_entry(member)
                if entry is not None:
                    writer.add(entry, opened.extractfile(member) if entry.kind == "file" else None)
        # To its end: only there it shows whether it was whole.
        while bounded.read(_CHUNK):
            pass


class _Tar(tarfile.TarFile):
    """Counts the headers that were read: those about an entry apart from it are no entries to ``tarfile``."""

    _headers = 0

    def count(self) -> None:
        """Count a header. Of an entry there may be two; one is of all, and one the end."""
        self._headers += 1
        if self._headers > 2 * ENTRY_LIMIT + 2:
            raise SkillInvalid(_TOO_MANY)
        if len(self.pax_headers) > COMMON_LIMIT:
            raise SkillInvalid("The archive says too much of all its entries at once; pack it anew.")


class _Header(tarfile.TarInfo):
    """A member whose header is whole: to ``tarfile`` a damaged one behind the first is the end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """Read a member with all that is said about it. Raises ``SkillInvalid``."""
        if isinstance(tarfile, _Tar):
            tarfile.count()
        return super().fromtarfile(tarfile)

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header. Raises ``SkillInvalid`` for one that is damaged or belongs to a long text."""
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not any(buf):  # the end
                raise
            raise SkillInvalid("The archive is damaged; pack it anew.") from error
        if header.type in _ABOUT_ENTRIES and not 0 <= header.size <= HEADER_LIMIT:
            raise SkillInvalid(
                f"The archive holds a header of more than {HEADER_LIMIT:,} bytes; shorten the names, and pack "
                "it without extended attributes."
            )
        return header


class _Bounded(io.RawIOBase):
    """A stream that refuses to be read any further than so many bytes."""

    def __init__(self, stream: _Readable, room: int) -> None:
        self._stream = stream
        self._room = room

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes."""
        data = self._stream.read(self._room + 1 if size < 0 else min(size, self._room + 1))
        self._room -= len(data)
        if self._room < 0:
            raise SkillInvalid(_TOO_LARGE)
        return data


def _tar_entry(member: tarfile.TarInfo) -> _Entry | None:
    """None stands for the folder that everything is in."""
    parts = _parts(member.name)
    if member.size < 0:
        raise SkillInvalid(f"The archive is damaged ({member.name!r} has no size); fetch it again.")
    if member.isdir():
        return _Entry(parts, "folder") if parts else None
    if member.issym() or member.islnk():
        raise SkillInvalid(_no_file(member.name, "link"))
    if member.issparse() or not member.isreg():
        raise SkillInvalid(_no_file(member.name, "sparse file" if member.issparse() else "device or the like"))
    return _Entry(parts, "file", bool(member.mode & 0o100))


def _no_file(name: str, what: str) -> str:
    return f"{name!r} in the archive is a {what}; only files and folders are taken: put a copy in its place."


def _parts(name: str) -> tuple[str, ...]:
    """The parts of a path in an archive. Raises ``SkillInvalid`` for one that could lead elsewhere."""
    if name.startswith("/") or "\\" in name or _DRIVE.match(name) or ".." in name.split("/"):
        raise SkillInvalid(f"{name!r} in the archive leads out of it; nothing of it is taken.")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not name.isprintable():
        raise SkillInvalid(
            f"{name!r} in the archive holds characters that do not show, or is not UTF-8; rename it."
        )
    if len(name.encode()) > PATH_LIMIT or len(parts) > DEPTH_LIMIT or any(len(p.encode()) > 255 for p in parts):
        raise SkillInvalid(f"The name {name[:80]!r}… in the archive is too long or too deep; shorten it.")
    return parts


def _folded(name: str) -> str:
    """What file systems that forgive case and Unicode form take the name for."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", name).casefold())


def _shown(entry: _Entry) -> str:
    return repr("/".join(entry.parts))
