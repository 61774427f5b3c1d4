"""What a watcher sees of a run, and the reply that it adds up to."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from typing import Any, Protocol, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)

from torana.messages import EventType

#: Text after a tool call is a new paragraph of the same reply.
_PARAGRAPH = "\n\n"


class Emit(Protocol):
    """Takes what happens in a turn, in order, at once."""

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None:
        """Take one event."""
        ...


def text_of(messages: Sequence[ModelMessage]) -> str:
    """The reply that messages of a turn add up to: what their deltas were, put together."""
    texts = [
        part.content
        for message in messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, TextPart) and part.content
    ]
    return _PARAGRAPH.join(texts)


def whole(text: str) -> str:
    """The text with halves of surrogate pairs joined, and lone ones replaced: UTF-8 can hold neither."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def whole_in(value: Any) -> Any:
    """The value with all texts in it whole, also in lists and mappings; any other kind stays as it is."""
    match value:
        case str():
            return whole(value)
        case list() | tuple():
            return [whole_in(item) for item in cast("Sequence[Any]", value)]
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {whole_in(key) if isinstance(key, str) else key: whole_in(item) for key, item in pairs}
        case _:
            return value


class Watch:
    """Gathers the text of a run from its events and passes on what a watcher may see."""

    def __init__(self, emit: Emit, *, said: str) -> None:
        """``said`` is the text that earlier attempts settled; it is not told again."""
        self._emit = emit
        self._pieces = [said] if said else []
        #: Half of a character whose other half has not come yet.
        self._half = ""
        #: What stands before the next text.
        self._gap = ""

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    async def follow(self, _ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Handle the events of one step of the run."""
        async for event in events:
            self._handle(event)

    def _handle(self, event: AgentStreamEvent) -> None:
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                self._gap = _PARAGRAPH if self._pieces else ""  # some models begin a text with nothing
                self._add(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                self._add(text)
            case FunctionToolCallEvent(part=call):
                self._emit("tool.started", {"callId": call.tool_call_id, "tool": call.tool_name})
            case FunctionToolResultEvent(part=part):
                outcome = getattr(part, "outcome", "failed")
                self._emit(
                    "tool.finished",
                    {"callId": part.tool_call_id, "tool": part.tool_name, "ok": outcome == "success"},
                )
            case _:
                pass

    def _add(self, text: str) -> None:
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":  # the other half is in the next piece
            text, self._half = text[:-1], text[-1]
        text = whole(text)
        if text:
            text, self._gap = self._gap + text, ""
            self._pieces.append(text)
            self._emit("message.delta", {"text": text})
