"""Phrases that run skills' scripts; a message must match the whole phrase."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torana.models.builtin.cards import Card, Trigger
from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments

#: The tool that runs skills' scripts.
SCRIPTS = "run_skill_script"

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

#: Maximum characters of a message for phrases with several placeholders.
_LONG = 300


def read_trigger(message: BuiltinMessage, cards: Sequence[Card]) -> Arguments | None:
    """Return the arguments of ``run_skill_script`` for the first trigger of the first skill that matches."""
    for card in cards:
        for trigger in card.triggers:
            match = _match_phrase(trigger, message.phrase)
            if match is not None:
                arguments = [_fill_placeholders(text, match) for text in trigger.arguments]
                return {"slug": card.slug, "script": trigger.script, "arguments": arguments}
    return None


def _match_phrase(trigger: Trigger, phrase: str) -> re.Match[str] | None:
    # Adjacent placeholders cause backtracking: the time grows polynomially with the length.
    if len(phrase) > _LONG and len(_PLACEHOLDER.findall(trigger.phrase)) > 1:
        return None
    return _pattern(trigger).fullmatch(phrase)


def _fill_placeholders(text: str, said: re.Match[str]) -> str:
    return _PLACEHOLDER.sub(lambda name: said[name[1]], text)


def _pattern(trigger: Trigger) -> re.Pattern[str]:
    """Return a pattern for the phrase with any white space; a repeated placeholder matches the same text."""
    pieces: list[str] = []
    seen: set[str] = set()
    for index, piece in enumerate(_PLACEHOLDER.split(trigger.phrase)):
        if index % 2 == 0:
            pieces.append(r"\s+".join(map(re.escape, re.split(r"\s+", piece))))
        else:
            pieces.append(f"(?P={piece})" if piece in seen else f"(?P<{piece}>.+?)")
            seen.add(piece)
    return re.compile("".join(pieces), re.IGNORECASE)
