"""Correct spelling mistakes in the words of the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torana.store.engine.similarity import nearest

#: Maximum characters of a message that is corrected.
_LIMIT = 300
# fmt: off
#: Words of the rules, four letters or more. Shorter words have too many neighbours.
_RULE_WORDS = (
    "afternoon", "alarm", "allergic", "april", "august", "between", "birthday", "calculate", "cancel",
    "celsius", "characters", "christmas", "convert", "count", "date", "days", "december", "degrees",
    "divided", "easter", "evening", "every", "fahrenheit", "favorite", "favourite", "february", "first",
    "forget", "friday", "gallons", "grams", "hour", "hours", "inches", "january", "july", "june",
    "kilometers", "kilometres", "last", "letters", "lines", "list", "lists", "liters", "litres", "lowercase",
    "march", "message", "meters", "metres", "miles", "minus", "minute", "minutes", "monday", "months",
    "morning", "multiplied", "november", "october", "ounces", "percent", "plus", "pounds", "question",
    "remember", "remind", "reminder", "reminders", "remove", "reverse", "root", "saturday", "seconds",
    "september", "shopping", "show", "sort", "square", "sunday", "thursday", "time", "timer", "times",
    "today", "tomorrow", "tonight", "tuesday", "until", "uppercase", "wednesday", "weekday", "weeks", "what",
    "when", "where", "which", "words", "years", "yesterday",
)
#: Frequent words that resemble the words of the rules. They are not corrected.
_OTHER_WORDS = (
    "about", "also", "back", "been", "call", "called", "come", "could", "does", "file", "files", "find",
    "from", "give", "good", "have", "here", "into", "item", "items", "just", "kids", "know", "like", "live",
    "long", "lost", "make", "many", "more", "much", "name", "need", "note", "notes", "only", "over", "read",
    "said", "should", "some", "such", "take", "tell", "than", "that", "them", "then", "there", "they", "this",
    "very", "want", "wants", "were", "what's", "will", "with", "work", "would", "your",
)
# fmt: on
_KNOWN = frozenset((*_RULE_WORDS, *_OTHER_WORDS))
_WORD = re.compile(r"[A-Za-z]{4,20}")
#: Length from which two mistakes are corrected.
_LONG = 8
#: Arguments with the user's own words, which stay as they were written.
_FREE_TEXT = frozenset({"text", "entries", "options", "about", "name"})


def correct_spelling(text: str) -> tuple[str, Mapping[str, str]]:
    """Return the text with corrected words, and the original of each corrected word."""
    if len(text) > _LIMIT:
        return text, {}
    originals: dict[str, str] = {}

    def correct(match: re.Match[str]) -> str:
        word = match[0]
        if word.lower() in _KNOWN:
            return word
        near = nearest(word.lower(), _RULE_WORDS, mistakes=2 if len(word) >= _LONG else 1)
        if near is None:
            return word
        originals[near] = word
        return near

    return _WORD.sub(correct, text), originals


def restore(arguments: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments with the original words in the user's own texts."""
    return {key: _restore(value, originals) if key in _FREE_TEXT else value for key, value in arguments.items()}


def _restore(value: str | list[str], originals: Mapping[str, str]) -> str | list[str]:
    if isinstance(value, list):
        return [_WORD.sub(lambda match: originals.get(match[0], match[0]), item) for item in value]
    return _WORD.sub(lambda match: originals.get(match[0], match[0]), value)
