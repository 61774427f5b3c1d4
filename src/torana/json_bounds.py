"""Bound the number of values in a JSON text, and their nesting, before it is parsed.

Parsing and validating takes time for each value rather than for each byte: two megabytes of small values take
pydantic half a minute, one string of two megabytes takes it a millisecond. Nested values are
handled recursively.
"""

from __future__ import annotations

import re

#: Bytes that begin another value: at most one value follows each byte, and the whole text is one more value.
_STARTS = (b",", b"[", b"{")
#: The escapes that decide where a string ends.
_ESCAPES = (rb"\\", rb"\"")
#: A string without such escapes, or one of ``_STARTS`` outside of strings. An unclosed string ends with its
#: line.
_TOKEN = re.compile(rb'"[^"\r\n]*+"?|[\[{,]')

#: A string, also one without an end, or the beginning or the end of a list or an object.
_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def has_more_values(text: bytes | bytearray, limit: int) -> bool:
    """Return whether the JSON text has more than ``limit`` values (``count_values``)."""
    return count_values(text, limit) > limit


def count_values(text: bytes | bytearray, limit: int) -> int:
    """Return an upper bound of the number of values in a JSON text, or ``limit + 1`` if there may be more.

    Names of fields are not counted: there are at most as many names as values. Takes linear time, also for a
    text that is not JSON.
    """
    starts = sum(map(text.count, _STARTS))
    if starts < limit:
        return starts + 1
    # Some of these bytes may be in strings. A step for each escape would take long.
    for escape in _ESCAPES:
        text = text.replace(escape, b"")
    found, strings = 1, 0
    for token in _TOKEN.finditer(text):
        if token[0] in _STARTS:
            found += 1
        else:
            strings += 1
        if found > limit or strings > 2 * limit:
            return limit + 1
    return found


def without_deep_values(text: str, depth: int) -> str:
    """Return a JSON text in which ``null`` replaces lists and objects that are nested deeper than ``depth``.

    Takes linear time, also for a text that is not JSON; such a text stays invalid.
    """
    pieces: list[str] = []
    level, begin = 0, 0
    for token in _BRACKET.finditer(text):
        match token[0]:
            case "[" | "{":
                level += 1
                if level == depth + 1:
                    pieces.append(text[begin : token.start()])
            case "]" | "}":
                if level == depth + 1:
                    pieces.append("null")
                    begin = token.end()
                level -= 1
            case _:
                pass
    return "".join(pieces) + text[begin:] if level <= depth else "".join(pieces)
