"""What comes with a message: all of it is named in the text, and fetched what the model can be handed."""

from __future__ import annotations

import asyncio
import codecs
import logging
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from torana.connectors.base import Attachment, ConnectorSettings, TooLarge
from torana.messages import File, FileKind, file_kind

#: Attachments that are named; what is beyond is counted.
_NAMED = 20

#: Seconds in which a file must be there: the platform waits meanwhile, and so do later messages.
_FETCH = 15.0

#: Files of one account that are fetched at once.
_AT_ONCE = 4

#: Characters without a width or a place of their own, which make one name look like another.
_UNSEEN = re.compile(r"[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

_SHOWN_AS = {"image": "image", "file": "file", "voice": "voice message", "video": "video"}

#: How files begin, and what they are then (WebP is looked at by itself).
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)

_log = logging.getLogger(__name__)


class _Left(Exception):
    """Why a file is only named."""


@dataclass
class _Piece:
    """Something that came with a message, and what became of it."""

    attachment: Attachment
    file: File | None = None
    left: str = ""


@dataclass
class Luggage:
    """What came with one message. It is fetched once, however often that is asked for."""

    pieces: Sequence[_Piece]
    #: How many there are that are not even named.
    more: int
    fetched: bool = False

    @property
    def lines(self) -> list[str]:
        """What there is, a line each; behind ``Porter.fetch`` also what could not be had, and why."""
        lines = [_named(piece) for piece in self.pieces]
        return [*lines, f"[and {self.more} more]"] if self.more else lines

    @property
    def files(self) -> tuple[File, ...]:
        """The files that were fetched."""
        return tuple(piece.file for piece in self.pieces if piece.file is not None)


class Porter:
    """Fetches files of one account: few, not large, of the kinds that the model takes, and not for long.

    That a file cannot be had is no error: it is named all the same.
    """

    def __init__(
        self,
        *,
        account: str,
        settings: ConnectorSettings,
        takes: frozenset[FileKind],
        patience: float = _FETCH,
    ) -> None:
        self._patience = patience
        self._account = account
        self._number = settings.files
        self._limit = settings.file_bytes
        self._takes = takes
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def see(self, attachments: Sequence[Attachment]) -> Luggage:
        """What came with a message; nothing is fetched yet."""
        pieces = [_Piece(attachment) for attachment in attachments[:_NAMED]]
        return Luggage(pieces=pieces, more=len(attachments) - len(pieces))

    async def fetch(self, luggage: Luggage) -> None:
        """Fetch what the model can be handed, unless that was done before."""
        if luggage.fetched:
            return
        wanted = [piece for piece in luggage.pieces if _claimed(piece.attachment) in self._takes]
        for piece in wanted[self._number :]:
            piece.left = "one too many"
        await asyncio.gather(*(self._try(piece) for piece in wanted[: self._number]))
        luggage.fetched = True

    async def _try(self, piece: _Piece) -> None:
        try:
            async with asyncio.timeout(self._patience), self._slots:
                body = await self._body(piece.attachment)
            piece.file = _file(piece.attachment, body)
        except _Left as reason:
            piece.left = str(reason)
        except TooLarge:
            piece.left = "too large"
        except Exception as error:  # noqa: BLE001 - whatever a platform does, the message itself is there
            # Its text may hold the address, and that a secret.
            extra = {"account": self._account, "reason": type(error).__name__}
            _log.info("a file could not be fetched", extra=extra)
            piece.left = "could not be fetched"

    async def _body(self, attachment: Attachment) -> bytes:
        if attachment.size is not None and attachment.size > self._limit:
            raise TooLarge
        if attachment.fetch is None:
            raise _Left("could not be fetched")
        body = await attachment.fetch(self._limit)
        if len(body) > self._limit:
            raise TooLarge
        return body


def shown_name(name: str) -> str:
    """A name as it can be shown in a line: nothing unseen in it, and not long."""
    whole = name.encode("utf-8", "replace").decode()
    return " ".join(_UNSEEN.sub(" ", unicodedata.normalize("NFC", whole)).split())[:64]


def _named(piece: _Piece) -> str:
    attachment = piece.attachment
    name = shown_name(attachment.name)
    # Of a picture it is now known; of a text what was said tells more, such as text/csv.
    found = piece.file.media_type if piece.file else ""
    media_type = found if file_kind(found) == "image" else attachment.media_type
    said = [
        _SHOWN_AS[attachment.kind] + (f": {name}" if name else ""),
        shown_name(media_type),
        "" if attachment.size is None else f"{attachment.size / 1000:.1f} kB",
        piece.left,
    ]
    return f"[{', '.join(word for word in said if word)}]"


def _claimed(attachment: Attachment) -> FileKind | None:
    """What somebody says that it is."""
    if attachment.kind not in ("image", "file"):
        return None
    media_type = attachment.media_type.partition(";")[0].strip().lower()
    if media_type == "application/octet-stream":
        return "image" if attachment.kind == "image" else None
    return file_kind("image/jpeg" if media_type == "image/jpg" else media_type)


def _file(attachment: Attachment, body: bytes) -> File:
    """The file as what its bytes are. Raises ``_Left`` where that is something else than was said."""
    claimed = _claimed(attachment)
    media_type, body = _read(body)
    if claimed is None or file_kind(media_type) != claimed:
        raise _Left("not what it is called")
    return File(name=shown_name(attachment.name), media_type=media_type, body=body)


def _read(body: bytes) -> tuple[str, bytes]:
    """What the bytes are; a text in UTF-8."""
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
