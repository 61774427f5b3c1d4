"""Read requests for a random choice."""

from __future__ import annotations

import re

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, wordings

_COIN = wordings(r"(?:flip|toss|throw)(?: me)? (?:a|the) coin", r"heads or tails", r"coin (?:flip|toss)")
_DIE = wordings(
    r"(?:roll|throw)(?: me)?(?: (?:a|the|one))? (?:dice|die|d(?P<sides>\d{1,3}))",
    r"roll(?: it)?",
)
_NUMBER = wordings(
    r"(?:(?:pick|choose|give me|generate|tell me|think of)(?: me)? )?(?:a )?(?:random )?number "
    r"(?:between|from) (?P<low>-?\d{1,9}) (?:and|to) (?P<high>-?\d{1,9})",
)
_CHOOSE = (
    wordings(r"(?:choose|pick|decide|select)(?: one)?(?: (?:between|from|of|for me))*:? (?P<options>.{1,200})"),
    # Two short options and nothing else.
    wordings(r"(?P<options>[\w'-]{1,20}(?: [\w'-]{1,20})? or [\w'-]{1,20}(?: [\w'-]{1,20})?)"),
)
_SEPARATOR = re.compile(r" ?, ?(?:or |and )?| or | and ")
_QUESTION = wordings(
    r"(?:is|are|was|were|do|does|did|can|could|will|would|should|what|which|who|when|where|why|how|true|false|yes|no|not"
    r"|more|less|now|never|sooner|one|it|this|that)\b.*"
)


def pick_random(message: BuiltinMessage) -> Arguments | None:
    """Read a request to flip a coin, to roll a die, or to choose a number or an option."""
    phrase = message.phrase
    if _COIN.fullmatch(phrase):
        return {"options": ["heads", "tails"]}
    if match := _DIE.fullmatch(phrase):
        return {"low": 1, "high": max(1, int(match["sides"] or 6))}
    if match := _NUMBER.fullmatch(phrase):
        return {"low": int(match["low"]), "high": int(match["high"])}
    return _options(phrase)


def _options(phrase: str) -> Arguments | None:
    for pattern in _CHOOSE:
        match = pattern.fullmatch(phrase)
        options = [option.strip() for option in _SEPARATOR.split(match["options"])] if match else []
        if len(options) > 1 and all(options) and not any(map(_QUESTION.fullmatch, options)):
            return {"options": options}
    return None
