"""Rank the memories of one user by BM25.

The database finds the candidates and this module ranks them, so that the order is the same on every database
and scores reveal nothing about other users.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torana.store.engine.fts import begins_words
from torana.store.rows.memories import Candidate, Remembered
from torana.store.rows.reports.memory_index import WORDS_LIMIT

#: The saturation of repeated words and the influence of the text's length: the usual values (Robertson and
#: Zaragoza, 2009).
_K1, _B = 1.2, 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A memory and its score. Scores are comparable within one result; higher is better."""

    memory: Remembered
    score: float
    #: Number of different query words that the memory contains; 0 if it was found by its vector.
    matched_terms: int


def rank(terms: Sequence[str], candidates: Sequence[Candidate], *, total: int) -> list[Recalled]:
    """Return the candidates that contain a term, best first, equal scores newest first.

    ``candidates`` are all memories of a user that contain any of the terms. The user has ``total`` memories.
    """
    # The lists of words are made one at a time: those of all memories would take hundreds of megabytes.
    counted = [_count_terms(terms, candidate) for candidate in candidates]
    holders = {term: sum(term in found for found, _ in counted) for term in terms}
    rarity = {term: math.log1p((total - n + 0.5) / (n + 0.5)) for term, n in holders.items()}
    usual = sum(length for _, length in counted) / max(len(counted), 1)
    fits = [
        Recalled(
            memory=candidate.memory,
            score=sum(rarity[term] * _weight(times, length / usual) for term, times in found.items()),
            matched_terms=len(found),
        )
        for candidate, (found, length) in zip(candidates, counted, strict=True)
        if found
    ]
    return sorted(fits, key=lambda fit: (fit.score, fit.memory.created_at, fit.memory.id), reverse=True)


def _count_terms(terms: Sequence[str], candidate: Candidate) -> tuple[dict[str, int], int]:
    """Return how often each term occurs in a memory that contains any, and the number of its words."""
    listed = candidate.words.split(" ", WORDS_LIMIT)[:WORDS_LIMIT]
    words = Counter(listed)
    # A prefix term is one character.
    beginnings = Counter(word[:1] for word in listed)
    counts = {term: (beginnings if begins_words(term) else words)[term] for term in terms}
    return {term: times for term, times in counts.items() if times}, len(listed)


def _weight(times: int, length: float) -> float:
    """Return the weight of a term; ``length`` is relative to the mean length of the candidates."""
    return times * (_K1 + 1) / (times + _K1 * (1 - _B + _B * length))
