"""The files of messages: their names and types, and the lines that name them in the text."""

from __future__ import annotations

import codecs
from typing import Literal

from torana.characters import HIDDEN, JOINERS, char_class, normalize
from torana.messages import FileKind

#: The noun for a file in the text of a message.
Noun = Literal["image", "file", "voice message", "video"]

#: Maximum number of files of a message over HTTP, and maximum size of a file in bytes, which providers accept.
FILES_LIMIT, FILE_LIMIT = 5, 3_750_000

#: Characters without a width or a place of their own, which make one name look like another.
_UNSEEN = char_class("\t\n\r", HIDDEN, JOINERS)

#: Maximum characters of a name that are read.
_NAME_LIMIT = 1_000

#: A file has fewer bytes. Senders can state more.
_SIZE_LIMIT = 2**53

#: First bytes of files, and their media types (WebP is checked separately).
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def shown_name(name: str) -> str:
    """Return a name as one short line without invisible characters."""
    whole = name[:_NAME_LIMIT].encode("utf-8", "replace").decode()
    return " ".join(_UNSEEN.sub(" ", normalize("NFC", whole)).split())[:64]


def file_line(noun: Noun, *, name: str, media_type: str, size: int | None, left: str = "") -> str:
    """Return the line that names a file; ``left`` is the reason why the model does not receive it.

    An impossible ``size`` is left out.
    """
    name = shown_name(name)
    details = [
        noun + (f": {name}" if name else ""),
        shown_name(media_type),
        f"{size / 1000:.1f} kB" if size is not None and 0 <= size < _SIZE_LIMIT else "",
        left,
    ]
    return f"[{', '.join(word for word in details if word)}]"


def noun_of(kind: FileKind | None) -> Noun:
    """Return the noun of a file of a kind."""
    return "image" if kind == "image" else "file"


def detect_content(body: bytes) -> tuple[str, bytes]:
    """Return the detected media type and the content; a text is converted to UTF-8."""
    for beginning, media_type in _BEGINNINGS:
        if body.startswith(beginning):
            return media_type, body
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp", body
    is_wide = body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = body.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError:
        return "application/octet-stream", body
    return ("application/octet-stream", body) if "\0" in text else ("text/plain", text.encode())
