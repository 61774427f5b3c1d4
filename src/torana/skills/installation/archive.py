"""Unpack untrusted archives below one directory, or refuse them.

The first bytes decide the format, not the name: a zip file, or a tar file compressed with gzip. All limits are
checked while reading, because headers may be wrong. Only files and folders are written: no links, no devices,
no permissions except the executable bit, and no hidden files.
"""

from __future__ import annotations

import gzip
import io
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from torana.characters import normalize
from torana.skills.errors import SkillInvalid
from torana.skills.folder import is_hidden

PACKED_LIMIT = 10 * 1024 * 1024
UNPACKED_LIMIT = 50 * 1024 * 1024
ENTRY_LIMIT = 2_000
DEPTH_LIMIT = 16
#: Maximum number of bytes of a path. File systems limit a single name to 255.
PATH_LIMIT = 1_000
#: The maximum size of a tar header about the next entry, such as its long name. Some releases of Python parse
#: it in quadratic time.
HEADER_LIMIT = 2 * PATH_LIMIT
#: The maximum number of fields in global headers, which are processed for each entry.
COMMON_LIMIT = 100
#: The maximum size of all headers before an entry.
BETWEEN_LIMIT = 64 * 1024

#: The size of a tar file besides its files: headers, padding and long names.
_TAR_OVERHEAD = 4 * 1024 * 1024
_CHUNK = 256 * 1024
#: The largest header that ``tarfile`` may read, in whole blocks.
_HEADER_READ = -(-HEADER_LIMIT // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
_CENTRAL = b"PK\x01\x02"
#: Types of headers about the next entry, or about all following entries.
_ABOUT_ENTRIES = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)

#: The first bytes of unsupported archives.
_OTHERS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7-Zip",
    b"Rar!": "RAR",
}
_DRIVE = re.compile(r"[A-Za-z]:")

#: The errors of damaged archives. Endlessly nested headers cause a ``RecursionError``.
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


@dataclass(frozen=True, slots=True)
class _Entry:
    """A checked name in an archive, and its type."""

    parts: tuple[str, ...]
    kind: Literal["file", "folder"]
    executable: bool = False

    @property
    def is_hidden(self) -> bool:
        return any(map(is_hidden, self.parts))


def unpack(archive: bytes, target: Path) -> None:
    """Write the files of ``archive`` below ``target``, an empty directory. After an error it may be incomplete.

    Raises ``SkillInvalid`` for an archive that is too large, damaged, encrypted or in another format, and for
    one with a path outside the target, a duplicate name, a link, a device, or a sparse file.
    """
    check_size(archive)
    try:
        _unpack(archive, _Writer(target))
    except _DAMAGED as error:
        what = str(error)[:200] or type(error).__name__
        raise SkillInvalid(f"The archive is damaged ({what}); fetch it again.") from error


def check_size(archive: bytes) -> None:
    """Raise ``SkillInvalid`` for an archive that is too large."""
    if len(archive) > PACKED_LIMIT:
        raise SkillInvalid(
            f"The archive has more than {PACKED_LIMIT >> 20} MiB; remove "
            "the files that the skill does not need."
        )


