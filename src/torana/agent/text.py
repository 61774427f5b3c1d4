"""Texts of a run: join the reply, and repair split surrogate pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart

#: Separates the texts before and after a tool call in a reply.
PARAGRAPH = "\n\n"


def text_of(messages: Sequence[ModelMessage]) -> str:
    """Return the reply text of a turn's messages, equal to the concatenation of their deltas."""
    texts = [
        part.content
        for message in messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, TextPart) and part.content
    ]
    return PARAGRAPH.join(texts)


def whole(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced, as UTF-8 requires."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def whole_in(value: Any) -> Any:
    """Apply ``whole`` to all texts in a value, including lists and mappings."""
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
