"""How a turn's model messages are written into a row, and shown again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    UserPromptPart,
)

_SPEAKER = "user"


def dump(messages: Sequence[ModelMessage], *, speaker: str | None) -> tuple[bytes, int]:
    """The messages of one turn, serialised, and how many they are.

    The instructions are left out: every run writes its own. The speaker is kept beside the first message.
    """
    kept = [replace(m, instructions=None) if isinstance(m, ModelRequest) else m for m in messages]
    if kept and isinstance(kept[0], ModelRequest) and speaker is not None:
        kept[0] = replace(kept[0], metadata={_SPEAKER: speaker})
    return ModelMessagesTypeAdapter.dump_json(kept), len(kept)


def load(body: bytes, *, name_speakers: bool) -> list[ModelMessage]:
    """The messages of one turn; with ``name_speakers`` each user's words begin with who said them."""
    messages = ModelMessagesTypeAdapter.validate_json(body)
    if not name_speakers:
        return messages
    return [_named(message) if isinstance(message, ModelRequest) else message for message in messages]


def _named(request: ModelRequest) -> ModelRequest:
    speaker = (request.metadata or {}).get(_SPEAKER)
    if speaker is None:
        return request
    return replace(request, parts=[_prefixed(part, speaker) for part in request.parts])


def _prefixed(part: ModelRequestPart, speaker: str) -> ModelRequestPart:
    if isinstance(part, UserPromptPart) and isinstance(part.content, str):
        return replace(part, content=f"{speaker}: {part.content}")
    return part
