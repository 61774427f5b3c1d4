"""The languages of small talk and of the fallback. The folder ``phrases`` has a TOML file for each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from torana.models.builtin.readers.base import Wordings, wordings

_CODES = ("en", "de", "fr", "es", "zh")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_KANA_OR_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
#: Number of characters at the beginning of a text that are examined.
_SAMPLE = 500
#: The score of a letter that English lacks; a frequent word has the score 1.
_LETTER_WEIGHT = 0.5
#: The lowest score at which a text counts as another language than English.
_DECISIVE = 1.0


@dataclass(frozen=True, slots=True)
class FixedReply:
    text: str
    examples: Literal["none", "some", "all"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The phrases of a language with their replies, and the fallback reply."""

    phrases: tuple[tuple[Wordings, FixedReply], ...]
    fallback: str
    #: Frequent words, and letters that English lacks.
    words: frozenset[str]
    letters: frozenset[str]

    def reply(self, text: str) -> FixedReply | None:
        return next((reply for pattern, reply in self.phrases if pattern.fullmatch(text)), None)


@cache
def languages() -> Mapping[str, Language]:
    """Return the languages by code; English is the first."""
    return {code: _read(code) for code in _CODES}


def language_of(text: str) -> Language:
    """Return the language of a text; English if it is unclear."""
    sample = text[:_SAMPLE].lower()
    english, *others = (languages()[code] for code in _CODES if code != "zh")
    if _HAN.search(sample):
        return english if _KANA_OR_HANGUL.search(sample) else languages()["zh"]
    found = _WORD.findall(sample)
    best, second = sorted((_score(language, found, sample), -rank) for rank, language in enumerate(others))[
        :-3:-1
    ]
    clear = best[0] >= _DECISIVE and best[0] > max(second[0], _score(english, found, sample))
    return others[-best[1]] if clear else english


def _score(language: Language, found: list[str], sample: str) -> float:
    letters = sum(letter in language.letters for letter in sample)
    return sum(word in language.words for word in found) + _LETTER_WEIGHT * letters


def _read(code: str) -> Language:
    source = resources.files("torana.models.builtin").joinpath("phrases", f"{code}.toml")
    table: Mapping[str, Any] = tomllib.loads(source.read_text(encoding="utf-8"))
    return Language(
        phrases=tuple(
            (wordings(*phrase["patterns"]), FixedReply(phrase["reply"], phrase.get("examples", "none")))
            for phrase in table["phrase"]
        ),
        fallback=table["fallback"],
        words=frozenset(table["words"].split()),
        letters=frozenset(table["letters"]),
    )
