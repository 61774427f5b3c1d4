"""Texts of a run: the reply that they add up to, and characters that were cut in two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart

#: Text after a tool call is a new paragraph of the same reply.
PARAGRAPH = "\n\n"


def text_of(messages: Sequence[ModelMessage]) -> str:
    """The reply that messages of a turn add up to: what their deltas were, put together."""
    texts = [
        part.content
        for message in messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, TextPart) and part.content
    ]
    return PARAGRAPH.join(texts)


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
