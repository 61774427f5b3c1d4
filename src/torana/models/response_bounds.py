"""Limit the size of a provider's responses and the usage that it reports.

A provider is a server that the gateway does not control. A response above a limit ends the request while it
streams, so that memory and the database stay bounded.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import fields, is_dataclass, replace
from decimal import Decimal
from typing import Any, cast

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.usage import RequestUsage

from torana.characters import cut_to_bytes
from torana.errors import ModelResponseTooLarge
from torana.json_bounds import count_values
from torana.messages import MODEL_NAME_BYTES
from torana.models.failures import MISSHAPEN

#: Default maximum bytes of text, thinking and tool calls in one response.
RESPONSE_BYTES = 1_048_576

#: Maximum parts of one response: texts, thoughts and tool calls. Providers allow up to 128 tool calls.
_PARTS = 256

#: Maximum number of JSON values in the arguments of all tool calls of a response. The error for an invalid one
#: takes 20 µs and hundreds of bytes.
_ARGUMENT_VALUES = 10_000

#: Maximum bytes of a response besides its parts, such as its id and the model's name.
_METADATA_BYTES = 65_536

#: Maximum tokens and maximum dollars of one call. No model on the market has a tenth of these tokens as its
#: context window.
_TOKENS = 100_000_000
_DOLLARS = 10_000

#: Maximum number of additional counts in the usage, such as tokens of a rejected prediction.
_DETAILS = 32


#: The number of deltas after which pydantic-ai is made to join them.
_JOINED_DELTAS = 2_048


def bound_responses(model: Model, *, max_bytes: int) -> None:
    """Make this model refuse responses of more than ``max_bytes`` and correct implausible usage.

    A request then raises ``ModelResponseTooLarge``; a stream raises it as soon as the limit is exceeded, and
    the connection is closed. A response of the wrong shape raises ``UnexpectedModelBehavior``. A long model
    name is cut.
    """
    request, request_stream = model.request, model.request_stream

    async def request_bounded(*arguments: Any, **options: Any) -> ModelResponse:
        try:
            response = await request(*arguments, **options)
        except MISSHAPEN as error:
            raise _misshapen(error) from error
        meter = _Meter(max_bytes)
        for part in response.parts:
            _check_call(part)
            meter.add_part(part)
        meter.check_metadata(response)
        _check_values(response)
        return replace(_with_short_name(response), usage=plausible(response.usage))

    @asynccontextmanager
    async def stream_bounded(*arguments: Any, **options: Any) -> AsyncGenerator[StreamedResponse]:
        opened = cast("AbstractAsyncContextManager[StreamedResponse]", request_stream(*arguments, **options))
        async with AsyncExitStack() as stack:
            try:
                stream = await stack.enter_async_context(opened)
            except MISSHAPEN as error:
                raise _misshapen(error) from error
            _bound_stream(stream, max_bytes)
            yield stream

    # Set on the object, so that the class stays unchanged.
    vars(model).update(request=request_bounded, request_stream=stream_bounded)


def _bound_stream(stream: StreamedResponse, max_bytes: int) -> None:
    kind = type(stream)
    # A strong reference would be a cycle, and keep the response in memory until the next full collection.
    reference = cast("Callable[[], StreamedResponse]", weakref.ref(stream))

    def bounded_events() -> AsyncIterator[ModelResponseStreamEvent]:
        events = kind._get_event_iterator(reference())  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        return _bounded(reference(), events, _Meter(max_bytes))

    vars(stream)["_get_event_iterator"] = bounded_events
    vars(stream)["get"] = lambda: _with_short_name(kind.get(reference()))


def plausible(usage: RequestUsage) -> RequestUsage:
    """Return the usage with each number limited to its plausible range."""
    given = vars(usage)
    counts = {name: _count(number) for name, number in given.items() if name not in ("cost", "details")}
    details = list(cast("dict[str, object]", usage.details).items())[:_DETAILS]
    known = {name[:100]: _count(number) for name, number in details if isinstance(number, int | float)}
    return RequestUsage(**counts, cost=_cost(usage.cost), details=known)


class _Meter:
    """Counts the bytes and the parts of one response. Raises ``ModelResponseTooLarge``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._parts = 0

    def add_part(self, part: object) -> None:
        self._parts += 1
        if self._parts > _PARTS:
            raise ModelResponseTooLarge(
                f"The model's response has more than {_PARTS} parts (texts, thoughts and tool calls), and was "
                "cut off. Ask for less at once, or use another model."
            )
        self.add(part)

    def add(self, piece: object) -> None:
        self._bytes += _size(piece)
        if self._bytes > self._max_bytes:
            raise ModelResponseTooLarge(
                f"The model's response is larger than {self._max_bytes} bytes (TORANA_MAX_RESPONSE_BYTES), and "
                "was cut off. Ask for less at once, use another model, or raise the setting."
            )

    def check_metadata(self, response: ModelResponse | StreamedResponse) -> None:
        """Refuse a response whose other fields are too large to store."""
        kept = (
            response.model_name,
            response.provider_name,
            response.provider_response_id,
            response.provider_details,
            response.metadata,
        )
        if _size(kept) > _METADATA_BYTES:
            raise ModelResponseTooLarge(
                f"The model's response has more than {_METADATA_BYTES} bytes besides its text and tool calls, "
                "and was refused. Check TORANA_MODEL_BASE_URL, or use another model."
            )


