"""Serialize a turn's model messages into a row, and load them for the model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from torana.json_bounds import with_readable_nesting

_log = logging.getLogger(__name__)

#: Tools whose arguments and results contain private data of one user.
PRIVATE_TOOLS = frozenset(
    {
        *("correct", "forget", "recall", "remember"),
        *("delete_file", "list_files", "read_file", "write_file"),
        *("add_to_list", "remove_from_list", "show_list"),
        *("cancel_schedule", "list_schedules", "schedule_once", "schedule_repeating"),
    }
)


def hides(tool: str, *, shared: bool) -> bool:
    """Return whether the arguments and results of a tool are hidden: ``shared`` is true for several users."""
    return shared and tool in PRIVATE_TOOLS


_NOT_SHOWN = "[Hidden: this result belongs to one user, and the channel has several users now.]"

_NO_ARGUMENTS = {"hidden": "These arguments belong to one user, and the channel has several users now."}

_SPEAKER = "user"
#: Metadata key of the turns whose files a request contains, by the index of the part.
_FILES = "files"

#: Metadata key of a turn's place in its session's history; set for the model only, not stored.
_PLACE = "place"

#: The usage of every message, for pydantic.
_USAGE = {"__all__": {"usage"}}

#: Minimum size of messages that other tasks do not wait for.
_LONG_BYTES = 100_000

#: The text between a message and its files.
_ATTACHMENTS_HEADING = "Attachments of this message:"


def dump(
    messages: Sequence[ModelMessage], *, speaker: str | None, with_usage: bool = False
) -> tuple[bytes, int]:
    """Return the serialised messages of one turn, and their number.

    ``load`` can read them, whatever the model and the tools returned. Instructions are left out: each run
    creates its own. The user and the turn of files are stored as metadata.
    The files themselves are left out. So is the usage of responses, which a later turn does not need and
    whose many numbers take a third of the time of ``load``, unless ``with_usage``.
    """
    kept = [_storable_request(m, speaker) if isinstance(m, ModelRequest) else m for m in messages]
    excluded = None if with_usage else _USAGE
    return with_readable_nesting(ModelMessagesTypeAdapter.dump_json(kept, exclude=excluded)), len(kept)


def _storable_request(request: ModelRequest, speaker: str | None) -> ModelRequest:
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
    """Return a message with its files as prompt content; ``turn_id`` is the message's turn."""
    return [content, TextContent(_ATTACHMENTS_HEADING, metadata={_FILES: turn_id}), *files]


def shown_files(request: ModelRequest) -> Mapping[int, str]:
    """Return the turns whose files a stored request contained, by the index of the part."""
    return {int(place): turn for place, turn in (request.metadata or {}).get(_FILES, {}).items()}


def _shown_of(part: UserPromptPart) -> str | None:
    """Return the turn whose files ``with_files`` added to a prompt."""
    mark = None if isinstance(part.content, str) or len(part.content) < 2 else part.content[1]
    return (
        mark.metadata[_FILES]
        if isinstance(mark, TextContent) and mark.content == _ATTACHMENTS_HEADING
        else None
    )


def cut_off(content: str, text: str) -> list[ModelMessage]:
    """Return the messages of a cancelled turn for later requests: the question and the answer so far."""
    reply = (f"{text}\n\n(Cancelled at this point.)") if text else "(Cancelled before the reply.)"
    return exchange(content, reply)


def exchange(content: str, reply: str) -> list[ModelMessage]:
    """Return the messages of a turn that the model did not answer, for later requests."""
    return [ModelRequest(parts=[UserPromptPart(content)]), ModelResponse(parts=[TextPart(reply)])]


def load(body: bytes, *, name_speakers: bool = False) -> list[ModelMessage]:
    """Return the messages of one turn; with ``name_speakers``, user messages start with the user's name."""
    messages = ModelMessagesTypeAdapter.validate_json(body)
    if not name_speakers:
        return messages
    return [
        _with_speaker_names(message) if isinstance(message, ModelRequest) else message for message in messages
    ]


async def let_others_run(body: bytes) -> None:
    """Let other tasks run before long messages are loaded, which takes milliseconds."""
    if len(body) > _LONG_BYTES:
        await asyncio.sleep(0)


def load_readable(body: bytes, *, name_speakers: bool = False) -> list[ModelMessage]:
    """Return the messages as ``load`` does; none if this version of the model library cannot read them.

    One unreadable turn must not stop the others, for example after a return to an older version.
    """
    try:
        return load(body, name_speakers=name_speakers)
    except ValidationError as error:
        _log.warning("history_unreadable", exc_info=error)
        return []


def set_place(messages: Sequence[ModelMessage], place: int) -> None:
    """Set a turn's place in its session's history on the first message of the turn."""
    if messages and isinstance(first := messages[0], ModelRequest):
        first.metadata = {**(first.metadata or {}), _PLACE: place}


def place_of(message: ModelMessage) -> int | None:
    """Return the place of the turn that begins with this message; None for every other message."""
    return (message.metadata or {}).get(_PLACE)


def without_private_data(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages as more than one person may read them: without private arguments and results."""
    return [
        replace(message, parts=[_without_private_result(part) for part in message.parts])
        if isinstance(message, ModelRequest)
        else replace(message, parts=[_without_private_arguments(part) for part in message.parts])
        for message in messages
    ]


def _without_private_result(part: ModelRequestPart) -> ModelRequestPart:
    if isinstance(part, ToolReturnPart) and part.tool_name in PRIVATE_TOOLS:
        return replace(part, content=_NOT_SHOWN)
    return part


def _without_private_arguments(part: ModelResponsePart) -> ModelResponsePart:
    if isinstance(part, ToolCallPart) and part.tool_name in PRIVATE_TOOLS:
        return replace(part, args=_NO_ARGUMENTS)
    return part


def one_line(name: str) -> str:
    """Return a name as one line of at most 64 characters, because callers choose it freely."""
    return " ".join(name.split())[:64]


def indent_below(text: str) -> str:
    """Indent the lines after the first, so that no line looks like another speaker's."""
    return "\n    ".join(text.splitlines())


def speaker_of(request: ModelRequest) -> str | None:
    """Return the speaker of a request, if it is stored."""
    return (request.metadata or {}).get(_SPEAKER)


def _with_speaker_names(request: ModelRequest) -> ModelRequest:
    speaker = speaker_of(request)
    if speaker is None:
        return request
    return replace(request, parts=[_with_speaker_prefix(part, one_line(speaker)) for part in request.parts])


def _with_speaker_prefix(part: ModelRequestPart, speaker: str) -> ModelRequestPart:
    if isinstance(part, UserPromptPart) and isinstance(part.content, str):
        return replace(part, content=f"{speaker}: {indent_below(part.content)}")
    return part
