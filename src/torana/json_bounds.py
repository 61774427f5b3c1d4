"""Bound the number of values in a JSON text, and their nesting, before it is parsed.

Parsing and validating takes time for each value rather than for each byte: two megabytes of small values take
pydantic half a minute, one string of two megabytes takes it a millisecond. Nested values are
handled recursively.
"""

from __future__ import annotations

import re

#: The nesting that is stored; parsers refuse more than about 200 levels.
_READABLE = 128

#: Bytes that begin another value: at most one value follows each byte, and the whole text is one more value.
_STARTS = (b",", b"[", b"{")
#: The escapes that decide where a string ends.
_ESCAPES = (rb"\\", rb"\"")
#: A string without such escapes, or one of ``_STARTS`` outside of strings. An unclosed string ends with its
#: line.
_TOKEN = re.compile(rb'"[^"\r\n]*+"?|[\[{,]')

#: A string, also one without an end, or the beginning or the end of a list or an object.
_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)

#: A string, also one without an end, the beginning or the end of a list or an object, or text between them.
_PIECE = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]|[^"\[\]{}]++', re.DOTALL)


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


def with_readable_nesting(text: bytes) -> bytes:
    """Return a JSON text that every parser can read: ``null`` replaces values deeper than 128 levels.

    Serializers of pydantic accept more levels than its parser does.
    """
    if text.count(b"[") + text.count(b"{") <= _READABLE:
        return text
    return without_deep_values(text.decode(), _READABLE).encode()


def without_dense_values(text: str, lists: frozenset[str], *, limit: int, length: int) -> str:
    """Return a JSON text in which ``null`` replaces dense values inside the items of some lists.

    A value is dense if it contains more than ``limit`` values that have fewer than ``length`` characters on
    average. ``lists`` are the names of the fields with the lists. An item itself is never replaced. Takes
    linear time, also for a text that is not JSON.
    """
    if sum(map(text.count, ",[{")) * length <= len(text):
        return text
    dense = _find_dense(text, {f'"{name}"' for name in lists}, limit=limit, length=length)
    pieces: list[str] = []
    begin = 0
    for start, end in dense:
        pieces += [text[begin:start], "null"]
        begin = end
    return "".join([*pieces, text[begin:]])


def _find_dense(text: str, names: set[str], *, limit: int, length: int) -> list[tuple[int, int]]:
    """Return the places of dense values: start and end, in order."""
    found: list[tuple[int, int]] = []
    #: Where the open lists and objects begin, and the numbers of values before them in the one around.
    opened: list[tuple[int, int]] = []
    #: The number of lists and objects that are open in an item of a list; it is reached in the first such list.
    outside = 0
    count, last, before = 1, "", ""
    for piece in _PIECE.finditer(text):
        mark = piece[0]
        if mark in ("[", "{"):
            opened.append((piece.start(), count))
            count = 1
            if not outside and last in names and mark == "[" and before.strip() == ":":
                outside = len(opened)
        elif mark in ("]", "}") and opened:
            start, around = opened.pop()
            if outside and len(opened) > outside and limit < count > (piece.end() - start) / length:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, piece.end()))
                count = 1
            count += around
            outside = outside if len(opened) >= outside else 0
        elif mark[0] == '"':
            last = mark
        else:
            count += mark.count(",")
            before = mark
    return found
