"""Limit the bytes that a provider's HTTP client reads of one response, and mask the key in its errors.

``response_bounds`` limits parsed responses. An SDK reads a whole event or body into memory before it parses it,
so this module limits the bytes as they arrive. An error may quote the key of its request.
This module masks the key, so that no exception, log, reply or database row contains it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextvars import Context
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from torana.errors import ModelResponseTooLarge
from torana.json_bounds import has_more_values
from torana.models.event_weights import (
    EVENT_LINES,
    LIGHT_WEIGHT,
    LONG_BYTES,
    MANY_TYPES,
    TOO_MANY_LINES,
    UNIT_BYTES,
    EventWeights,
    Pace,
)
from torana.telemetry import MASK
from torana.web.cookies import refuse_cookies

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

#: Maximum numbers of JSON values, and of lists and objects among them, in a response that is no stream. A list
#: of models has some thousands; the vectors of 64 texts have 262,144 numbers.
_DOCUMENT_VALUES, _DOCUMENT_LISTS = 300_000, 10_000

#: Bytes of a response that are passed on at once, or one event. Other tasks run in between: a provider may send
#: faster than is read.
_SLICE_BYTES = 1_024
#: The number of events that are passed on at once: an SDK may take 0.2 ms for an empty one.
_SLICE_EVENTS = 8

#: Bytes that are read of an error's body; the rest is not needed for the message.
_ERROR_BYTES = 65_536

#: The headers in which providers expect a key, and the length below which a value may be an ordinary word.
_KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_SHORTEST_KEY = 8

#: Passes on the current span (W3C Trace Context), and no baggage.
_TRACE = TraceContextTextMapPropagator()

#: Bytes that may stand before the content: a byte order mark and white space.
_BEFORE = b"\xef\xbb\xbf \t\r\n"
#: The first bytes of the fields of events and of comments. No JSON value begins with them.
_EVENT_BEGINNINGS = b"deir:"

#: Each blank line, whatever ends the lines, contains one of these.
_BLANK_LINES = (b"\n\n", b"\n\r", b"\r\r")
#: It begins with a set of characters, which the library searches six times as fast as a group.
_BLANK_LINE = re.compile(rb"[\r\n](?:(?<=\r)\n)?+(?>\r\n|\r|\n)+")


#: A line of events, which SDKs also read after other lines. It follows the last byte of any end of a line.
_DATA_LINE = re.compile(rb"[\n\r\v\f\x1c-\x1e\x85\xa8\xa9]data:")


def bound_http(provider: Provider[Any], *, max_bytes: int, uses_sdk: bool = True) -> None:
    """Make the provider's HTTP client stop reading responses much larger than ``max_bytes``.

    Reading then raises ``ModelResponseTooLarge``, but the body of an error is only cut off. The key of the
    request is masked in errors, also in the events of a stream. Responses are requested uncompressed, and
    compressed responses are refused, because a few bytes can expand to gigabytes. With ``uses_sdk`` the values
    of events are limited by the time that an SDK takes for them. Providers that use neither httpx2 nor httpx
    are not changed.
    """
    # pydantic-ai creates another client after the first was closed.
    own = vars(provider)
    make: Callable[[], Any] | None = own.get("_http_client_factory")
    if make is None:
        return

    pace = Pace()

    def make_bounded() -> Any:
        return _hooked(make(), max_bytes, pace, uses_sdk=uses_sdk)

    _hooked(own["_own_http_client"], max_bytes, pace, uses_sdk=uses_sdk)
    own["_http_client_factory"] = make_bounded


def _hooked(client: Any, max_bytes: int, pace: Pace, *, uses_sdk: bool) -> Any:
    async def ask_uncompressed(request: Any) -> None:
        request.headers["Accept-Encoding"] = "identity"
        _TRACE.inject(request.headers)  # nothing without a recorded span

    async def bound(response: Any) -> None:
        headers = response.headers
        sent = (response.request.headers.get(name, "").rpartition(" ")[2].encode() for name in _KEY_HEADERS)
        keys = [key for key in sent if len(key) >= _SHORTEST_KEY]
        # The libraries parse the parameters, which may take seconds; providers send UTF-8.
        headers["content-type"] = headers.get("content-type", "").partition(";")[0].strip().lower()
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
        many_types = response.request.url.path.endswith(MANY_TYPES)
        weights = EventWeights(many_types=many_types) if uses_sdk else None
        response.stream = _stream_of(response, _Bounded)(
            response.stream, keys, size=_Size(max_bytes), weights=weights, pace=pace
        )

    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001 - not public
        if transport is not None:
            handle = transport.handle_async_request
            # Set on the object, so that the class stays unchanged.
            vars(transport)["handle_async_request"] = partial(_handle_in_own_context, handle)
    client.cookies = refuse_cookies()
    client.event_hooks["request"].append(ask_uncompressed)
    client.event_hooks["response"].append(bound)
    return client


async def _handle_in_own_context(handle: Callable[[Any], Coroutine[Any, Any, Any]], request: Any) -> Any:
    """Send a request, without the variables of the turn.

    The event loop keeps the context in which a connection is opened until it is closed. The context of a turn
    has all its messages.
    """
    return await asyncio.create_task(handle(request), context=Context())


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
    """A response's bytes and JSON values, limited.

    Each event is passed on when it is complete, any other content as a whole. The beginning decides which it
    is, because SDKs do not read the content type.
    """

    def __init__(
        self, stream: Any, keys: Sequence[bytes], *, size: _Size, weights: EventWeights | None, pace: Pace
    ) -> None:
        super().__init__(stream, keys)
        self._size = size
        self._weights = weights
        self._pace = pace
        self._holds_long = False

    async def aclose(self) -> None:
        self._release()
        await super().aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._parts():
                yield part
        finally:
            self._release()

    async def _parts(self) -> AsyncIterator[bytes]:
        is_events: bool | None = None
        began = bytearray()  # the event so far, or the content
        async for piece in self._stream:
            if is_events is None and (begin := piece.lstrip(_BEFORE)[:1]):
                is_events = begin in _EVENT_BEGINNINGS
            self._size.add(piece, is_events=bool(is_events))
            began += piece
            if len(began) > LONG_BYTES and not self._holds_long:
                await self._pace.long_events.acquire()
                self._holds_long = True
            if is_events and (end := _end_of_events(began, max(0, len(began) - len(piece) - 4))):
                complete = bytes(began[:end])
                del began[:end]
                async for events in self._checked(complete):
                    yield events
                self._release()
        if is_events:
            async for events in self._checked(bytes(began)):
                yield events
        else:
            _check_document(began)
            if self._weights and _DATA_LINE.search(began):
                raise ModelResponseTooLarge(
                    "A response of the model's provider is neither a JSON document nor a stream of events, and "
                    "was refused. Check TORANA_MODEL_BASE_URL."
                )
            await self._wait(len(began) // UNIT_BYTES)
            async for part in _slices(self._masked(bytes(began))):
                yield part

    async def _checked(self, text: bytes) -> AsyncIterator[bytes]:
        """Yield the events of a text. Other tasks run in between."""
        ready = b""
        count = light = 0
        for event in _split_events(text):
            weight = len(event) // UNIT_BYTES + (self._weights.add(event) if self._weights else 0)
            if weight > LIGHT_WEIGHT:
                if ready:
                    yield self._masked(ready)
                    ready = b""
                    count = 0
                await self._wait(weight)
            else:
                light += weight
            ready += event
            count += 1
            if len(ready) >= _SLICE_BYTES or count == _SLICE_EVENTS:
                yield self._masked(ready)
                ready = b""
                await self._wait(light)
                count = light = 0
        if ready:
            yield self._masked(ready)
        if light:
            await self._wait(light)

    async def _wait(self, weight: int) -> None:
        """Let other tasks run, and wait until events of this weight may be read."""
        if weight:
            await self._pace.wait(weight)
        else:
            await asyncio.sleep(0)

    def _release(self) -> None:
        if self._holds_long:
            self._holds_long = False
            self._pace.long_events.release()


async def _slices(content: bytes) -> AsyncIterator[bytes]:
    """Yield short pieces. Other tasks run in between."""
    for start in range(0, len(content), _SLICE_BYTES):
        if start:
            await asyncio.sleep(0)
        yield content[start : start + _SLICE_BYTES]


class _Size:
    """Limits the bytes of a response: in total, of each event, and of its content."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._read = self._content = self._line = self._event = self._lines = 0
        self._tail = b""

    def add(self, piece: bytes, *, is_events: bool) -> None:
        """Count a piece. Raises ``ModelResponseTooLarge``."""
        self._read += len(piece)
        joined = self._tail + piece
        self._tail = joined[-3:]
        ends = [joined.rfind(blank) + len(blank) for blank in _BLANK_LINES if blank in joined]
        began = joined[max(ends) :] if ends else piece  # of the last event
        if ends:
            self._event = self._lines = 0
        self._event += len(began)
        self._lines += began.count(b"\n") + began.count(b"\r")
        if is_events and self._lines > EVENT_LINES:
            raise ModelResponseTooLarge(TOO_MANY_LINES)
        *ended, last = piece.split(b"\n")
        for text in ended:
            self._content += max(0, self._line + len(text) - _SMALL_LINE)
            self._line = 0
        self._line += len(last)
        limits = (
            (self._read, _STREAM_FACTOR if is_events else _EVENT_FACTOR),
            (self._event, _EVENT_FACTOR),
            (self._content, _CONTENT_FACTOR),
        )
        if any(size > factor * self._max_bytes for size, factor in limits):
            raise ModelResponseTooLarge(
                "The response of the model's provider is larger than TORANA_MAX_RESPONSE_BYTES allows, and was "
                "cut off. Use another model, or raise the setting."
            )


