"""Split texts into words; ranking and search use the same segmentation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, pairwise

from torana.characters import normalize

#: Maximum characters of a text, counted after normalisation; the rest is not searchable.
TEXT_LIMIT = 20_000
#: Maximum characters of a word; longer words match by their beginning.
WORD_LIMIT = 64

# Han, kana, Thai, Lao, Myanmar and Khmer are written without spaces: a pair of adjacent characters is the
# smallest unit that can be searched without a dictionary.
_UNSPACED = re.compile(
    "[\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U0001b000-\U0001b16f\U00020000-\U000323af\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff]"
)
_UNSPACED_RUN = re.compile(f"(?:{_UNSPACED.pattern}){{2,}}")
# Parts of an emoji (Unicode TS #51): joiner, skin tones, tags.
_EMOJI_GLUE = re.compile("[\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
_FLAG = "[\U0001f1e6-\U0001f1ff]{2}"
_SYMBOL = "[^\u200d\U000e0020-\U000e007f][\U0001f3fb-\U0001f3ff]?[\U000e0020-\U000e007f]*"
_EMOJI = re.compile(f"{_FLAG}|{_SYMBOL}(?:\u200d{_SYMBOL})*")
# Marks are often not typed: "limao" finds "limão".
_MARKED_LATIN = re.compile("([a-z])[\u0300-\u036f]+")
# Invisible: soft hyphen, text and emoji variation selectors.
_DROPPED = dict.fromkeys([0xAD, 0xFE0E, 0xFE0F])


def words(text: str) -> list[str]:
    """Return the words of a text in order, with repetitions, normalised for matching.

    Letters, digits and marks make a word (Unicode general categories L, N, M); case and compatibility forms are
    folded (NFKC with case folding, UAX #15), and Latin letters lose their marks. Scripts without spaces give
    overlapping pairs of characters, an emoji is a word, and English plurals become singular. Never raises;
    reads at most ``TEXT_LIMIT`` characters, and no word is longer than ``WORD_LIMIT``.
    """
    return [word[:WORD_LIMIT] for word in _words(_normal(text))]


def last_characters(text: str) -> list[str]:
    """Return the last character of each run of a script without spaces, which begins no pair."""
    return [run[-1] for run in _UNSPACED_RUN.findall(_normal(text))]


def _normal(text: str) -> str:
    # A ligature expands to up to 18 characters.
    folded = normalize("NFKC", text[:TEXT_LIMIT]).casefold()[:TEXT_LIMIT]
    plain = _MARKED_LATIN.sub(r"\1", normalize("NFKD", folded))
    return normalize("NFKC", plain)[:TEXT_LIMIT].translate(_DROPPED)


def _words(text: str) -> Iterator[str]:
    after_apostrophe = False
    for kind, group in groupby(text, key=_kind):
        run = "".join(group)
        match kind:
            case "word" if not (after_apostrophe and run == "s"):
                yield _singular(run)
            case "unspaced":
                yield from _pairs(run)
            case "emoji":
                yield from _EMOJI.findall(run)
            case _:
                pass
        after_apostrophe = run in ("'", "’")


@lru_cache(4_096)
def _kind(character: str) -> str:
    if _UNSPACED.match(character):
        return "unspaced"
    if _EMOJI_GLUE.match(character):
        return "emoji"
    category = unicodedata.category(character)
    if category[0] in "LNM":
        return "word"
    return "emoji" if category == "So" else ""


def _pairs(run: str) -> list[str]:
    return [first + second for first, second in pairwise(run)] or [run]


def _singular(word: str) -> str:
    """Return the singular by Harman's S-stemmer (1991): "mile" finds "miles" and "city" finds "cities"."""
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word
