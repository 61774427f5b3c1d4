"""The note behind a message in a model request. It is not part of the session's history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, UserContent, UserPromptPart

from torana.messages import NOTE_MARK


def with_note(prompt: str | Sequence[UserContent], note: str) -> str | Sequence[UserContent]:
    """Return the prompt with the note behind its text.

    The note follows the message, so that the beginning of a prompt is the same in the next turn. It is no
    separate message, because the templates of several models require that user and assistant alternate.
    """
    if not note:
        return prompt
    if isinstance(prompt, str):
        return f"{prompt}{NOTE_MARK}{note}"
    text, *files = prompt
    return [f"{text}{NOTE_MARK}{note}", *files]


def without_note(messages: Sequence[ModelMessage], content: str) -> list[ModelMessage]:
    """Return the messages of a turn without the note on its message ``content``."""
    return [
        replace(message, parts=[_without_note(part, content) for part in message.parts])
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]


def _without_note(part: ModelRequestPart, content: str) -> ModelRequestPart:
    if not isinstance(part, UserPromptPart):
        return part
    text = part.content if isinstance(part.content, str) else part.content[0]
    if not (isinstance(text, str) and text.startswith(content + NOTE_MARK)):
        return part
    return replace(part, content=content if isinstance(part.content, str) else [content, *part.content[1:]])
