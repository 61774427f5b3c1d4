"""Read requests about the lines and words of a pasted text."""

from __future__ import annotations

import re

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, wordings

_THESE = r"(?: (?:the|these|this|the following))?"
_LINES = r"(?: (?:lines|words|items|entries|names|numbers|values|list|text))?"
_COUNTED = r"(?:words|characters|letters|lines)"

_COUNT = wordings(
    rf"count(?: all)?(?: the)?(?: {_COUNTED}(?: and {_COUNTED})?)?(?: (?:in|of))?{_THESE}(?: \w+)?",
    rf"how many {_COUNTED}(?: and {_COUNTED})?(?: (?:are|does))?(?: there)?(?: in)?{_THESE}(?: \w+)?(?: have)?",
    r"(?:word|character|line) count(?: of)?(?: this)?(?: \w+)?",
)
_SORT = wordings(
    rf"(?:sort|order|put){_THESE}{_LINES}(?P<how>(?: (?:alphabetically|numerically|in|by|from|to|a|z|the|order"
    r"|alphabetical|numerical|numeric|ascending|descending|reversed?|small|large|low|high|numbers?|value))*)"
)
_UNIQUE = wordings(
    rf"(?:remove|delete|drop)(?: all)?(?: the)? (?:duplicates?|duplicated|repeated)(?: lines| items| entries)?"
    rf"(?: (?:from|in|of){_THESE}{_LINES})?",
    rf"de-?dup(?:e|licate){_THESE}{_LINES}",
    rf"(?:the )?unique (?:lines|items|words|entries)(?: (?:of|in|from){_THESE}{_LINES})?",
)
_NUMERIC = wordings(r"number|numeri|small|large|low|high|value")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_DOWN = wordings(r"descending|reverse|\bz\b to|(?:large|high) to")


def count_text(message: BuiltinMessage) -> Arguments | None:
    """Read a question about the length of a pasted text."""
    return {"text": message.pasted} if message.pasted and _COUNT.fullmatch(message.instruction) else None


def sort_lines(message: BuiltinMessage) -> Arguments | None:
    """Read a request to sort pasted lines, or a list with commas on one line."""
    match, lines = _SORT.fullmatch(message.instruction), _lines(message.pasted)
    if not match or not lines:
        return None
    down, numeric = _DOWN.search(match["how"]), _NUMERIC.search(message.instruction)
    if down and numeric:
        return None  # the tool sorts numbers only in ascending order
    order = "descending" if down else "numeric" if numeric else "ascending"
    return {"text": lines, "order": order}


def unique_lines(message: BuiltinMessage) -> Arguments | None:
    """Read a request to remove repeated lines from a pasted text or a list with commas on one line."""
    lines = _lines(message.pasted)
    return {"text": lines} if lines and _UNIQUE.fullmatch(message.instruction) else None


def _lines(text: str) -> str:
    """Return the items of a list, one per line; '' if a comma may be a thousands separator."""
    if "\n" in text:
        return text
    if _THOUSANDS.search(text) and not re.search(r",\s", text):
        return ""
    return "\n".join(re.split(rf"(?!{_THOUSANDS.pattern}),\s*", text))
