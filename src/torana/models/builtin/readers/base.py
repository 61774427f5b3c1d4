"""What a reader is, and how it spells what people say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torana.models.builtin.message import Message

#: What a tool is called with.
Arguments: TypeAlias = Mapping[str, Any]

#: One tool's rule: the arguments that a message clearly gives, or None. It never raises and never guesses.
Reader: TypeAlias = Callable[[Message], Arguments | None]

_NUMBER_WORDS = "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"
#: Small numbers in words.
NUMBERS: Mapping[str, int] = {word: number for number, word in enumerate(_NUMBER_WORDS)}


def wordings(*alternatives: str) -> re.Pattern[str]:
    """Any of several wordings, each a regular expression, in any case."""
    return re.compile("|".join(alternatives), re.IGNORECASE)


def first_match(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    """The match of the first pattern that fits the whole text."""
    return next(filter(None, (pattern.fullmatch(text) for pattern in patterns)), None)
