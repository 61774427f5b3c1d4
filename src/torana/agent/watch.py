"""What a watcher sees of a run, and the reply that it adds up to."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from typing import Any, Protocol

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)

from torana.agent.texts import PARAGRAPH, whole
from torana.messages import EventType


class Emit(Protocol):
    """Takes what happens in a turn, in order, at once."""

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None:
        """Take one event."""
        ...


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
                self._gap = PARAGRAPH if self._pieces else ""  # some models begin a text with nothing
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
