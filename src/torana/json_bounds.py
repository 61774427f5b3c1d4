"""Bound the number of values in a JSON text before it is parsed.

Parsing and validating takes time for each value rather than for each byte: two megabytes of small values take
pydantic half a minute, one string of two megabytes takes it a millisecond.
"""

from __future__ import annotations

import re

#: Bytes that begin another value: at most one value follows each, and one value is the whole text.
_STARTS = (b",", b"[", b"{")
#: A string, or one of these bytes outside of strings. A string without an end ends with its line.
_TOKEN = re.compile(rb'"(?:[^"\\\r\n]++|\\[^\r\n])*+"?|[\[{,]')


def has_more_values(text: bytes | bytearray, limit: int) -> bool:
    """Return whether the JSON text has more than ``limit`` values (``count_values``)."""
    return count_values(text, limit) > limit


def count_values(text: bytes | bytearray, limit: int) -> int:
    """Return an upper bound of the number of values in a JSON text, or ``limit + 1`` if there may be more.

    Names of fields do not count. Takes linear time, also for a text that is not JSON.
    """
    starts = sum(map(text.count, _STARTS))
    if starts < limit:
        return starts + 1
    # Some of these bytes may be in strings.
    found = 1
    for token in _TOKEN.finditer(text):
        found += token[0] in _STARTS
        if found > limit:
            break
    return found
