"""How well memories answer a query: BM25 over the memories of one user, and nobody else's.

The database finds the candidates and this orders them, so that the order is the same on every database and a
score tells nothing of other users.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torana.store.fts import begins_words
from torana.store.memories import Candidate, Remembered

#: How soon a repeated word stops to count, and how much a long text is held against it: the usual values
#: (Robertson and Zaragoza, 2009).
_K1, _B = 1.2, 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A memory and how well it fits. Scores compare within one answer only; higher is better."""

    memory: Remembered
    score: float
    #: How many of the different words of the query it holds.
    held: int


def ranked(terms: Sequence[str], candidates: Sequence[Candidate], *, total: int) -> list[Recalled]:
    """The candidates that hold a term, best first, equals by age, the newest first.

    ``candidates`` are all of a user's that hold any of the terms, out of ``total``.
    """
    counts = [_counted(terms, candidate) for candidate in candidates]
    rarity = {term: _rarity(sum(term in found for found in counts), total) for term in terms}
    usual = sum(len(candidate.words) for candidate in candidates) / max(len(candidates), 1)
    fits = [
        Recalled(
            memory=candidate.memory,
            score=sum(
                rarity[term] * _weight(times, len(candidate.words) / usual) for term, times in found.items()
            ),
            held=len(found),
        )
        for candidate, found in zip(candidates, counts, strict=True)
        if found
    ]
    newest_first = sorted(fits, key=lambda fit: (fit.memory.created_at, fit.memory.id), reverse=True)
    return sorted(newest_first, key=lambda fit: fit.score, reverse=True)


def _counted(terms: Sequence[str], candidate: Candidate) -> dict[str, int]:
    """How often a candidate holds each of the terms that it holds."""
    words = Counter(candidate.words)
    # A term that begins words is one character.
    beginnings = Counter(word[:1] for word in candidate.words)
    counts = {term: (beginnings if begins_words(term) else words)[term] for term in terms}
    return {term: times for term, times in counts.items() if times}


def _rarity(holders: int, total: int) -> float:
    return math.log1p((total - holders + 0.5) / (holders + 0.5))


def _weight(times: int, length: float) -> float:
    """``length`` is that of the text, in usual lengths of the candidates."""
    return times * (_K1 + 1) / (times + _K1 * (1 - _B + _B * length))
