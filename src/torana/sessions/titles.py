"""The titles of sessions: from the beginning of the first message, or chosen by a user."""

from __future__ import annotations

from torana.characters import BIDI, CONTROLS, char_class

_LONGEST = 60

#: Maximum characters of a title that a user chooses.
OWN_LIMIT = 100

#: Characters that are removed.
_HIDDEN = char_class("\n\r", CONTROLS, BIDI)


def title_of(content: str) -> str | None:
    """Return the first non-empty line, cut between words; None if there is no visible text."""
    lines = (_line(line) for line in content.splitlines())
    first = next((line for line in lines if line), None)
    if first is None or len(first) <= _LONGEST:
        return first
    head = first[: _LONGEST + 1]
    whole_words = head.rpartition(" ")[0] or first[:_LONGEST]
    return f"{whole_words} …"


def own_title(text: str) -> str:
    """Return a title that a user chose, on one line without invisible characters."""
    return _line(" ".join(text.splitlines()))


def _line(text: str) -> str:
    return " ".join(_HIDDEN.sub("", text).split())
