"""Archives for tests, built by hand where no packer would create them."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Mapping

SKILL = """\
---
name: tea
description: Brews tea. Use it when someone asks for tea.
---
# Tea

Boil water.
"""

TEA: Mapping[str, str] = {"tea/SKILL.md": SKILL, "tea/scripts/brew.sh": "echo tea\n"}


def zipped(files: Mapping[str, str | bytes] = TEA, *, mode: int = stat.S_IFREG | 0o644) -> bytes:
    """Return a zip file with these files, in order; a name that ends in a slash is a folder."""
    packed = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(packed, "w") as archive:
        for name, body in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode << 16
            archive.writestr(info, body)
    return packed.getvalue()


def tarred(files: Mapping[str, str | bytes] = TEA, *, mode: int = 0o644) -> bytes:
    """Return a ``.tar.gz`` with these files, in order."""
    return tar_of((member(name, mode=mode), _bytes(body)) for name, body in files.items())


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    """Return an entry of a tar file."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def tar_of(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """Return a ``.tar.gz`` of these entries."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, body in members:
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return packed.getvalue()


def tar_blocks(*blocks: bytes) -> bytes:
    """Return a ``.tar.gz`` of raw blocks, with the two empty blocks at its end."""
    return gzip.compress(b"".join(blocks) + bytes(1024), mtime=0)


def header(name: str, *, size: bytes = b"00000000000\0", kind: bytes = b"0") -> bytes:
    """Return the raw header of an entry with these claims and a correct checksum."""
    block = bytearray(512)
    block[: len(name)] = name.encode()
    block[100:108] = b"0000644\0"
    block[108:116] = block[116:124] = b"0000000\0"
    block[124:136] = size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def claiming(archive: bytes, *, size: int) -> bytes:
    """Return the zip file with headers that claim this unpacked size for each file."""
    lying = bytearray(archive)
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = -1
        while (at := archive.find(mark, at + 1)) >= 0:
            struct.pack_into("<I", lying, at + offset, size)
    return bytes(lying)


def encrypted(archive: bytes) -> bytes:
    """Return the zip file marked as encrypted."""
    marked = bytearray(archive)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := archive.find(mark, at + 1)) >= 0:
            marked[at + offset] |= 1
    return bytes(marked)


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body
