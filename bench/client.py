"""A minimal HTTP client: its own cost must not distort the measurement of a server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)


class Connection:
    """A kept-alive connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect to the server of a URL."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 22)
        return cls(reader, writer, parts.netloc)

    async def post(self, path: str, body: Mapping[str, Any], *, token: str = "") -> dict[str, Any]:
        """Return the response to a POST request. Raises ``RuntimeError`` for a status other than 200."""
        self._send(path, body, f"authorization: Bearer {token}\r\n" if token else "")
        head = await self._head()
        if found := _LENGTH.search(head):
            content = await self._reader.readexactly(int(found[1]))
        else:
            content = b"".join([chunk async for chunk in self._chunks()])
        return json.loads(content)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[tuple[str, Any]]:
        """Yield the type and data of each server-sent event in the response to a POST request."""
        self._send(path, body, "accept: text/event-stream\r\n")
        await self._head()
        left = b""
        async for chunk in self._chunks():
            *whole, left = (left + chunk).split(b"\n\n")
            for event in whole:
                fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
                if b"event" in fields:
                    yield fields[b"event"].decode(), json.loads(fields[b"data"])

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def _send(self, path: str, body: Mapping[str, Any], headers: str) -> None:
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\n{headers}"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)

    async def _head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answered {head.splitlines()[0].decode()}")
        return head

    async def _chunks(self) -> AsyncGenerator[bytes]:
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
