"""Texts of a run: join the reply, repair surrogate pairs, read the arguments of calls, and estimate tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart

#: Separates the texts before and after a tool call in a reply.
PARAGRAPH = "\n\n"

#: Pieces of a growing text that are joined at a time. Each string takes some 50 bytes besides its characters.
_PIECES = 256


class GrowingText:
    """A text that grows by many short pieces, and takes little more memory than its characters."""

    def __init__(self, text: str = "") -> None:
        self._blocks = [text]
        self._pieces: list[str] = []
        self.length = len(text)

    def append(self, piece: str) -> None:
        """Add a piece to the end."""
        self._pieces.append(piece)
        self.length += len(piece)
        if len(self._pieces) == _PIECES:
            self._blocks.append("".join(self._pieces))
            self._pieces.clear()

    def __str__(self) -> str:
        """Return the whole text. Repeated calls return the same object until the text grows."""
        if len(self._blocks) > 1 or self._pieces:
            self._blocks = ["".join([*self._blocks, *self._pieces])]
            self._pieces.clear()
        return self._blocks[0]


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


def repair_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced, as UTF-8 requires."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def arguments_of(call: ToolCallPart) -> dict[str, Any]:
    """Return the call's arguments as valid JSON, without lone surrogates and infinities."""
    text = repair_surrogates(json.dumps(call.args_as_dict(), ensure_ascii=False))
    return json.loads(text, parse_constant=str)


def repair_all_surrogates(value: Any) -> Any:
    """Apply ``repair_surrogates`` to all texts in a value, including lists and mappings."""
    match value:
        case str():
            return repair_surrogates(value)
        case list() | tuple():
            return [repair_all_surrogates(item) for item in cast("Sequence[Any]", value)]
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {
                repair_all_surrogates(key) if isinstance(key, str) else key: repair_all_surrogates(item)
                for key, item in pairs
            }
        case _:
            return value


def estimate(text: str) -> int:
    """Estimate the tokens of a text; for most scripts the result is too high rather than too low.

    The tokenizer of the model is not used. Four ASCII characters count as one token, and every other character
    counts as one. Common tokenizers need about one token for each Chinese or Japanese character, and less for a
    letter of another alphabet.
    """
    plain = sum(character.isascii() for character in text)
    return -(-plain // 4) + len(text) - plain
