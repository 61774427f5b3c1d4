"""The transport to an MCP server at a URL (streamable HTTP), with limits that the library lacks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from torana.tools.mcp.entries import Server
from torana.tools.mcp.throttle import MESSAGE_LIMIT, Throttle

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]

#: Timeout, in seconds, for connecting and sending; an event stream may be silent without limit.
_PATIENCE = 10.0
#: Timeout, in seconds, for the request that ends the session.
_FAREWELL = 2.0


@asynccontextmanager
async def open_http(server: Server) -> AsyncGenerator[Streams]:
    """Connect to the URL; redirects are followed only on the same origin.

    Raises an exception group, at any time, if the server cannot be reached.
    """
    assert server.url is not None  # noqa: S101 - set for this transport
    headers = {name: value.get_secret_value() for name, value in server.headers.items()}
    client = httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(_PATIENCE, read=None),
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
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the response is compressed without request", request=request)
        # The standard library parses the rest of these headers, which may take seconds. Events are always
        # UTF-8, and `Set-Cookie2` is obsolete.
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        response.headers["content-type"] = kind
        response.headers.pop("set-cookie2", None)
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - this transport's type
        whole = None if kind == "text/event-stream" else MESSAGE_LIMIT
        response.stream = _BoundedStream(response.stream, self._throttle, whole=whole)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, throttle: Throttle, *, whole: int | None) -> None:
        """``whole`` is the maximum total size in bytes; None is no limit."""
        self._stream = stream
        self._throttle = throttle
        self._whole = whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        async for chunk in self._stream:
            taken += len(chunk)
            if self._whole is not None and taken > self._whole:
                raise httpx2.StreamError(f"the response has more than {self._whole // 1_048_576} MiB")
            await self._throttle.spend(len(chunk), messages=chunk.count(b"\ndata:") + 1)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
