"""Read requests about the lines, words and letters of a text."""

from __future__ import annotations

import re

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, wordings

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


_WORD = r"(?:the word )?[\"']?(?P<text>[^\W\d_]{2,60})[\"']?"
_LETTERS = (
    wordings(rf"how many (?:letters|characters)(?: are| does)?(?: there)?(?: in)? {_WORD}(?: have)?"),
    wordings(rf"how long is (?=the word ){_WORD}"),
)
_LETTER = r"(?:the )?(?:letters? )?[\"']?(?P<part>[a-z])[\"']?(?:'?s)?"
_OCCURRENCES = (
    wordings(rf"how many (?:times does )?{_LETTER}(?: are)?(?: there)?(?: (?:occurs?|appears?))? in {_WORD}"),
    wordings(rf"count {_LETTER} in {_WORD}"),
)
#: Words that refer to a text elsewhere in the message.
_POINTING = wordings(r"this|that|it|text|these|those|sentence|paragraph|line|list|all")


def count_text(message: BuiltinMessage) -> Arguments | None:
    """Read a question about the length of a pasted text or a word, or about a letter in a word."""
    if message.pasted and _COUNT.fullmatch(message.instruction):
        return {"text": message.pasted}
    match = first_match((*_OCCURRENCES, *_LETTERS), message.phrase)
    if match is None or _POINTING.fullmatch(match["text"]):
        return None
    return match.groupdict()


_CHANGES = {
    **dict.fromkeys(
        ("uppercase", "upper case", "capitals", "capital letters", "all caps", "caps"), "uppercase"
    ),
    **dict.fromkeys(("lowercase", "lower case", "small letters"), "lowercase"),
    **dict.fromkeys(("title case", "titlecase", "capitalize"), "title"),
    **dict.fromkeys(("reverse", "backwards", "reversed"), "reverse"),
}
_CHANGE = rf"(?P<change>{'|'.join(_CHANGES)})"
_TEXT = r"(?:this|that|it|the text|this text|the following|the following text|this sentence)"
_CHANGE_PASTED = wordings(
    rf"(?:(?:make|write|convert|put|turn|change|print|spell|say) )?(?:{_TEXT} )?(?:in |to |into )?{_CHANGE}"
    rf"(?: {_TEXT})?"
)
_CHANGE_WORD = (
    wordings(rf"(?P<change>reverse|uppercase|lowercase|capitalize) {_WORD}"),
    wordings(rf"(?:spell|say|write) {_WORD} (?:in )?{_CHANGE}"),
    wordings(rf"what is {_WORD} (?P<change>backwards|reversed)"),
)


def change_text(message: BuiltinMessage) -> Arguments | None:
    """Read a request to write a pasted text or a word in capitals, in small letters or backwards."""
    if message.pasted and (match := _CHANGE_PASTED.fullmatch(message.instruction)):
        return {"text": message.pasted, "change": _CHANGES[match["change"].lower()]}
    match = first_match(_CHANGE_WORD, message.phrase)
    if match is None or _POINTING.fullmatch(match["text"]):
        return None
    return {"text": match["text"], "change": _CHANGES[match["change"].lower()]}


_ALPHABETIZE = wordings(
    r"(?:alphabeti[sz]e|sort(?: alphabetically)?|order) (?P<list>[^\W\d][\w' -]{0,60}(?:,[\w' -]{1,60}){1,20})"
)


def sort_lines(message: BuiltinMessage) -> Arguments | None:
    """Read a request to sort pasted lines, or a list with commas on one line."""
    match, lines = _SORT.fullmatch(message.instruction), _lines(message.pasted)
    if not match and (inline := _ALPHABETIZE.fullmatch(message.phrase)):
        return {"text": _lines(inline["list"]), "order": "ascending"}
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
