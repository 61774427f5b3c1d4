"""The interface of readers, and helpers for their patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

from torana.models.builtin.message import BuiltinMessage

#: The arguments of a tool.
Arguments: TypeAlias = Mapping[str, Any]

#: The rule of a tool: returns the arguments that a message clearly gives, or None. Never raises or guesses.
Reader: TypeAlias = Callable[[BuiltinMessage], Arguments | None]

_NUMBER_WORDS = "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"
NUMBERS: Mapping[str, int] = {word: number for number, word in enumerate(_NUMBER_WORDS)}


class Wordings:
    """A case-insensitive pattern, compiled at its first use: compiling all takes a third of a second."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self._text, re.IGNORECASE)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._compiled.fullmatch(text)

    def search(self, text: str) -> re.Match[str] | None:
        return self._compiled.search(text)

    def findall(self, text: str) -> list[Any]:
        return self._compiled.findall(text)

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
        return self._compiled.sub(replacement, text)

    def subn(self, replacement: str, text: str) -> tuple[str, int]:
        return self._compiled.subn(replacement, text)


def wordings(*alternatives: str) -> Wordings:
    """Return a case-insensitive pattern for any of several regular expressions."""
    return Wordings("|".join(alternatives))


def groups_of(*patterns: Wordings) -> Reader:
    """Return a rule whose arguments are the named groups of the first pattern that matches the whole phrase."""

    def read(message: BuiltinMessage) -> Arguments | None:
        match = first_match(patterns, message.phrase)
        return match.groupdict() if match else None

    return read


def first_match(patterns: tuple[Wordings, ...], text: str) -> re.Match[str] | None:
    """Return the match of the first pattern that matches the whole text."""
    return next(filter(None, (pattern.fullmatch(text) for pattern in patterns)), None)
