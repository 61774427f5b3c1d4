"""Phrases that run skills' scripts; a message must match the whole phrase."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from torana.models.builtin.cards import Card
from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments

#: The tool that runs skills' scripts.
SCRIPTS = "run_skill_script"

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def read_trigger(message: BuiltinMessage, cards: Sequence[Card]) -> Arguments | None:
    """Return the arguments of ``run_skill_script`` for the first trigger of the first skill that matches."""
    for card in cards:
        for trigger in card.triggers:
            found = _match_phrase(trigger.phrase, message.phrase)
            if found is not None:
                arguments = [_fill_placeholders(text, found) for text in trigger.arguments]
                return {"slug": card.slug, "script": trigger.script, "arguments": arguments}
    return None


def _match_phrase(phrase: str, text: str) -> Mapping[str, str] | None:
    """Return the texts of the placeholders if the phrase is the whole text, in upper or lower case.

    A placeholder ends where the words after it first occur, so that the time is linear. A repeated placeholder
    must have the same text.
    """
    parts = _PLACEHOLDER.split(phrase)
    words, names = parts[::2], parts[1::2]
    patterns = [_pattern(one, ends=number == len(names)) for number, one in enumerate(words)]
    match = patterns[0].match(text)
    found: dict[str, str] = {}
    for name, pattern in zip(names, patterns[1:], strict=True):
        if match is None:
            return None
        begin, match = match.end(), pattern.search(text, match.end() + 1)
        value = text[begin : match.start()] if match else ""
        if not value or found.setdefault(name, value).casefold() != value.casefold():
            return None
    return found if match else None


def _fill_placeholders(text: str, found: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda name: found[name[1]], text)


@lru_cache(maxsize=1_024)
def _pattern(words: str, *, ends: bool = False) -> re.Pattern[str]:
    """Return the pattern of words with any white space, with ``ends`` at the end of a text."""
    pattern = r"\s+".join(map(re.escape, re.split(r"\s+", words)))
    return re.compile(pattern + (r"\Z" if ends else ""), re.IGNORECASE)
