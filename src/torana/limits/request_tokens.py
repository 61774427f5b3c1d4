"""Estimate the tokens of a model request before it is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torana.messages import FILE_TEXT_LIMIT, InputParts, file_kind

if TYPE_CHECKING:  # importing it takes a second
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

#: The names of the parts in the details of a response's usage.
_INSTRUCTIONS, _TOOLS, _HISTORY = "torana_instructions", "torana_tools", "torana_history"

#: Likely bytes of text per token.
_BYTES = 3

#: Tokens of a picture. For a PDF: bytes per token, and the smallest and largest number of tokens.
_PICTURE = 2_000
_PDF = (10, 2_000, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTokens:
    """The tokens of a request that was not sent yet: the likely and the maximum number."""

    likely: int
    most: int

    def __add__(self, other: RequestTokens) -> RequestTokens:
        return RequestTokens(likely=self.likely + other.likely, most=self.most + other.most)

    @classmethod
    def of_bytes(cls, size: int) -> RequestTokens:
        return cls(likely=likely_of_bytes(size), most=size)


def likely_of_bytes(size: int) -> int:
    """Return the likely number of tokens of this many bytes of text, rather too many than too few."""
    return math.ceil(size / _BYTES)


def tokens_of_files(sizes: Sequence[tuple[str, int]]) -> RequestTokens:
    """Return the likely and the maximum number of tokens of files, by their media types and sizes.

    The maximum for pictures and PDFs is the likely number: providers state no limit.
    """
    text = tokens = 0
    for media_type, size in sizes:
        match file_kind(media_type):
            case "image":
                tokens += _PICTURE
            case "pdf":
                per_token, least, most = _PDF
                tokens += min(max(size // per_token, least), most)
            case _:
                text += size
    likely = tokens + likely_of_bytes(min(text, FILE_TEXT_LIMIT * _BYTES))
    # A shown character has at most four bytes.
    return RequestTokens(likely=likely, most=tokens + min(text, FILE_TEXT_LIMIT) * 4)


def likely_tokens(text: str) -> int:
    """Return the likely tokens of a text: in rare scripts and emoji each byte may be a token."""
    size = len(text.encode(errors="surrogatepass"))
    rare = 0 if text.isascii() else size - len(text.encode("ascii", "ignore"))
    return rare + likely_of_bytes(size - rare)


def add_parts(usage: RequestUsage, estimated: InputParts) -> RequestUsage:
    """Return the usage with the parts of its request, in proportion to the input tokens that it reports."""
    parts = estimated.scaled_to(usage.input_tokens)
    named = {_INSTRUCTIONS: parts.instructions, _TOOLS: parts.tools, _HISTORY: parts.history}
    return replace(usage, details={**usage.details, **named})


def parts_of(responses: Sequence[ModelResponse]) -> InputParts:
    """Return the sum of the parts that the responses note."""
    return sum((_parts_in(response.usage.details) for response in responses), InputParts())


def _parts_in(details: Mapping[str, int]) -> InputParts:
    return InputParts(
        instructions=details.get(_INSTRUCTIONS, 0),
        tools=details.get(_TOOLS, 0),
        history=details.get(_HISTORY, 0),
    )
