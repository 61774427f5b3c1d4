"""Limit the bytes that a provider's HTTP client reads of one response, and mask the key in its errors.

``response_bounds`` limits parsed responses. An SDK reads a whole event or body into memory before it parses it,
so this module limits the bytes as they arrive. An error may quote the key of its request.
This module masks the key, so that no exception, log, reply or database row contains it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from torana.errors import ModelResponseTooLarge
from torana.json_bounds import has_more_values
from torana.telemetry import MASK

if TYPE_CHECKING:
    from pydantic_ai.providers import Provider

#: Maximum bytes of an event, or of a body that is not a stream, per allowed response byte: JSON encodes a
#: character in up to three times its bytes.
_EVENT_FACTOR = 4

#: Maximum bytes of an event stream per allowed response byte: an event of two or three hundred bytes carries a
#: token of about four.
_STREAM_FACTOR = 32

#: Maximum bytes of a line with one token. Longer lines count as content, and the last events of a stream may
#: repeat the whole content several times.
_SMALL_LINE = 512
_CONTENT_FACTOR = 8

#: Maximum number of JSON values in an event: reading each takes microseconds. An event that arrives in one
#: piece is not counted: the HTTP libraries read at most 64 KiB at once.
_EVENT_VALUES = 10_000

#: Bytes of a stream that are passed on at once. Other tasks run in between: a provider may send events faster
#: than they are read.
_SLICE_BYTES = 1_024

#: Bytes that are read of an error's body; the rest is not needed for the message.
_ERROR_BYTES = 65_536

#: The headers in which providers expect a key, and the length below which a value may be an ordinary word.
_KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_SHORTEST_KEY = 8

#: Passes on the current span (W3C Trace Context), and no baggage.
_TRACE = TraceContextTextMapPropagator()

_EVENT_STREAM = "text/event-stream"

#: The ends of an event.
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")


def bound_http(provider: Provider[Any], *, max_bytes: int) -> None:
    """Make the provider's HTTP client stop reading responses much larger than ``max_bytes``.

    Reading then raises ``ModelResponseTooLarge``, but the body of an error is only cut off. The key of the
    request is masked in errors, also in the events of a stream. Responses are requested uncompressed, and
    compressed responses are refused, because a few bytes can expand to gigabytes. Providers that use neither
    httpx2 nor httpx are not changed.
    """
    # pydantic-ai creates another client after the first was closed.
    own = vars(provider)
    make: Callable[[], Any] | None = own.get("_http_client_factory")
    if make is None:
        return

    def make_bounded() -> Any:
        return _hooked(make(), max_bytes)

    _hooked(own["_own_http_client"], max_bytes)
    own["_http_client_factory"] = make_bounded


def _hooked(client: Any, max_bytes: int) -> Any:
    async def ask_uncompressed(request: Any) -> None:
        request.headers["Accept-Encoding"] = "identity"
        _TRACE.inject(request.headers)  # nothing without a recorded span

    async def bound(response: Any) -> None:
        headers = response.headers
        sent = (response.request.headers.get(name, "").rpartition(" ")[2].encode() for name in _KEY_HEADERS)
        keys = [key for key in sent if len(key) >= _SHORTEST_KEY]
        if response.status_code >= 400:
            headers.pop("content-encoding", None)
            response.stream = _stream_of(response, _Cut)(response.stream, keys)
            return
        encoding = headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise ModelResponseTooLarge(
                "The model's provider sent a response with the unrequested encoding "
                f"{encoding[:20]!r}, and the response was refused. Turn compression off at the "
                "provider, or check TORANA_MODEL_BASE_URL."
            )
        is_stream = headers.get("content-type", "").startswith(_EVENT_STREAM)
        bounded = _stream_of(response, _Bounded)
        response.stream = bounded(response.stream, keys, max_bytes=max_bytes, is_stream=is_stream)

    client.event_hooks["request"].append(ask_uncompressed)
    client.event_hooks["response"].append(bound)
    return client


class _Stream:
    def __init__(self, stream: Any, keys: Sequence[bytes]) -> None:
        self._stream = stream
        self._keys = keys

    def _masked(self, content: bytes) -> bytes:
        for key in self._keys:
            content = content.replace(key, MASK.encode())
        return content

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Cut(_Stream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        # A key that begins before the limit is read to its end, so that it can be masked.
        most = _ERROR_BYTES + max(map(len, self._keys), default=0)
        content = bytearray()
        async for piece in self._stream:
            content += piece[: most - len(content)]
            if len(content) == most:
                break
        yield self._masked(bytes(content))[:_ERROR_BYTES]


class _Bounded(_Stream):
    """A response's bytes, limited in total, per event and in content, and the values of a stream's events."""

    def __init__(self, stream: Any, keys: Sequence[bytes], *, max_bytes: int, is_stream: bool) -> None:
        super().__init__(stream, keys)
        self._is_stream = is_stream
        self._most_in_all = max_bytes * (_STREAM_FACTOR if is_stream else _EVENT_FACTOR)
        self._most_content = max_bytes * _CONTENT_FACTOR
        self._most_in_event = max_bytes * _EVENT_FACTOR

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = content = line = event = 0
        tail = b""
        began = bytearray()  # the event so far
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
                    "The response of the model's provider is larger than "
                    "TORANA_MAX_RESPONSE_BYTES allows, and was cut off. Use another model, or "
                    "raise the setting."
                )
            if self._is_stream:
                began += piece
                if end := _end_of_events(began, max(0, len(began) - len(piece) - len(tail))):
                    # An event is parsed when the piece with its end is passed on.
                    if len(began) > len(piece):
                        _check_values(began)
                    del began[:end]
            masked = self._masked(piece)
            for start in range(0, len(masked), _SLICE_BYTES):
                if start:
                    await asyncio.sleep(0)
                yield masked[start : start + _SLICE_BYTES]


def _end_of_events(text: bytearray, start: int) -> int:
    """Return the position after the last blank line behind ``start``, or 0."""
    return max(at + len(blank) if (at := text.rfind(blank, start)) >= 0 else 0 for blank in _BLANK_LINES)


def _check_values(text: bytearray) -> None:
    """Raise ``ModelResponseTooLarge`` if the event at the beginning has too many JSON values."""
    end = min(at for blank in _BLANK_LINES if (at := text.find(blank)) >= 0)
    if has_more_values(text[:end], _EVENT_VALUES):
        raise ModelResponseTooLarge(
            f"An event of the model's provider has more than {_EVENT_VALUES:,} JSON values, and was refused. "
            "Ask for less at once, or use another model."
        )


def _stream_of(response: Any, kind: type[_Stream]) -> Any:
    """Return a subclass of ``kind`` and of the library's stream class; the library accepts no other streams."""
    return _subclass(type(response).__module__.partition(".")[0], kind)


@cache
def _subclass(library: str, kind: type[_Stream]) -> Any:
    return type(kind.__name__, (kind, import_module(library).AsyncByteStream), {})
