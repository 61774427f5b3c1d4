"""Text from outside without what a person would not see in it."""

from __future__ import annotations

import re
import unicodedata

#: Line breaks and tabs are the only control characters that mean something in a text.
_KEPT = frozenset("\n\t\u200c\u200d")
#: Halves of pairs, controls, and marks of format such as those that turn the direction of writing, or the tags
#: in which a text can be hidden.
_MARKS = frozenset({"Cc", "Cf", "Cs"})
#: The same, and unassigned and private characters.
_UNSEEN = _MARKS | {"Cn", "Co"}
#: The same as marks, and separators of lines and paragraphs.
_ESCAPED = _MARKS | {"Zl", "Zp"}
#: Fillers, and selectors of variants, of which more than one in a row writes something else.
_BLANKS = re.compile(r"[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\U000e0100-\U000e01ef]|[\ufe00-\ufe0f]{2,}")
#: They join letters and pictures; a row of them writes something else.
_JOINERS = re.compile(r"[\u200c\u200d]{2,}")


def visible(text: str) -> str:
    """The text with lines that end in a line feed, and nothing in it that is not shown.

    Removed are control and format characters (also bidirectional ones), tags, fillers, private and unassigned
    characters and halves of surrogate pairs.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    if text.isascii() and text.isprintable():
        return text
    kept = "".join(char for char in text if char in _KEPT or unicodedata.category(char) not in _UNSEEN)
    return _JOINERS.sub("", _BLANKS.sub("", kept))


def escape_hidden(text: str) -> str:
    """Return the text with escapes, as in a Python string literal, for what is not shown or moves other text.

    Line feeds, tabs and single joiners stay.
    """
    if text.isascii() and text.isprintable():
        return text
    escaped = "".join(
        escape(char) if char not in _KEPT and unicodedata.category(char) in _ESCAPED else char for char in text
    )
    for hidden in (_BLANKS, _JOINERS):
        escaped = hidden.sub(lambda found: escape(found[0]), escaped)
    return escaped


def escape(text: str) -> str:
    """Return the text in the escapes of a Python string literal."""
    return text.encode("unicode_escape").decode("ascii")
