"""Relay the events of a run, and collect the reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from torana.agent.text import PARAGRAPH, GrowingText, repair_surrogates, text_of
from torana.errors import ModelResponseTooLarge
from torana.messages import EventType

#: The thinking and the tool calls of a turn may have this many times the bytes of its text: a model that
#: reasons and writes files needs them.
HIDDEN_SHARE = 4

_Hidden: TypeAlias = ThinkingPart | ThinkingPartDelta | ToolCallPart | ToolCallPartDelta


class Emit(Protocol):
    """Receives the events of a turn in order; must not block."""

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None: ...


class Watch:
    """Collects the text of a run from its events, and emits the events that clients may see."""

    def __init__(self, emit: Emit, *, settled: Sequence[ModelMessage], max_bytes: int) -> None:
        """``settled`` are the messages of earlier attempts, whose text is not emitted again.

        Text of more than ``max_bytes`` in total raises ``ModelResponseTooLarge``, and so do thinking and tool
        calls of more than ``HIDDEN_SHARE`` times as many bytes.
        """
        text = text_of(settled)
        self._emit = emit
        self._max_bytes = max_bytes
        self._bytes = len(text.encode())
        pieces = (part for message in settled for part in message.parts)
        self._hidden = sum(
            _measure_stored(part) for part in pieces if isinstance(part, ThinkingPart | ToolCallPart)
        )
        #: Bytes of thinking and of tool calls in the current answer, for which a provider charges.
        self.unsaid = 0
        self._text = GrowingText(text)
        #: The first half of a surrogate pair whose second half has not arrived.
        self._half = ""
        #: The separator before the next text.
        self._gap = ""

    @property
    def text(self) -> str:
        return str(self._text)

    def handle(self, event: AgentStreamEvent) -> None:
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                self._gap = PARAGRAPH if self._text.length else ""  # some models start a part with empty text
                self._add(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                self._add(text)
            case (
                PartStartEvent(part=(ThinkingPart() | ToolCallPart()) as piece)
                | PartDeltaEvent(delta=(ThinkingPartDelta() | ToolCallPartDelta()) as piece)
            ):
                self.unsaid += _size(piece)
                self._hide(piece)
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
        text = repair_surrogates(text)
        if text:
            text, self._gap = self._gap + text, ""
            self._bytes += len(text.encode())
            if self._bytes > self._max_bytes:
                raise _too_large("texts", f"{self._max_bytes} bytes (TORANA_MAX_RESPONSE_BYTES)")
            self._text.append(text)
            self._emit("message.delta", {"text": text})

    def _hide(self, piece: _Hidden) -> None:
        self._hidden += _measure_stored(piece)
        if self._hidden > HIDDEN_SHARE * self._max_bytes:
            limit = f"{HIDDEN_SHARE} times {self._max_bytes} bytes (TORANA_MAX_RESPONSE_BYTES)"
            raise _too_large("thoughts and tool calls", limit)


def _too_large(what: str, limit: str) -> ModelResponseTooLarge:
    return ModelResponseTooLarge(
        f"The {what} of the model's responses are together larger than {limit}, and the turn was stopped. Ask "
        "for less at once, use another model, or raise the setting."
    )


def _measure_stored(piece: _Hidden) -> int:
    """Return the size in bytes of a piece as it is stored, with its signature, which is not charged."""
    match piece:
        case ThinkingPart(signature=signature) | ThinkingPartDelta(signature_delta=signature):
            return _size(piece) + len(signature or "")
        case _:
            return _size(piece)


def _size(piece: _Hidden) -> int:
    """Return the size in bytes of a piece of thinking or of a tool call."""
    match piece:
        case ThinkingPart(content=text) | ThinkingPartDelta(content_delta=text):
            return len((text or "").encode(errors="surrogatepass"))
        case ToolCallPart(args=arguments) | ToolCallPartDelta(args_delta=arguments):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or "")
            return len(text.encode(errors="surrogatepass"))
