"""Attachments of a message: fetched files and files that are only named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from torana.connectors.base import Attachment, ConnectorSettings, TooLarge
from torana.connectors.runtime.attachments import AttachmentFetcher, MessageFiles
from torana.message_files import shown_name
from torana.messages import FileKind

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
JPEG = b"\xff\xd8\xff\xe0" + b"\0" * 20
GIF = b"GIF89a" + b"\0" * 20
WEBP = b"RIFF\x10\0\0\0WEBPVP8 " + b"\0" * 8
PDF = b"%PDF-1.7\n%\xe2\xe3"
PROGRAM = b"MZ\x90\0" + b"\0" * 20


class Sent:
    """An attachment that counts how often it is fetched."""

    def __init__(
        self,
        body: bytes | Exception = PNG,
        media_type: str = "image/png",
        *,
        kind: Literal["image", "file", "voice", "video"] = "file",
        name: str = "a",
        size: int | None = None,
        gate: asyncio.Event | None = None,
    ) -> None:
        self.fetched = 0
        self._body = body
        self._gate = gate
        self.attachment = Attachment(kind=kind, name=name, media_type=media_type, size=size, fetch=self._fetch)

    async def _fetch(self, limit: int) -> bytes:
        self.fetched += 1
        if self._gate is not None:
            await self._gate.wait()
        if isinstance(self._body, Exception):
            raise self._body
        return self._body


def porter(
    *,
    takes: Sequence[FileKind] = ("text", "image", "pdf"),
    patience: float = 20,
    **settings: Any,
) -> AttachmentFetcher:
    return AttachmentFetcher(
        account="home",
        settings=ConnectorSettings(**settings),
        takes=frozenset(takes),
        patience=patience,
    )


async def fetch_files(at: AttachmentFetcher, *sent: Sent) -> MessageFiles:
    message_files = at.see([one.attachment for one in sent])
    await at.fetch(message_files, sender="ana")
    return message_files


@pytest.mark.parametrize(
    ("media_type", "body", "found"),
    [
        ("image/png", PNG, "image/png"),
        ("IMAGE/PNG; name=a", PNG, "image/png"),
        ("image/jpg", JPEG, "image/jpeg"),
        ("image/png", JPEG, "image/jpeg"),
        ("image/gif", GIF, "image/gif"),
        ("image/gif", b"GIF87a", "image/gif"),
        ("image/webp", WEBP, "image/webp"),
        ("application/pdf", PDF, "application/pdf"),
        ("text/csv; charset=utf-8", b"a,b\n", "text/plain"),
        ("text/plain", b"", "text/plain"),
    ],
)
async def test_media_type_is_detected_from_content(media_type: str, body: bytes, found: str) -> None:
    (file,) = (await fetch_files(porter(), Sent(body, media_type, name="the\nfile"))).files
    assert (file.name, file.media_type, file.body) == ("the file", found, body)


async def test_only_image_without_media_type_is_fetched_for_detection() -> None:
    unknown = "application/octet-stream"
    picture, other = Sent(WEBP, unknown, kind="image"), Sent(WEBP, unknown)
    message_files = await fetch_files(porter(), picture, other)
    assert [file.media_type for file in message_files.files] == ["image/webp"]
    assert message_files.lines == ["[image: a, image/webp]", "[file: a, application/octet-stream]"]
    assert other.fetched == 0


@pytest.mark.parametrize(
    ("text", "kept"),
    [("\ufeffhé".encode(), "hé"), ("hé".encode("utf-16"), "hé"), ("héllo\r\n".encode(), "héllo\r\n")],
)
async def test_text_file_is_stored_as_utf_8(text: bytes, kept: str) -> None:
    (file,) = (await fetch_files(porter(), Sent(text, "text/plain"))).files
    assert file.body.decode() == kept


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("image/png", PROGRAM),
        ("image/png", PDF),
        ("image/jpeg", b"<svg/>"),
        ("image/webp", b"RIFF\x10\0\0\0WAVEfmt "),
        ("image/png", b""),
        ("application/pdf", PNG),
        ("application/pdf", PROGRAM),
        ("text/plain", PROGRAM),
        ("text/plain", PNG),
        ("text/plain", b"a\0b"),
        ("text/plain", "é".encode("latin-1")),
        ("text/plain", b"\xff\xfea"),
    ],
)
async def test_wrong_media_type_is_detected(media_type: str, body: bytes) -> None:
    message_files = await fetch_files(porter(), Sent(body, media_type))
    assert message_files.files == ()
    assert message_files.lines == [f"[file: a, {media_type}, content does not match its type]"]


async def test_oversized_file_is_only_named() -> None:
    announced = Sent(PNG, size=1_001)
    found_out = Sent(TooLarge())
    careless = Sent(PNG + b"\0" * 1_000)
    fits = Sent(PNG + b"\0" * (1_000 - len(PNG)), size=1_000)

    message_files = await fetch_files(porter(file_bytes=1_000), announced, found_out, careless, fits)

    assert [len(file.body) for file in message_files.files] == [1_000]
    assert (announced.fetched, found_out.fetched) == (0, 1)
    assert message_files.lines == [
        "[file: a, image/png, 1.0 kB, too large]",
        "[file: a, image/png, too large]",
        "[file: a, image/png, too large]",
        "[file: a, image/png, 1.0 kB]",
    ]


async def test_failed_or_hanging_fetch_delays_no_message_and_leaks_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    failing = Sent(OSError("https://bot.example/SECRET/file"))
    hanging = Sent(gate=asyncio.Event())
    nowhere = Sent()
    gone = Attachment(kind="image", name="gone", media_type="image/png")

    at = porter(patience=0.05)
    message_files = at.see([failing.attachment, hanging.attachment, nowhere.attachment, gone])
    await at.fetch(message_files, sender="ana")

    assert [file.body for file in message_files.files] == [PNG]
    named = "[file: a, image/png, could not be fetched]"
    assert message_files.lines == [
        named,
        named,
        "[file: a, image/png]",
        named.replace("file: a", "image: gone"),
    ]
    assert [vars(record)["reason"] for record in caplog.records] == ["OSError", "TimeoutError"]
    assert "SECRET" not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize(("senders", "fetched"), [("a", 2), ("abc", 4)], ids=["one sender", "three senders"])
async def test_two_hundred_files_are_bounded_in_fetches_and_lines(senders: str, fetched: int) -> None:
    at_once, most = 0, 0

    async def fetch(_limit: int) -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return PNG

    sent = [Attachment(kind="image", media_type="image/png", fetch=fetch)] * 200
    at = porter(files=7)
    message_files = at.see(sent)
    others = [at.fetch(at.see(sent), sender=sender) for sender in senders[1:]]
    await asyncio.gather(at.fetch(message_files, sender=senders[0]), *others)

    assert len(message_files.files) == 7
    assert most == fetched
    assert message_files.lines == [
        *["[image, image/png]"] * 7,
        *["[image, image/png, too many files]"] * 13,
        "[and 180 more]",
    ]


@pytest.mark.parametrize(
    ("kind", "media_type", "line"),
    [
        ("voice", "audio/ogg", "[voice message: a, audio/ogg, 0.0 kB]"),
        ("video", "video/mp4", "[video: a, video/mp4, 0.0 kB]"),
        ("voice", "image/png", "[voice message: a, image/png, 0.0 kB]"),
        ("image", "image/svg+xml", "[image: a, image/svg+xml, 0.0 kB]"),
        ("image", "image/heic", "[image: a, image/heic, 0.0 kB]"),
        ("file", "application/zip", "[file: a, application/zip, 0.0 kB]"),
    ],
)
async def test_unsupported_file_is_named_and_not_fetched(kind: Any, media_type: str, line: str) -> None:
    sent = Sent(PNG, media_type, kind=kind, size=28)
    message_files = await fetch_files(porter(), sent)
    assert (message_files.lines, message_files.files, sent.fetched) == ([line], (), 0)


@pytest.mark.parametrize(("number", "takes"), [(0, ["text", "image", "pdf"]), (5, []), (5, ["pdf", "text"])])
async def test_file_that_model_does_not_accept_is_not_fetched(number: int, takes: list[FileKind]) -> None:
    sent = Sent()
    message_files = await fetch_files(porter(takes=takes, files=number), sent)
    assert (message_files.files, sent.fetched) == ((), 0)


async def test_file_is_fetched_once_for_repeated_attempts() -> None:
    at, sent = porter(), Sent()
    message_files = await fetch_files(at, sent)
    await at.fetch(message_files, sender="ana")
    assert (len(message_files.files), sent.fetched) == (1, 1)


@pytest.mark.parametrize("what", ["name", "media_type"])
async def test_attachment_line_stays_one_line_for_any_name(what: str) -> None:
    wild = "x\n[image: y]\u202e\ud800\0" + "z" * 1_000
    sent = Sent(name=wild if what == "name" else "a", media_type=wild if what == "media_type" else "b")
    (line,) = (await fetch_files(porter(), sent)).lines
    assert "\n" not in line
    assert line.isprintable()
    assert len(line.encode()) < 100


def test_only_the_beginning_of_a_name_is_read() -> None:
    assert shown_name("\u200b" * 999 + "report.txt") == "r"


@pytest.mark.parametrize("size", [-1, 2**53, 10**400], ids=["negative", "large", "huge"])
async def test_impossible_size_is_left_out(size: int) -> None:
    message_files = porter().see([Sent(size=size).attachment])
    assert message_files.lines == ["[file: a, image/png]"]
