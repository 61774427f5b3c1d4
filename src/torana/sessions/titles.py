"""What a session is called: the beginning of what was said in it first."""

from __future__ import annotations

import unicodedata

_LONGEST = 60

#: They turn the direction of what stands behind them, in a list as well.
_TURNS_DIRECTION = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def title_of(content: str) -> str | None:
    """The first line with something in it, cut between words; None where nothing can be seen of it."""
    lines = (_line(line) for line in content.splitlines())
    first = next((line for line in lines if line), None)
    if first is None or len(first) <= _LONGEST:
        return first
    head = first[: _LONGEST + 1]
    whole_words = head.rpartition(" ")[0] or first[:_LONGEST]
    return f"{whole_words} …"


def _line(text: str) -> str:
    return " ".join("".join(character for character in text if _is_shown(character)).split())


def _is_shown(character: str) -> bool:
    if unicodedata.category(character) == "Cc":
        return character == "\t"
    return unicodedata.bidirectional(character) not in _TURNS_DIRECTION
