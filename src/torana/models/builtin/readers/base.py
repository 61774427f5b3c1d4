"""The interface of readers, and helpers for their patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torana.models.builtin.message import BuiltinMessage

#: The arguments of a tool.
Arguments: TypeAlias = Mapping[str, Any]

#: The rule of a tool: returns the arguments that a message clearly gives, or None. Never raises or guesses.
Reader: TypeAlias = Callable[[BuiltinMessage], Arguments | None]

_NUMBER_WORDS = "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"
NUMBERS: Mapping[str, int] = {word: number for number, word in enumerate(_NUMBER_WORDS)}


def wordings(*alternatives: str) -> re.Pattern[str]:
    """Return a case-insensitive pattern for any of several regular expressions."""
    return re.compile("|".join(alternatives), re.IGNORECASE)


def first_match(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    """Return the match of the first pattern that matches the whole text."""
    return next(filter(None, (pattern.fullmatch(text) for pattern in patterns)), None)
