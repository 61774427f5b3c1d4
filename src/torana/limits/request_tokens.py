"""Estimate the tokens of a model request before it is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torana.messages import FILE_TEXT_LIMIT, file_kind

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
