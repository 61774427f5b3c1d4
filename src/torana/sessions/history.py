"""How a turn's model messages are written into a row, and shown again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextContent,
    TextPart,
    UserContent,
    UserPromptPart,
)

_SPEAKER = "user"
#: The turns whose files stood in a request, by the place of the part.
_FILES = "files"

#: What stands between a message and its files.
_BEHIND = "What came with this message:"


def dump(messages: Sequence[ModelMessage], *, speaker: str | None) -> tuple[bytes, int]:
    """The messages of one turn, serialised, and how many they are.

    The instructions are left out: every run writes its own. The speaker is kept beside what the user said. So
    is whose files were shown, but not the files: a message names what came with it.
    """
    kept = [_kept(m, speaker) if isinstance(m, ModelRequest) else m for m in messages]
    return ModelMessagesTypeAdapter.dump_json(kept), len(kept)


def _kept(request: ModelRequest, speaker: str | None) -> ModelRequest:
    is_said = any(isinstance(part, UserPromptPart) for part in request.parts)
    metadata: dict[str, Any] = {_SPEAKER: speaker} if is_said and speaker is not None else {}
    parts, files = list(request.parts), dict[str, str]()
    for place, part in enumerate(parts):
        if isinstance(part, UserPromptPart) and (turn_id := _shown_of(part)) is not None:
            parts[place] = replace(part, content=part.content[0])
            files[str(place)] = turn_id
    if files:
        metadata[_FILES] = files
    return replace(request, parts=parts, instructions=None, metadata=metadata or None)


def with_files(content: str, turn_id: str, files: Sequence[UserContent]) -> list[UserContent]:
    """A message together with its files, as they are shown to the model; the turn is that of the message."""
    return [content, TextContent(_BEHIND, metadata={_FILES: turn_id}), *files]


def shown_files(request: ModelRequest) -> Mapping[int, str]:
    """The turns whose files stood in a request when it was kept, by the place of the part."""
    return {int(place): turn for place, turn in (request.metadata or {}).get(_FILES, {}).items()}


def _shown_of(part: UserPromptPart) -> str | None:
    """The turn whose files are in a prompt, behind its message, as ``with_files`` put them there."""
    mark = None if isinstance(part.content, str) or len(part.content) < 2 else part.content[1]
    return mark.metadata[_FILES] if isinstance(mark, TextContent) and mark.content == _BEHIND else None


def cut_off(content: str, text: str) -> list[ModelMessage]:
    """What the model is later shown of a cancelled turn: what was asked, and how far the answer came."""
    said = f"{text}\n\n(Cancelled here.)" if text else "(Cancelled before there was an answer.)"
    return exchange(content, said)


def exchange(content: str, reply: str) -> list[ModelMessage]:
    """What the model is later shown of a turn that it did not answer itself."""
    return [ModelRequest(parts=[UserPromptPart(content)]), ModelResponse(parts=[TextPart(reply)])]


def load(body: bytes, *, name_speakers: bool = False) -> list[ModelMessage]:
    """The messages of one turn; with ``name_speakers`` each user's words begin with who said them."""
    messages = ModelMessagesTypeAdapter.validate_json(body)
    if not name_speakers:
        return messages
    return [_named(message) if isinstance(message, ModelRequest) else message for message in messages]


def one_line(name: str) -> str:
    """A name that a caller chose, as it may stand in front of a model: one line, and not too long."""
    return " ".join(name.split())[:64]


def speaker_of(request: ModelRequest) -> str | None:
    """Who said what the request holds, as far as that was kept."""
    return (request.metadata or {}).get(_SPEAKER)


def _named(request: ModelRequest) -> ModelRequest:
    speaker = speaker_of(request)
    if speaker is None:
        return request
    return replace(request, parts=[_prefixed(part, one_line(speaker)) for part in request.parts])


def _prefixed(part: ModelRequestPart, speaker: str) -> ModelRequestPart:
    if isinstance(part, UserPromptPart) and isinstance(part.content, str):
        return replace(part, content=f"{speaker}: {part.content}")
    return part
