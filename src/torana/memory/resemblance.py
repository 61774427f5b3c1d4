"""Find memories whose words resemble those of a query: color, colour."""

from __future__ import annotations

from collections.abc import Sequence

from torana.store.engine.similarity import most_alike
from torana.store.engine.tokenizer import words
from torana.store.rows.memories import Remembered

#: Length from which a word matches another that begins with it.
_STEM = 4


def resembling(terms: Sequence[str], memories: Sequence[Remembered]) -> list[Remembered]:
    """Return the memories that contain a similar word for each term. It may take a second: call it in a thread.

    Returns none for a query with the word "name": the result could be the name of another person.
    """
    if not terms or "name" in terms:
        return []
    return [item for item in memories if _resembles(terms, frozenset(words(item.text)))]


def _resembles(terms: Sequence[str], found: frozenset[str]) -> bool:
    return all(
        any(_begins(word, other) for other in found) or most_alike(word, found) is not None for word in terms
    )


def _begins(word: str, other: str) -> bool:
    return min(len(word), len(other)) >= _STEM and (word.startswith(other) or other.startswith(word))