async def _bounded(
    stream: StreamedResponse, events: AsyncIterator[ModelResponseStreamEvent], meter: _Meter
) -> AsyncGenerator[ModelResponseStreamEvent]:
    """Yield the events of a stream; count them, and keep its usage plausible."""
    last: tuple[int, int] | None = None
    deltas = 0
    try:
        async for event in events:
            match event:
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                    meter.add(text)
                case PartDeltaEvent(delta=delta):
                    meter.add(delta)
                case PartStartEvent(part=part):
                    _check_call(part)
                    meter.add_part(part)
                case _:
                    pass
            if (used := (stream.usage.input_tokens, stream.usage.output_tokens)) != last:
                last = used
                _correct_usage(stream)
            deltas += isinstance(event, PartDeltaEvent)
            if deltas == _JOINED_DELTAS:
                stream.get()  # joins the deltas so far, which take some 80 bytes besides their characters
                deltas = 0
            yield event
    except MISSHAPEN as error:
        raise _misshapen(error) from error
    finally:
        _correct_usage(stream)
    meter.check_metadata(stream)
    _check_values(stream.get())


def _with_short_name(response: ModelResponse) -> ModelResponse:
    name = cast("object", response.model_name)
    short = cut_to_bytes(name, MODEL_NAME_BYTES) if isinstance(name, str) else None
    return response if short == name else replace(response, model_name=short)


def _correct_usage(stream: StreamedResponse) -> None:
    stream._usage = plausible(stream._usage)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def _check_call(part: object) -> None:
    """Raise ``UnexpectedModelBehavior`` for a tool call with values of other types than its fields have."""
    if isinstance(part, ToolCallPart):
        name, arguments = cast("object", part.tool_name), cast("object", part.args)
        if not (isinstance(name, str) and isinstance(arguments, str | dict | None)):
            raise _misshapen(TypeError())


def _check_values(response: ModelResponse) -> None:
    """Raise ``ModelResponseTooLarge`` if the arguments of the tool calls have too many JSON values."""
    texts = (call.args if isinstance(call.args, str) else json.dumps(call.args) for call in response.tool_calls)
    found = sum(count_values(text.encode(errors="surrogatepass"), _ARGUMENT_VALUES) for text in texts)
    if found > _ARGUMENT_VALUES:
        raise ModelResponseTooLarge(
            f"The arguments of the tool calls in the model's response have more than {_ARGUMENT_VALUES:,} JSON "
            "values, and were refused. Ask for less at once, or use another model."
        )


def _misshapen(error: Exception) -> UnexpectedModelBehavior:
    return UnexpectedModelBehavior(f"Invalid response from the provider ({type(error).__name__})")


def _count(number: object) -> int:
    if not isinstance(number, int | float) or math.isnan(number):
        return 0
    return int(min(max(number, 0), _TOKENS))


def _cost(cost: object) -> Decimal | None:
    if not isinstance(cost, int | float | Decimal):
        return None
    dollars = Decimal(cost)
    return Decimal(0) if dollars.is_nan() else min(max(dollars, Decimal(0)), Decimal(_DOLLARS))


def _size(value: object) -> int:
    """Return the approximate bytes of a stored value: those of its texts, and a few for other values."""
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(name) + _size(one) for name, one in cast("Mapping[object, object]", value).items())
    if isinstance(value, Sequence):
        return sum(_size(one) for one in cast("Sequence[object]", value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_size(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, int):
        return 8 + value.bit_length() // 3
    return 8
