"""Relay the events of a run, and collect the reply."""

from __future__ import annotations

import json
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
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from torana.agent.text import PARAGRAPH, whole
from torana.errors import ModelResponseTooLarge
from torana.messages import EventType


class Emit(Protocol):
    """Receives the events of a turn in order; must not block."""

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None: ...


class Watch:
    """Collects the text of a run from its events, and emits the events that clients may see."""

    def __init__(self, emit: Emit, *, said: str, max_bytes: int) -> None:
        """``said`` is the text that earlier attempts settled; it is not emitted again.

        Text of more than ``max_bytes`` in total raises ``ModelResponseTooLarge``.
        """
        self._emit = emit
        self._max_bytes = max_bytes
        self._bytes = len(said.encode())
        #: Bytes of thinking and of tool calls in the current answer, for which a provider charges.
        self.unsaid = 0
        self._pieces = [said] if said else []
        #: The first half of a surrogate pair whose second half has not arrived.
        self._half = ""
        #: The separator before the next text.
        self._gap = ""

    @property
    def text(self) -> str:
        """Return all text so far."""
        return "".join(self._pieces)

    async def follow(self, _ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Handle the events of one step of the run."""
        async for event in events:
            self._handle(event)

    def _handle(self, event: AgentStreamEvent) -> None:
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                self._gap = PARAGRAPH if self._pieces else ""  # some models start a part with empty text
                self._add(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                self._add(text)
            case (
                PartStartEvent(part=(ThinkingPart() | ToolCallPart()) as piece)
                | PartDeltaEvent(delta=(ThinkingPartDelta() | ToolCallPartDelta()) as piece)
            ):
                self.unsaid += _size(piece)
            case FunctionToolCallEvent(part=call):
                self.unsaid = 0  # the answer is whole
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
            self._bytes += len(text.encode())
            if self._bytes > self._max_bytes:
                raise ModelResponseTooLarge(
                    f"The texts of the model's responses are together larger than {self._max_bytes} bytes "
                    "(TORANA_MAX_RESPONSE_BYTES), and the turn was stopped. Ask for less at once, use another "
                    "model, or raise the setting."
                )
            self._pieces.append(text)
            self._emit("message.delta", {"text": text})


def _size(piece: ThinkingPart | ThinkingPartDelta | ToolCallPart | ToolCallPartDelta) -> int:
    """Return the size in bytes of a piece of thinking or of a tool call."""
    match piece:
        case ThinkingPart(content=text) | ThinkingPartDelta(content_delta=text):
            return len((text or "").encode(errors="surrogatepass"))
        case ToolCallPart(args=arguments) | ToolCallPartDelta(args_delta=arguments):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or "")
            return len(text.encode(errors="surrogatepass"))
