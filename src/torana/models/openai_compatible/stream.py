"""Read a streamed answer: its texts, thoughts, tool calls and usage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, TypeVar, cast

import httpx2
from pydantic_ai.messages import FinishReason, ModelResponseStreamEvent, PartStartEvent, TextPart, ThinkingPart
from pydantic_ai.models import StreamedResponse
from pydantic_ai.profiles import DEFAULT_THINKING_TAGS
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.usage import RequestUsage

from torana.errors import ModelResponseTooLarge
from torana.json_bounds import with_readable_nesting
from torana.models.event_weights import check_values
from torana.models.openai_compatible.http import raise_if_error, translate_errors
from torana.models.openai_compatible.messages import THINKING_FIELDS

Chunk = Mapping[str, Any]

_Default = TypeVar("_Default")

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "content_filter": "content_filter",
    "function_call": "tool_call",
}

#: Seconds in which the end of a body must follow the last event, so that the connection can be used again.
_END = 0.1

#: The largest number of tokens of a usage report. Budgets bound it further.
_MOST_TOKENS = 2**63 - 1
_NO_TOKENS = {"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"}

#: Maximum number of fields of a usage report that are read. Each chunk may have a report.
_USAGE_FIELDS = 64

#: Characters of a refusal after which the rest is not collected; the response is then too large to store.
_REFUSAL_CHARACTERS = 65_536

#: The size of all deltas of tool calls that have no name yet, and the size of one without its text.
_NAMELESS, _DELTA = 1_048_576, 1_024
#: Maximum characters of white space between a thought and a text. No event reports them.
_HELD_SPACE = 4_096

_LINE_ENDS = (b"\n", b"\r")


async def read_chunks(response: httpx2.Response, model: str) -> AsyncGenerator[Chunk]:
    """Yield the JSON objects of a stream until its end. Raises the error that the server sends instead."""
    events = event_data(response.aiter_bytes())
    async for data in events:
        if data.startswith("[DONE]"):
            with suppress(TimeoutError, httpx2.HTTPError):
                async with asyncio.timeout(_END):
                    async for _ in events:
                        pass
            return
        chunk = _read_object(data)
        model = _text_or(model, chunk.get("model"))
        raise_if_error(chunk, model, response.request)
        yield chunk


def _read_object(data: str) -> Chunk:
    """Return the JSON object of an event; ``null`` replaces values that are nested too deeply.

    Raises ``ValueError`` for any other text, and ``ModelResponseTooLarge`` for too many values.
    """
    check_values(data)
    value: object = json.loads(with_readable_nesting(data.encode()))
    if isinstance(value, dict):
        return cast("Chunk", value)
    raise ValueError("an event is no JSON object")


@dataclass(kw_only=True)
class ChatStream(StreamedResponse):
    first: Chunk
    rest: AsyncGenerator[Chunk]
    response: httpx2.Response
    profile: OpenAIModelProfile
    provider: str
    namespace: str
    url: str
    #: The requested name, until the server names its model.
    model: str
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC), init=False)
    _usage_received: bool | None = field(default=False, init=False)
    _refusal: str = field(default="", init=False)
    _named_reason: bool = field(default=False, init=False)
    #: The number of the current text and thought; another kind of part ends them.
    _text: int = field(default=0, init=False)
    _thought: int = field(default=0, init=False)
    _held_space: str = field(default="", init=False)
    _after_thought: bool = field(default=False, init=False)
    #: The size of the deltas of tool calls that have no name yet: no event reports them.
    _nameless: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        # Azure's first chunk has an empty name.
        self.model = _text_or(self.model, self.first.get("model"))

    @property
    def model_name(self) -> str:
        return self.model

    @property
    def provider_name(self) -> str:
        return self.provider

    @property
    def provider_url(self) -> str:
        return self.url

    @property
    def timestamp(self) -> datetime:
        return self._timestamp

    async def close_stream(self) -> None:
        await self.response.aclose()

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        chunk: Chunk | None = self.first
        self.first = {}  # it may be long
        while chunk is not None:
            for event in self._read(chunk):
                yield event
            with translate_errors(self.model, self.namespace):
                chunk = await anext(self.rest, None)
        if self._refusal:
            self._add_details(refusal=self._refusal)
        if not (self._named_reason or self._refusal or self.cancelled):
            # Some servers send no reason.
            self.finish_reason = "stop"

    def _read(self, chunk: Chunk) -> Iterator[ModelResponseStreamEvent]:
        self._read_metadata(chunk)
        choices: Sequence[Chunk] | None = chunk.get("choices")
        if not choices:
            return
        choice = choices[0]
        reason: str | None = choice.get("finish_reason")
        self._named_reason = self._named_reason or bool(reason)
        delta: Chunk | None = choice.get("delta")
        if delta is None:
            return
        if refusal := delta.get("refusal"):
            if len(self._refusal) < _REFUSAL_CHARACTERS:
                self._refusal += refusal
            self.finish_reason = "content_filter"
            return
        if reason and not self._refusal:
            self.finish_reason = _FINISH_REASONS.get(reason)
            self._add_details(finish_reason=reason)
        yield from self._read_thought(delta)
        yield from self._read_text(delta)
        yield from self._read_calls(delta)

    def _read_metadata(self, chunk: Chunk) -> None:
        if (created := chunk.get("created")) and "timestamp" not in (self.provider_details or {}):
            self._add_details(timestamp=datetime.fromtimestamp(created, UTC))
        if usage := chunk.get("usage"):
            # Servers that report the usage in each chunk report the sum so far.
            used = read_usage(usage, self.model, self.provider, self.url)
            self._add_usage(used, reported=True, cumulative=True)
        self.provider_response_id = _text_or(self.provider_response_id, chunk.get("id"))
        self.model = _text_or(self.model, chunk.get("model"))
        for name in ("moderation", "service_tier"):
            if found := chunk.get(name):
                self._add_details(**{name: found})

    def _add_details(self, **details: Any) -> None:
        self.provider_details = {**(self.provider_details or {}), **details}

    def _read_thought(self, delta: Chunk) -> Iterator[ModelResponseStreamEvent]:
        for name in (self.profile.get("openai_chat_thinking_field"), *THINKING_FIELDS):
            thought = delta.get(name) if name else None
            if not thought or not isinstance(thought, str):
                continue
            for event in self._parts_manager.handle_thinking_delta(
                vendor_part_id=("thought", name, self._thought),
                id=name,
                content=thought,
                provider_name=self.provider,
            ):
                if isinstance(event, PartStartEvent):
                    self._begin("thought")
                yield event
            break

    def _read_text(self, delta: Chunk) -> Iterator[ModelResponseStreamEvent]:
        text = _joined(delta.get("content"))
        if not text:
            return
        begun = False
        for event in self._parts_manager.handle_text_delta(
            vendor_part_id=("text", self._text),
            content=text,
            thinking_tags=self.profile.get("thinking_tags", DEFAULT_THINKING_TAGS),
            ignore_leading_whitespace=self.profile.get("ignore_streamed_leading_whitespace", False),
        ):
            begun = True
            if isinstance(event, PartStartEvent):
                self._begin("text")
                self._complete(event)
            yield event
        if not begun and text.isspace() and self._after_thought:
            # White space at the start of a text is dropped. It is kept here, because it separates this text
            # from the text before the thought.
            self._held_space += text
            if len(self._held_space) > _HELD_SPACE:
                raise ModelResponseTooLarge("The model's provider sent too much white space before a text.")

    def _complete(self, event: PartStartEvent) -> None:
        if isinstance(event.part, ThinkingPart):
            # A thought in tags.
            event.part.id, event.part.provider_name = "content", self.provider
        elif isinstance(event.part, TextPart) and self._held_space:
            event.part.content = self._held_space + event.part.content
            self._held_space = ""

    def _read_calls(self, delta: Chunk) -> Iterator[ModelResponseStreamEvent]:
        for call in delta.get("tool_calls") or ():
            function: Chunk = call.get("function") or {}
            # Gemini's signature of its thought, which it expects back.
            extra = call.get("extra_content")
            begun = False
            for event in self._parts_manager.handle_tool_call_delta_events(
                vendor_part_id=call.get("index"),
                tool_name=function.get("name"),
                args=function.get("arguments"),
                tool_call_id=_text_or(None, call.get("id")),
                provider_name=self.provider if extra else None,
                provider_details={"extra_content": extra} if extra else None,
            ):
                begun = True
                if isinstance(event, PartStartEvent):
                    self._begin("call")
                yield event
            if not begun:
                self._nameless += _DELTA + len(str(call))
                if self._nameless > _NAMELESS:
                    raise ModelResponseTooLarge("The model's provider sent too many tool calls without a name.")

    def _begin(self, kind: Literal["thought", "text", "call"]) -> None:
        """Begin a part; a later part of another kind is a new one."""
        if kind != "thought":
            self._thought += 1
            self._after_thought = False
        # A thought in the text's tags keeps the text's number, because its closing tag is still to come.
        current = self._parts_manager.get_part_by_vendor_id(("text", self._text))
        if kind != "text" and isinstance(current, TextPart):
            self._text += 1
            self._after_thought = kind == "thought"


def read_usage(usage: Mapping[str, Any], model: str, provider: str, url: str) -> RequestUsage:
    """Return the tokens by kind, as the price list reads them."""
    read = islice(usage.items(), _USAGE_FIELDS)
    given = {name: _bounded(value) for name, value in read if _is_usable(name, value)}
    details = {
        name: count for name, count in given.items() if name not in _NO_TOKENS and isinstance(count, int)
    }
    details |= given.get("completion_tokens_details") or {}
    counted = RequestUsage.extract(
        {"model": model, "usage": given},
        provider=provider,
        provider_url=url,
        provider_fallback="openai",
        api_flavor="chat",
        details=details,
    )
    prompt: Mapping[str, Any] = given.get("prompt_tokens_details") or {}
    written = prompt.get("cache_write_tokens")
    if isinstance(written, int):
        counted.cache_write_tokens = written
    return counted


def _is_usable(name: str, value: object) -> bool:
    """Return whether a field of a usage report can be read: the details are an object."""
    return isinstance(value, Mapping) if name.endswith("_details") else value is not None


def _bounded(value: Any) -> Any:
    """Return a number of tokens that other parts can convert, also in details; other values stay."""
    if isinstance(value, Mapping):
        given = islice(cast("Mapping[str, Any]", value).items(), _USAGE_FIELDS)
        return {name: _bounded(number) for name, number in given if not isinstance(number, Mapping)}
    return max(0, min(value, _MOST_TOKENS)) if isinstance(value, int) else value


def _text_or(default: _Default, value: object) -> str | _Default:
    """Return the value if it is a text and not empty, else the default."""
    return value if isinstance(value, str) and value else default


def _joined(content: object) -> str | None:
    """Return the text of a delta; some servers send a list of parts."""
    if isinstance(content, list):
        parts = cast("Sequence[Any]", content)
        texts = (part if isinstance(part, str) else part.get("text") for part in parts if _is_text(part))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else None


def _is_text(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and cast("Chunk", part).get("type") == "text")


async def event_data(pieces: AsyncIterable[bytes]) -> AsyncGenerator[str]:
    """Yield the data of each event. Events without data, comments and an event without its end are left out.

    Each byte is copied once, however small the pieces are. Raises ``UnicodeDecodeError``.
    """
    line, data, after_return = bytearray(), list[str](), False
    async for piece in pieces:
        rest = piece[1:] if after_return and piece.startswith(b"\n") else piece
        after_return = piece.endswith(b"\r")
        for part in rest.splitlines(keepends=True):
            line += part
            if not part.endswith(_LINE_ENDS):
                continue
            text = line.decode().rstrip("\r\n")
            line.clear()
            if text.startswith("data:"):
                data.append(text[5:].removeprefix(" "))
            elif text == "data":
                data.append("")
            elif not text and data:
                yield "\n".join(data)
                data.clear()
