"""The files of a message: all are named in the text, and those that the model accepts are fetched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torana.connectors.base import Attachment, AttachmentKind, ConnectorSettings, TooLarge
from torana.message_files import Noun, detect_content, file_line, shown_name
from torana.messages import File, FileKind, file_kind
from torana.workers.fair_slots import FairSlots

#: Maximum number of attachments that the text names; it counts the others.
_NAMED = 20

#: Timeout, in seconds, for a file, and for the wait before: the platform and later messages wait meanwhile.
_FETCH = 15.0

#: Maximum number of concurrent downloads for one account, and for one of its senders.
_AT_ONCE, _PER_SENDER = 4, 2

_SHOWN_AS: Mapping[AttachmentKind, Noun] = {
    "image": "image",
    "file": "file",
    "voice": "voice message",
    "video": "video",
}

_log = logging.getLogger(__name__)


class _Left(Exception):
    """The reason why a file is not passed to the model."""


@dataclass
class _Piece:
    """An attachment, with its content or the reason why there is none."""

    attachment: Attachment
    file: File | None = None
    left: str = ""


@dataclass
class MessageFiles:
    """The files of one message; they are fetched only once."""

    pieces: Sequence[_Piece]
    #: The number of files that the text does not name.
    more: int
    fetched: bool = False

    @property
    def lines(self) -> list[str]:
        """Return one line for each file; after ``fetch`` with the reason for each file that failed."""
        lines = [_attachment_label(piece) for piece in self.pieces]
        return [*lines, f"[and {self.more} more]"] if self.more else lines

    @property
    def files(self) -> tuple[File, ...]:
        return tuple(piece.file for piece in self.pieces if piece.file is not None)


class AttachmentFetcher:
    """Fetches the files of an account's messages, within limits for number, size, kind and time.

    A file that cannot be fetched is no error: the text still names it.
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
        self._slots = FairSlots(total=_AT_ONCE, per_user=_PER_SENDER)

    def see(self, attachments: Sequence[Attachment]) -> MessageFiles:
        pieces = [_Piece(attachment) for attachment in attachments[:_NAMED]]
        return MessageFiles(pieces=pieces, more=len(attachments) - len(pieces))

    async def fetch(self, message_files: MessageFiles, *, sender: str) -> None:
        """Fetch the files that the model accepts, unless that was done before. Senders take turns."""
        if message_files.fetched:
            return
        wanted = [piece for piece in message_files.pieces if _declared_kind(piece.attachment) in self._takes]
        for piece in wanted[self._number :]:
            piece.left = "too many files"
        await asyncio.gather(*(self._try(piece, sender) for piece in wanted[: self._number]))
        message_files.fetched = True

    async def _try(self, piece: _Piece, sender: str) -> None:
        try:
            async with asyncio.timeout(self._patience) as patience, self._slots.slot(sender):
                # The wait for downloads of other senders must not take the time of this one.
                patience.reschedule(asyncio.get_running_loop().time() + self._patience)
                body = await self._body(piece.attachment)
            piece.file = _file(piece.attachment, body)
        except _Left as reason:
            piece.left = str(reason)
        except TooLarge:
            piece.left = "too large"
        except Exception as error:  # noqa: BLE001 - the message is processed without the file
            # The error's text may contain the address, and the address a secret.
            extra = {"account": self._account, "reason": type(error).__name__}
            _log.info("file_not_fetched", extra=extra)
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


def _attachment_label(piece: _Piece) -> str:
    attachment = piece.attachment
    # The detected type of an image is exact; for a text the declared type says more, such as text/csv.
    found = piece.file.media_type if piece.file else ""
    return file_line(
        _SHOWN_AS[attachment.kind],
        name=attachment.name,
        media_type=found if file_kind(found) == "image" else attachment.media_type,
        size=attachment.size,
        left=piece.left,
    )


def _declared_kind(attachment: Attachment) -> FileKind | None:
    if attachment.kind not in ("image", "file"):
        return None
    media_type = attachment.media_type.partition(";")[0].strip().lower()
    if media_type == "application/octet-stream":
        return "image" if attachment.kind == "image" else None
    return file_kind("image/jpeg" if media_type == "image/jpg" else media_type)


def _file(attachment: Attachment, body: bytes) -> File:
    """Return the file with its detected type. Raises ``_Left`` if the type is not of the declared kind."""
    claimed = _declared_kind(attachment)
    media_type, body = detect_content(body)
    if claimed is None or file_kind(media_type) != claimed:
        raise _Left("content does not match its type")
    return File(name=shown_name(attachment.name), media_type=media_type, body=body)
