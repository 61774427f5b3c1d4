"""The bound on what the responses of a turn contain besides text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from torana.agent.event_relay import HIDDEN_SHARE, Watch
from torana.errors import ModelResponseTooLarge
from torana.messages import EventType

LIMIT = 100
PIECES = {
    "thinking": PartStartEvent(index=0, part=ThinkingPart("x" * LIMIT)),
    "more thinking": PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta="x" * LIMIT)),
    "signature": PartDeltaEvent(index=0, delta=ThinkingPartDelta(signature_delta="x" * LIMIT)),
    "call": PartStartEvent(index=0, part=ToolCallPart("f", "x" * LIMIT)),
    "more of a call": PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta="x" * LIMIT)),
}


def ignore(_type: EventType, _data: Mapping[str, Any], /) -> None:
    pass


@pytest.mark.parametrize("kind", PIECES)
def test_thinking_and_calls_of_all_responses_are_bounded_together(kind: str) -> None:
    watch = Watch(ignore, settled=[], max_bytes=LIMIT)
    for _ in range(HIDDEN_SHARE):
        watch.handle(PIECES[kind])

    with pytest.raises(ModelResponseTooLarge, match="thoughts and tool calls"):
        watch.handle(PIECES["thinking"])


@pytest.mark.parametrize("part", [ThinkingPart("x" * 390), ToolCallPart("f", "x" * 390)])
def test_settled_thinking_and_calls_count(part: ThinkingPart | ToolCallPart) -> None:
    settled: list[ModelMessage] = [ModelResponse(parts=[part])]
    watch = Watch(ignore, settled=settled, max_bytes=LIMIT)
    watch.handle(PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta="x" * 10)))

    with pytest.raises(ModelResponseTooLarge):
        watch.handle(PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta="x")))
