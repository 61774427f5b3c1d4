"""Skills' scripts that are run by a phrase, for the builtin model: the words as declared, or not at all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torana.models.builtin.cards import Card, Trigger
from torana.models.builtin.message import Message
from torana.models.builtin.readers.base import Arguments

#: The tool that runs skills' scripts.
SCRIPTS = "run_skill_script"

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

#: Characters of a message beyond which a phrase with more than one name does not fit it.
_LONG = 300


def read_trigger(message: Message, cards: Sequence[Card]) -> Arguments | None:
    """What ``run_skill_script`` is called with: of the first trigger of the first skill whose words fit."""
    for card in cards:
        for trigger in card.triggers:
            match = _said(trigger, message.phrase)
            if match is not None:
                arguments = [_filled(text, match) for text in trigger.arguments]
                return {"slug": card.slug, "script": trigger.script, "arguments": arguments}
    return None


def _said(trigger: Trigger, phrase: str) -> re.Match[str] | None:
    # Where two names meet there is much to try: the time grows with a power of the length.
    if len(phrase) > _LONG and len(_PLACEHOLDER.findall(trigger.phrase)) > 1:
        return None
    return _pattern(trigger).fullmatch(phrase)


def _filled(text: str, said: re.Match[str]) -> str:
    return _PLACEHOLDER.sub(lambda name: said[name[1]], text)


def _pattern(trigger: Trigger) -> re.Pattern[str]:
    """The phrase, with any spaces between its words; a name said twice has to be the same text."""
    pieces: list[str] = []
    seen: set[str] = set()
    for index, piece in enumerate(_PLACEHOLDER.split(trigger.phrase)):
        if index % 2 == 0:
            pieces.append(r"\s+".join(map(re.escape, re.split(r"\s+", piece))))
        else:
            pieces.append(f"(?P={piece})" if piece in seen else f"(?P<{piece}>.+?)")
            seen.add(piece)
    return re.compile("".join(pieces), re.IGNORECASE)
