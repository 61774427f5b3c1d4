"""Find texts with a similar spelling."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from torana.store.engine.tokenizer import words

#: The share of common characters at which two texts count as the same: plurals and misspellings.
_MIN_SIMILARITY = 0.85


def most_alike(text: str, choices: Iterable[str]) -> str | None:
    """Return the choice that shares most characters, in order, with the text; None below 85 percent."""
    places = _places(text)

    def share(choice: str) -> float:
        both = len(text) + len(choice)
        # The shorter text bounds the number of common characters, and most choices end here.
        if not text or 2 * min(len(text), len(choice)) < _MIN_SIMILARITY * both:
            return 0
        return 2 * _common(len(text), places, choice) / both

    best = max(choices, key=share, default=None)
    return best if best is not None and share(best) >= _MIN_SIMILARITY else None


def find_alike(wanted: Sequence[str], stored: Sequence[str]) -> dict[str, str]:
    """Return the stored text that each wanted text resembles most, for those that resemble one.

    The texts decide how long it takes: call it in a worker process.
    """
    found = {text: most_alike(text, stored) for text in wanted}
    return {text: near for text, near in found.items() if near is not None}


def count_words(query: str, texts: Mapping[str, str], most: int) -> dict[str, int]:
    """Return how many of the first ``most`` words of the query each text contains, also in a similar form.

    The texts decide how long it takes: call it in a worker process.
    """
    wanted = list(dict.fromkeys(words(query)))[:most]
    return {name: sum(_is_present(word, _words(text)) for word in wanted) for name, text in texts.items()}


def _is_present(word: str, present: Collection[str]) -> bool:
    return word in present or most_alike(word, present) is not None


@lru_cache(1_024)
def _words(text: str) -> frozenset[str]:
    return frozenset(words(text))


def nearest(word: str, choices: Collection[str], *, mistakes: int) -> str | None:
    """Return the choice with the fewest changes to the word; None if all have more than ``mistakes``.

    A change adds, removes or replaces a character, or swaps two neighbours.
    """
    places = _places(word)
    # Each change leaves at most two more characters that are not common.
    near = [
        choice
        for choice in choices
        if abs(len(word) - len(choice)) <= mistakes
        and len(word) + len(choice) - 2 * _common(len(word), places, choice) <= 2 * mistakes
    ]
    best = min(near, key=lambda choice: _changes(word, choice), default=None)
    return best if best is not None and _changes(word, best) <= mistakes else None


def _places(text: str) -> Mapping[str, int]:
    """Return a bit mask of the places of each character."""
    places: dict[str, int] = {}
    for place, character in enumerate(text):
        places[character] = places.get(character, 0) | 1 << place
    return places


def _common(length: int, places: Mapping[str, int], other: str) -> int:
    """Return the length of the longest common subsequence of a text and another (Hyyrö 2004, one bit a row)."""
    every = rows = (1 << length) - 1
    for character in other:
        matches = rows & places.get(character, 0)
        rows = (rows + matches | rows - matches) & every
    return length - rows.bit_count()


def _changes(word: str, other: str) -> int:
    """Return the distance of two words by optimal string alignment."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, character in enumerate(word, 1):
        current = [row]
        for column, candidate in enumerate(other, 1):
            changes = min(above[column] + 1, current[-1] + 1, above[column - 1] + (character != candidate))
            if row > 1 and column > 1 and word[row - 2] == candidate and character == other[column - 2]:
                changes = min(changes, before[column - 2] + 1)
            current.append(changes)
        before, above = above, current
    return above[-1]
