"""Texts with a similar spelling are found."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.store.engine.similarity import most_alike, nearest

_SHORT = st.text("abc", max_size=6)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("colour", "color"),
        ("banana", "bananas"),
        ("shoping list", "shopping list"),
        ("bananas", "bananas"),
        # A replaced character of a short word makes another word.
        ("bear", None),
        ("", None),
    ],
)
def test_text_of_85_percent_common_characters_is_alike(text: str, found: str | None) -> None:
    assert most_alike(text, ["beer", "color", "bananas", "shopping list"]) == found


def test_most_alike_text_is_preferred_and_then_the_first() -> None:
    assert most_alike("bananaa", ["bananaas", "bananaa s", "bananas"]) == "bananaas"
    assert most_alike("listen", ["listens", "listena"]) == "listens"
    assert most_alike("anything", []) is None


@pytest.mark.parametrize(
    ("word", "mistakes", "found"),
    [
        ("remnd", 1, "remind"),
        ("reminnd", 1, "remind"),
        ("remimd", 1, "remind"),
        ("reimnd", 1, "remind"),
        ("reimnnd", 1, None),
        ("saturdya", 2, "saturday"),
        ("staurdya", 2, "saturday"),
        ("x", 1, None),
    ],
)
def test_nearest_word_has_at_most_the_given_mistakes(word: str, mistakes: int, found: str | None) -> None:
    assert nearest(word, ["remind", "saturday", "sunday"], mistakes=mistakes) == found


@given(_SHORT, _SHORT)
def test_share_is_that_of_the_longest_common_subsequence(text: str, other: str) -> None:
    both = len(text) + len(other)
    alike = both > 0 and 2 * _longest_common(text, other) >= 0.85 * both
    assert most_alike(text, [other]) == (other if alike else None)


@given(_SHORT, _SHORT, st.integers(0, 3))
def test_nearest_counts_changes_of_a_word(word: str, other: str, mistakes: int) -> None:
    assert nearest(word, [other], mistakes=mistakes) == (other if _changes(word, other) <= mistakes else None)


@cache
def _longest_common(text: str, other: str) -> int:
    if not text or not other:
        return 0
    if text[-1] == other[-1]:
        return _longest_common(text[:-1], other[:-1]) + 1
    return max(_longest_common(text[:-1], other), _longest_common(text, other[:-1]))


@cache
def _changes(word: str, other: str) -> int:
    if not word or not other:
        return max(len(word), len(other))
    found = [
        _changes(word[:-1], other) + 1,
        _changes(word, other[:-1]) + 1,
        _changes(word[:-1], other[:-1]) + (word[-1] != other[-1]),
    ]
    if len(word) > 1 and len(other) > 1 and word[-2:] == other[-1] + other[-2]:
        found.append(_changes(word[:-2], other[:-2]) + 1)
    return min(found)
