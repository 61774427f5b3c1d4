"""Rank memories by the similarity of vectors, and combine this with the ranking by words."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from operator import mul
from typing import Protocol

from torana.memory.bm25 import Recalled
from torana.store.rows.memories import Embedded

#: The constant of reciprocal rank fusion: the usual value (Cormack, Clarke and Büttcher, 2009).
_K = 60

if sys.version_info >= (3, 12):
    _dot = math.sumprod
else:

    def _dot(one: Sequence[float], other: Sequence[float]) -> float:
        return sum(map(mul, one, other))


class Embedder(Protocol):
    @property
    def name(self) -> str:
        """Return the name of the model: vectors of different models cannot be compared."""
        ...

    async def vectors(self, texts: Sequence[str], *, query: bool) -> Sequence[Sequence[float]]:
        """Return a vector for each text, in order. Raises ``ModelFailed``."""
        ...


def pack(vector: Sequence[float]) -> bytes:
    """Return a vector as it is stored: of length 1, in 32-bit floats."""
    length = math.hypot(*vector) or 1.0
    return array("f", [value / length for value in vector]).tobytes()


def nearest(query: Sequence[float], known: Sequence[Embedded]) -> list[Recalled]:
    """Return the memories by cosine similarity to a query, most similar first; only positive similarities."""
    wanted = _unpack(pack(query))
    # Vectors of other dimensions cannot be compared.
    vectors = ((_unpack(item.vector), item.memory) for item in known)
    cosines = [(_dot(wanted, vector), memory) for vector, memory in vectors if len(vector) == len(wanted)]
    fits = [Recalled(memory=memory, score=cosine, matched_terms=0) for cosine, memory in cosines if cosine > 0]
    return sorted(fits, key=lambda fit: fit.score, reverse=True)


def fuse_rankings(*rankings: Sequence[Recalled]) -> list[Recalled]:
    """Combine rankings by reciprocal rank fusion."""
    scores: dict[str, float] = {}
    fits: dict[str, Recalled] = {}
    for ranking in rankings:
        for place, fit in enumerate(ranking, 1):
            scores[fit.memory.id] = scores.get(fit.memory.id, 0.0) + 1 / (_K + place)
            fits.setdefault(fit.memory.id, fit)
    whole = [replace(fit, score=scores[memory_id]) for memory_id, fit in fits.items()]
    return sorted(whole, key=lambda fit: fit.score, reverse=True)


def _unpack(vector: bytes) -> array[float]:
    values = array("f")
    values.frombytes(vector)
    return values