def _unpack(archive: bytes, writer: _Writer) -> None:
    if archive[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        _unpack_zip(archive, writer)
    elif archive[:2] == b"\x1f\x8b":
        _unpack_tar(archive, writer)
    else:
        found = next((name for magic, name in _OTHERS.items() if archive.startswith(magic)), None)
        what = f"This is packed with {found}" if found else "This is not an archive"
        raise SkillInvalid(f"{what}; use a zip file or a .tar.gz.")


class _Writer:
    def __init__(self, target: Path) -> None:
        self._target = target
        self._entries = 0
        self._room = UNPACKED_LIMIT
        #: All paths, by the form in which a case-insensitive file system compares them.
        self._taken: dict[str, _Entry] = {}

    def count(self) -> None:
        self._entries += 1
        if self._entries > ENTRY_LIMIT:
            raise SkillInvalid(_TOO_MANY)

    def add(self, entry: _Entry, body: IO[bytes] | None) -> None:
        """Write an entry. A hidden file is read, so that its size counts, but not written."""
        if body is not None and not entry.parts:
            raise SkillInvalid("The archive contains a file without a name; create it again.")
        for depth in range(1, len(entry.parts)):
            self._take(_Entry(entry.parts[:depth], "folder"))
        self._take(entry)
        path = self._target.joinpath(*entry.parts)
        if body is None:
            if not entry.is_hidden:
                path.mkdir(parents=True, exist_ok=True)
        elif entry.is_hidden:
            for _ in self._chunks(body):
                pass
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                for chunk in self._chunks(body):
                    out.write(chunk)
            path.chmod(0o755 if entry.executable else 0o644)

    def _take(self, entry: _Entry) -> None:
        # As a case-insensitive, Unicode-normalising file system compares names.
        key = normalize("NFC", normalize("NFKC", "/".join(entry.parts)).casefold())
        known = self._taken.setdefault(key, entry)
        if known is not entry and (known.parts != entry.parts or "file" in (known.kind, entry.kind)):
            raise SkillInvalid(
                f"{'/'.join(entry.parts)!r} is in the archive twice, "
                "or differs from another name only in case; rename one of them."
            )

    def _chunks(self, body: IO[bytes]) -> Iterator[bytes]:
        while chunk := body.read(_CHUNK):
            self._room -= len(chunk)
            if self._room < 0:
                raise SkillInvalid(_TOO_LARGE)
            yield chunk


_TOO_MANY = f"The archive has more than {ENTRY_LIMIT:,} entries; keep what the skill needs."
_TOO_LARGE = (
    f"The archive unpacks to more than {UNPACKED_LIMIT >> 20} MiB; "
    "remove the files that the skill does not need."
)


def _unpack_zip(archive: bytes, writer: _Writer) -> None:
    # The library reads all entries before it returns the first, so their marks are counted before. Files may
    # contain the same bytes, so this limit is a higher one, which only bounds the memory.
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
    # The library truncates `filename` at the first U+0000.
    name = info.orig_filename
    parts = _parts(name)
    mode = info.external_attr >> 16
    if info.flag_bits & 0x1:
        raise SkillInvalid(f"{name!r} in the archive is encrypted; pack it without a password.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise SkillInvalid(f"{name!r} uses an unsupported compression; pack it with 'deflate'.")
    if name.endswith("/"):
        return _Entry(parts, "folder")
    # A mode without a type comes from an archive that was not made on Unix.
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise SkillInvalid(_no_file(name, "link" if stat.S_ISLNK(mode) else "device or the like"))
    return _Entry(parts, "file", bool(mode & 0o100))


def _unpack_tar(archive: bytes, writer: _Writer) -> None:
    with gzip.GzipFile(fileobj=io.BytesIO(archive)) as unzipped:
        stream = _TarStream(unzipped)
        # In the mode "r|" the library would read beyond the headers.
        with tarfile.open(fileobj=stream, mode="r:", errorlevel=2) as opened:
            for member in opened:
                writer.count()
                if len(opened.pax_headers) > COMMON_LIMIT:
                    raise SkillInvalid(
                        "The global headers of the archive have too many fields; pack it again without them."
                    )
                with stream.entry():
                    entry = _tar_entry(member)
                    if entry is not None:
                        writer.add(entry, opened.extractfile(member) if entry.kind == "file" else None)
        stream.finish()


class _TarStream(io.RawIOBase):
    """A tar file that ``tarfile`` reads. Raises ``SkillInvalid`` for too many, too large or damaged headers.

    The checks see all bytes that the library reads between the entries, so they do not depend on the methods
    by which a release of Python parses them.
    """

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self._position = 0
        self._in_entry = False
        self._headers = 0
        #: The number of bytes read since the last entry, and the last of these reads.
        self._between = 0
        self._last = b""

    @contextmanager
    def entry(self) -> Generator[None]:
        """Read the file of an entry: the limits of headers do not apply."""
        self._in_entry = True
        yield
        self._in_entry = False
        self._between = 0

    def finish(self) -> None:
        """Check the end. ``tarfile`` treats a damaged header after the first as the end of the archive."""
        if any(self._last):
            raise SkillInvalid(_DAMAGED_TAR)
        # gzip detects a truncated archive only at the end.
        while self._read(_CHUNK):
            pass

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence != io.SEEK_SET or offset < self._position:
            raise SkillInvalid(_DAMAGED_TAR)
        while self._position < offset and self._read(min(_CHUNK, offset - self._position)):
            pass
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        if self._in_entry:
            return self._read(size)
        if not 0 <= size <= _HEADER_READ:
            raise SkillInvalid(_LONG_HEADER)
        self._last = self._read(size)
        self._between += len(self._last)
        if self._between > BETWEEN_LIMIT:
            raise SkillInvalid(_DAMAGED_TAR)
        for start in range(0, len(self._last), tarfile.BLOCKSIZE):
            self._check(self._last[start : start + tarfile.BLOCKSIZE])
        return self._last

    def _read(self, size: int) -> bytes:
        room = UNPACKED_LIMIT + _TAR_OVERHEAD - self._position
        data = self._stream.read(room + 1 if size < 0 else min(size, room + 1))
        self._position += len(data)
        if len(data) > room:
            raise SkillInvalid(_TOO_LARGE)
        return data

    def _check(self, block: bytes) -> None:
        try:
            header = tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
        except tarfile.HeaderError:  # text about an entry, the end of the archive, or a damaged header
            return
        self._headers += 1
        # An entry has its header and at most one header about it, and an archive has one global header.
        if self._headers > 2 * ENTRY_LIMIT + 1:
            raise SkillInvalid(_TOO_MANY)
        if header.type in _ABOUT_ENTRIES and not 0 <= header.size <= HEADER_LIMIT:
            raise SkillInvalid(_LONG_HEADER)


_DAMAGED_TAR = "The archive is damaged; create it again."
_LONG_HEADER = (
    f"The archive holds a header of more than {HEADER_LIMIT:,} bytes; shorten the names, and pack "
    "it without extended attributes."
)


def _tar_entry(member: tarfile.TarInfo) -> _Entry | None:
    """Check a member and return its entry. None stands for the archive's root folder."""
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
    return f"{name!r} in the archive is a {what}; only files and folders are allowed: replace it with a copy."


def _parts(name: str) -> tuple[str, ...]:
    """Return the parts of a path in an archive. Raises ``SkillInvalid`` for one that leads outside."""
    if name.startswith("/") or "\\" in name or _DRIVE.match(name) or ".." in name.split("/"):
        raise SkillInvalid(f"{name!r} in the archive is a path outside of it; the archive is refused.")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not name.isprintable():
        raise SkillInvalid(
            f"{name!r} in the archive contains invisible characters, or is not UTF-8; rename it."
        )
    if len(name.encode()) > PATH_LIMIT or len(parts) > DEPTH_LIMIT or any(len(p.encode()) > 255 for p in parts):
        raise SkillInvalid(f"The name {name[:80]!r}… in the archive is too long or too deep; shorten it.")
    return parts
