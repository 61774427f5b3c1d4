"""Count, sort, deduplicate and change texts."""

from __future__ import annotations

import re
import string
from typing import Literal

from torana.tools.base import ToolError, counted, tool

#: The maximum length of a text.
TEXT_LIMIT = 100_000

# In "file-10" and "2026-03-04" the hyphen is no minus.
_NUMBER = re.compile(r"(?:(?<![\w-])[-−])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


@tool(idempotent=True)
def count_text(text: str, part: str = "") -> str:
    """Count the lines, words and characters of a text, or how often a letter or word occurs in it.

    A word is the text between spaces; a character is a Unicode code point, spaces and line ends included.

    Args:
        text: The text, at most 100,000 characters.
        part: The letter, word or phrase to count instead, regardless of case.
    """
    _check_length(text)
    if part:
        number = text.casefold().count(part.casefold())
        return f"“{part}” occurs {'once' if number == 1 else f'{number:,} times'}."
    spaceless = sum(not character.isspace() for character in text)
    return (
        f"{counted(len(text.splitlines()), 'line')}, {counted(len(text.split()), 'word')}, "
        f"{counted(len(text), 'character')} ({spaceless:,} without spaces)."
    )


@tool(idempotent=True)
def sort_lines(text: str, order: Literal["ascending", "descending", "numeric"] = "ascending") -> str:
    """Sort the lines of a text; blank lines are omitted, repeated lines stay.

    Args:
        text: The lines, at most 100,000 characters.
        order: Alphabetical regardless of case; or "numeric" by the first number of each line, lowest
            first, lines without a number at the end.
    """
    lines = _lines(text)
    if order == "numeric":
        return "\n".join(sorted(lines, key=_first_number))
    return "\n".join(sorted(lines, key=lambda line: (line.casefold(), line), reverse=order == "descending"))


@tool(idempotent=True)
def unique_lines(text: str) -> str:
    """Remove repeated lines; the first of each stays. Blank lines are omitted.

    Args:
        text: The lines, at most 100,000 characters.
    """
    return "\n".join(dict.fromkeys(_lines(text)))


@tool(idempotent=True)
def change_text(text: str, change: Literal["uppercase", "lowercase", "title", "reverse"]) -> str:
    """Write a text in capital or small letters, with capitalised words, or backwards.

    Args:
        text: The text, at most 100,000 characters.
        change: "uppercase", "lowercase", "title" (each word capitalised) or "reverse" (backwards).
    """
    _check_length(text)
    match change:
        case "uppercase":
            return text.upper()
        case "lowercase":
            return text.lower()
        case "title":
            return string.capwords(text)
        case "reverse":
            return text[::-1]


def _lines(text: str) -> list[str]:
    _check_length(text)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ToolError("There is no text; give at least one line that is not blank.")
    return lines


def _check_length(text: str) -> None:
    if len(text) > TEXT_LIMIT:
        raise ToolError(f"The text has {len(text):,} characters; send at most {TEXT_LIMIT:,} at a time.")


def _first_number(line: str) -> tuple[float, str]:
    match = _NUMBER.search(line)
    number = match[0].replace(",", "").replace("−", "-") if match else "inf"
    return float(number), line.casefold()
