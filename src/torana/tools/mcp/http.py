"""The transport to an MCP server at a URL (streamable HTTP), with limits that the library lacks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from torana.json_bounds import count_values
from torana.tools.mcp.entries import Server
from torana.tools.mcp.sanitize import replace_lone_surrogates
from torana.tools.mcp.throttle import MESSAGE_LIMIT, TOO_MANY_VALUES, VALUES_LIMIT, Throttle
from torana.web.cookies import refuse_cookies

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]

#: Timeout, in seconds, for connecting and sending; an event stream may be silent without limit.
_CONNECT_TIMEOUT = 10.0
#: Timeout, in seconds, for the request that ends the session.
_FAREWELL = 2.0
#: The number of messages that opening a stream counts as: a server can end its streams at once, and then the
#: library opens them again without a pause.
_STREAM = 50
#: In the context of a tool call: an event that is set when the call has ended. Without it, the library would
#: open the call's stream again for ever.
CALL_ENDED: ContextVar[asyncio.Event | None] = ContextVar("CALL_ENDED", default=None)
#: The number of lines of an event stream that count as a message, in addition to its events.
_LINES = 20
#: The data of a line in an event stream.
_DATA = re.compile(rb"(?<=data:)[^\r\n]+")
#: The end of an event.
_BLANK_LINE = re.compile(rb"(?>\A|\r\n|\r|\n)(?:\r\n|\r|\n)")


@asynccontextmanager
async def open_http(server: Server) -> AsyncGenerator[Streams]:
    """Connect to the URL; redirects are followed only on the same origin.

    Raises an exception group, at any time, if the server cannot be reached.
    """
    assert server.url is not None  # noqa: S101 - set for this transport
    headers = {name: value.get_secret_value() for name, value in server.headers.items()}
    client = httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(_CONNECT_TIMEOUT, read=None),
        cookies=refuse_cookies(),
        transport=_Bounded(),
        trust_env=False,  # do not use .netrc
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MESSAGE_LIMIT) as streams,
    ):
        yield streams


class _Bounded(httpx2.AsyncHTTPTransport):
    """Limits the size of responses and the rate of messages."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(_FAREWELL).as_dict()
        elif request.method == "GET":
            await self._throttle.spend(0, messages=_STREAM)
            ended = CALL_ENDED.get()
            if ended is not None and ended.is_set():
                raise httpx2.StreamError("the call has ended")
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the response is compressed without request", request=request)
        # The standard library parses the rest of this header, which may take seconds. Events are always UTF-8.
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        response.headers["content-type"] = kind
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - this transport's type
        bounded = _Events if kind == "text/event-stream" else _Document
        response.stream = bounded(response.stream, self._throttle)
        return response


class _Bytes(httpx2.AsyncByteStream):
    """The bytes of a response, at a limited rate. Each chunk counts as a message."""

    def __init__(self, stream: httpx2.AsyncByteStream, throttle: Throttle) -> None:
        self._stream = stream
        self._throttle = throttle

    async def _chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            await self._throttle.spend(len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Document(_Bytes):
    """A response with one message. It is passed on as a whole, if it is within the limits."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        document = bytearray()
        async for chunk in self._chunks():
            document += chunk
            if len(document) > MESSAGE_LIMIT:
                raise httpx2.StreamError(f"the response has more than {MESSAGE_LIMIT // 1_048_576} MiB")
        values = count_values(document, VALUES_LIMIT)
        await self._throttle.spend(0, messages=0, values=values)
        if values > VALUES_LIMIT:
            raise httpx2.StreamError(TOO_MANY_VALUES)
        yield replace_lone_surrogates(bytes(document))


class _Events(_Bytes):
    """An event stream. Lines are passed on as a whole, if their event is within the limits."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        values = 0
        async for chunk in self._chunks():
            # A carriage return may be half of a line end.
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r", 0, -1)) + 1
            rest += chunk[:end] if end else chunk
            if len(rest) > MESSAGE_LIMIT:
                raise httpx2.SSEError(f"a line has more than {MESSAGE_LIMIT // 1_048_576} MiB")
            if end:
                values = await self._check(bytes(rest), values)
                yield _DATA.sub(lambda data: replace_lone_surrogates(data[0]), bytes(rest))
                rest = bytearray(chunk[end:])
        await self._check(bytes(rest), values)
        yield bytes(rest)

    async def _check(self, lines: bytes, values: int) -> int:
        """Return the number of values in the last event so far.

        ``values`` is the number of values that earlier lines of the first event contain. Raises ``SSEError`` if
        an event has too many values.
        """
        await self._throttle.spend(0, messages=_count_line_ends(lines) // _LINES)
        for number, event in enumerate(_BLANK_LINE.split(lines)):
            found = count_values(event, VALUES_LIMIT) if event else 0
            values = found if number else values + found
            if values > VALUES_LIMIT:
                raise httpx2.SSEError(TOO_MANY_VALUES)
            if event:
                await self._throttle.spend(0, values=found)
        return values


def _count_line_ends(lines: bytes) -> int:
    return lines.count(b"\n") + lines.count(b"\r") - lines.count(b"\r\n")
