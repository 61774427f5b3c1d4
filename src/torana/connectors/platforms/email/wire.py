"""An IMAP connection (RFC 3501) with TLS, IDLE (RFC 2177), and bounds on what the server sends.

The connection starts no task. It reads only while a command waits, so cancelling the command stops the reading.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import suppress
from typing import NamedTuple, Self

from torana.connectors.base import PermanentError

#: The announcement of a literal at the end of a line.
_LITERAL = re.compile(rb"\{(\d{1,19})\}\r?\n\Z")
#: Maximum number of bytes of a literal in one read. The timeout applies to each read.
_PIECE = 65_536
_LOST = "the connection to the mailbox was lost"


class ResponseLine(NamedTuple):
    """A line of a response, and the literals in it."""

    text: bytes
    literals: tuple[bytes, ...] = ()


class Response(NamedTuple):
    """The response to a command: ``OK`` or not, the server's text, and the lines before it."""

    result: str
    text: str
    lines: list[ResponseLine]


class ImapConnection:
    """A connection to an IMAP server. Every wait raises ``TimeoutError`` if no data arrives for ``seconds``."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        line_limit: int,
        limit: int,
        seconds: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        #: The writer from before STARTTLS. The connection would close if this object were deleted.
        self._unencrypted: asyncio.StreamWriter | None = None
        self._line_limit = line_limit
        #: Maximum number of bytes of a response.
        self._limit = limit
        self._room = limit
        self._seconds = seconds
        self._tag = 0

    @classmethod
    async def open(
        cls, host: str, port: int, *, tls: ssl.SSLContext | None, line_limit: int, limit: int, seconds: float
    ) -> Self:
        """Connect, encrypted if ``tls`` is given."""
        async with asyncio.timeout(seconds):
            streams = await asyncio.open_connection(host, port, ssl=tls, limit=line_limit)
        return cls(*streams, line_limit=line_limit, limit=limit, seconds=seconds)

    async def read_greeting(self) -> None:
        """Read the greeting. Raises ``ConnectionError`` if the server refuses the connection."""
        greeting = await self._read_line()
        if not greeting.text.upper().startswith(b"* OK"):
            raise ConnectionError("the mail server refuses connections")

    async def command(self, command: str) -> Response:
        return await self._response(self._send(command))

    async def idle(self, duration: float) -> None:
        """Wait until the server reports a change, for at most ``duration`` seconds."""
        tag = self._send("IDLE")
        changed = await self._until_idle()
        if not changed:
            with suppress(TimeoutError):
                await self._read_line(duration)
        self._writer.write(b"DONE\r\n")
        await self._response(tag)

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypt the connection with STARTTLS."""
        response = await self.command("STARTTLS")
        if response.result != "OK":
            raise ConnectionError("the mail server does not support STARTTLS")
        # Data after the response is not encrypted, and may come from an attacker.
        if not await self._is_silent():
            raise ConnectionError("the mail server sent data between STARTTLS and the encryption")
        # Unencrypted data that arrives now stays in the old reader.
        reader = asyncio.StreamReader(limit=self._line_limit)
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._seconds):
            transport = await loop.start_tls(self._writer.transport, protocol, context, server_hostname=host)
        if transport is None:
            raise ConnectionError(_LOST)
        protocol.connection_made(transport)
        self._reader = reader
        self._unencrypted, self._writer = self._writer, asyncio.StreamWriter(transport, protocol, reader, loop)

    def close(self) -> None:
        self._writer.transport.abort()

    def _send(self, command: str) -> str:
        self._tag += 1
        self._room = self._limit
        tag = f"A{self._tag}"
        # `drain` is not awaited: commands are short, and a lost connection may still have the server's last
        # response.
        self._writer.write(f"{tag} {command}\r\n".encode())
        return tag

    async def _response(self, tag: str) -> Response:
        lines: list[ResponseLine] = []
        while True:
            line = await self._read_line()
            kind, _, rest = line.text.strip().decode("utf-8", "replace").partition(" ")
            if kind == tag:
                result, _, text = rest.partition(" ")
                return Response(result.upper(), text, lines)
            if kind not in ("*", "+"):
                raise ConnectionError("the mail server sent a response that cannot be read")
            lines.append(line)

    async def _until_idle(self) -> bool:
        """Wait until the server accepts IDLE, and return whether it reported a change before that."""
        changed = False
        while True:
            line = await self._read_line()
            if line.text.startswith(b"+"):
                return changed
            if not line.text.startswith(b"* "):
                raise ConnectionError("the mail server refuses IDLE")
            changed = True

    async def _is_silent(self) -> bool:
        try:
            async with asyncio.timeout(0):
                await self._reader.read(1)
        except TimeoutError:
            return True
        return False

    async def _read_line(self, seconds: float | None = None) -> ResponseLine:
        """Read a line within ``seconds``, or within the timeout of the connection."""
        seconds = self._seconds if seconds is None else seconds
        text = b""
        literals: list[bytes] = []
        while True:
            async with asyncio.timeout(seconds):
                part = await self._read_part()
            self._count(len(part))
            text += part
            announced = _LITERAL.search(part)
            if announced is None:
                return ResponseLine(text, tuple(literals))
            literals.append(await self._read_literal(int(announced[1]), seconds))

    async def _read_part(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise ConnectionError("the mail server sent a line that is too long") from None
        except (EOFError, ConnectionError, ssl.SSLError):
            raise ConnectionError(_LOST) from None

    async def _read_literal(self, size: int, seconds: float) -> bytes:
        self._count(size)
        content = bytearray()
        while len(content) < size:
            async with asyncio.timeout(seconds):
                try:
                    piece = await self._reader.read(min(size - len(content), _PIECE))
                except (ConnectionError, ssl.SSLError):
                    piece = b""
            if not piece:
                raise ConnectionError(_LOST)
            content += piece
        return bytes(content)

    def _count(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise ConnectionError(f"the mail server sent a response of more than {self._limit:,} bytes")


def quote(text: str) -> str:
    """Return a text as an IMAP string. Raises ``PermanentError`` for a line break or NUL."""
    if re.search(r"[\0\r\n]", text):
        raise PermanentError(
            "the user name, the password or the folder contains a line break or NUL; remove it"
        )
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
