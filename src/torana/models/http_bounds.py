"""Bounds how many bytes the HTTP client of a provider reads of one response.

The bounds of ``response_bounds`` apply to what a response means. To find that out an SDK first reads an event
or a whole body into memory, so those are bounded here, where the bytes arrive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import httpx
import httpx2

from torana.errors import ModelResponseTooLarge

if TYPE_CHECKING:
    from pydantic_ai.providers import Provider

#: Bytes of an event, or of a body that is no event stream, for each byte that a response may have: JSON writes
#: a character with up to three times its bytes.
_EVENT_FACTOR = 4

#: Bytes of a whole event stream for each byte that a response may have: an event carries a token, about four
#: bytes, in two or three hundred.
_STREAM_FACTOR = 32

#: A line that carries a token is no longer. What goes beyond that is content, and the last events of a stream
#: may repeat all of it several times.
_SMALL_LINE = 512
_CONTENT_FACTOR = 8

#: Bytes of an error's body that are read; the rest is not needed to tell what is wrong.
_ERROR_BYTES = 65_536

_EVENT_STREAM = "text/event-stream"

#: What ends an event.
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")


def bound_http(provider: Provider[Any], *, max_bytes: int) -> None:
    """Make the HTTP client of this provider stop reading responses of far more than ``max_bytes``.

    Reading then raises ``ModelResponseTooLarge``. The body of an error is cut instead. Responses are asked for
    without compression, and a compressed one is refused: a few bytes of it can stand for gigabytes. A provider
    that does not use HTTPX stays as it is.
    """
    # pydantic-ai keeps the client that it has made for a provider, and makes another one after that was closed.
    own = vars(provider)
    make: Callable[[], Any] | None = own.get("_http_client_factory")
    if make is None:
        return

    def make_bounded() -> Any:
        return _hooked(make(), max_bytes)

    _hooked(own["_own_http_client"], max_bytes)
    own["_http_client_factory"] = make_bounded


def _hooked(client: Any, max_bytes: int) -> Any:
    """The client, HTTPX's or its predecessor's, with hooks around each request."""

    async def ask_uncompressed(request: Any) -> None:
        request.headers["Accept-Encoding"] = "identity"

    async def bound(response: Any) -> None:
        headers = response.headers
        if response.status_code >= 400:
            headers.pop("content-encoding", None)
            response.stream = _Cut(response.stream)
            return
        encoding = headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise ModelResponseTooLarge(
                f"The model's provider sent a response with the encoding {encoding[:20]!r}, which was not "
                "asked for, and the response was refused. Turn compression off there, or check "
                "TORANA_MODEL_BASE_URL."
            )
        is_stream = headers.get("content-type", "").startswith(_EVENT_STREAM)
        response.stream = _Bounded(response.stream, max_bytes=max_bytes, is_stream=is_stream)

    client.event_hooks["request"].append(ask_uncompressed)
    client.event_hooks["response"].append(bound)
    return client


class _Stream(httpx2.AsyncByteStream, httpx.AsyncByteStream):
    """Another stream's bytes, for a client of either library."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Cut(_Stream):
    """The first bytes of an error's body."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        room = _ERROR_BYTES
        async for piece in self._stream:
            yield piece[:room]
            room -= len(piece)
            if room <= 0:
                return


class _Bounded(_Stream):
    """A response's bytes as they arrive, up to so many in all, in one event, and of content."""

    def __init__(self, stream: Any, *, max_bytes: int, is_stream: bool) -> None:
        super().__init__(stream)
        self._most_in_all = max_bytes * (_STREAM_FACTOR if is_stream else _EVENT_FACTOR)
        self._most_content = max_bytes * _CONTENT_FACTOR
        self._most_in_event = max_bytes * _EVENT_FACTOR

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = content = line = event = 0
        tail = b""
        async for piece in self._stream:
            read += len(piece)
            *ended, last = piece.split(b"\n")
            for text in ended:
                content += max(0, line + len(text) - _SMALL_LINE)
                line = 0
            line += len(last)
            joined = tail + piece
            tail = joined[-3:]
            ends = [joined.rfind(blank) + len(blank) for blank in _BLANK_LINES if blank in joined]
            event = len(joined) - max(ends) if ends else event + len(piece)
            if read > self._most_in_all or event > self._most_in_event or content > self._most_content:
                raise ModelResponseTooLarge(
                    "The model's provider sent far more than a response may hold (TORANA_MAX_RESPONSE_BYTES), "
                    "and was cut off. Use another model, or raise the setting."
                )
            yield piece