def _split_events(text: bytes) -> Iterator[bytes]:
    """Yield the events, each with the blank line that ends it."""
    start = 0
    for blank in _BLANK_LINE.finditer(text):
        yield text[start : blank.end()]
        start = blank.end()
    if start < len(text):
        yield text[start:]


def _end_of_events(text: bytearray, start: int) -> int:
    """Return the position after the last blank line behind ``start``, or 0."""
    ends = (*_BLANK_LINES, b"\r\n\r\n")  # the whole blank line: an SDK waits for all of it
    return max(at + len(end) if (at := text.rfind(end, start)) >= 0 else 0 for end in ends)


def _check_document(document: bytearray) -> None:
    """Raise ``ModelResponseTooLarge`` if the content has too many JSON values, or is not UTF-8."""
    if not json.detect_encoding(document).startswith("utf-8"):  # its values cannot be counted
        raise ModelResponseTooLarge("A response of the model's provider is not UTF-8, and was refused.")
    lists = document.replace(b",", b"")
    if has_more_values(lists, _DOCUMENT_LISTS) or has_more_values(document, _DOCUMENT_VALUES):
        raise ModelResponseTooLarge(
            "A response of the model's provider has too many JSON values, and was refused."
        )


def _stream_of(response: Any, kind: type[_Stream]) -> Any:
    """Return a subclass of ``kind`` and of the library's stream class; the library accepts no other streams."""
    return _subclass(type(response).__module__.partition(".")[0], kind)


@cache
def _subclass(library: str, kind: type[_Stream]) -> Any:
    return type(kind.__name__, (kind, import_module(library).AsyncByteStream), {})
