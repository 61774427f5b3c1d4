"""How near memories are to a query in meaning, by vectors, and how that goes together with their words."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import mul
from typing import Protocol

from torana.memory.relevance import Recalled
from torana.store.memories import Embedded

#: How little the first places count more than the next: the usual value of reciprocal rank fusion (Cormack,
#: Clarke and Büttcher, 2009).
_K = 60


class Embedder(Protocol):
    """Turns texts into vectors."""

    @property
    def name(self) -> str:
        """What its vectors are known by: those of different models do not compare."""
        ...

    async def vectors(self, texts: Sequence[str], *, query: bool) -> Sequence[Sequence[float]]:
        """A vector for each text, in their order. Raises ``ModelFailed``."""
        ...


def packed(vector: Sequence[float]) -> bytes:
    """A vector as it is kept: of length 1, in 32-bit floats."""
    length = math.hypot(*vector) or 1.0
    return array("f", [value / length for value in vector]).tobytes()


def nearest(query: Sequence[float], known: Sequence[Embedded]) -> list[Recalled]:
    """The memories by the cosine of their angle to a query, nearest first; none at a right angle or more."""
    wanted = _unpacked(packed(query))
    cosines = [(_cosine(wanted, _unpacked(item.vector)), item.memory) for item in known]
    fits = [Recalled(memory=memory, score=cosine, held=0) for cosine, memory in cosines if cosine > 0]
    return sorted(fits, key=lambda fit: fit.score, reverse=True)


def fused(*rankings: Sequence[Recalled]) -> list[Recalled]:
    """Several orders as one (reciprocal rank fusion): what stands high in any of them, and higher in more."""
    scores: dict[str, float] = {}
    fits: dict[str, Recalled] = {}
    for ranking in rankings:
        for place, fit in enumerate(ranking, 1):
            scores[fit.memory.id] = scores.get(fit.memory.id, 0.0) + 1 / (_K + place)
            fits.setdefault(fit.memory.id, fit)
    return _by_score(fits, scores)


def _by_score(fits: Mapping[str, Recalled], scores: Mapping[str, float]) -> list[Recalled]:
    whole = [replace(fit, score=scores[memory_id]) for memory_id, fit in fits.items()]
    return sorted(whole, key=lambda fit: fit.score, reverse=True)


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of vectors of length 1; 0 for such as cannot be compared."""
    return sum(map(mul, one, other)) if len(one) == len(other) else 0.0


def _unpacked(vector: bytes) -> array[float]:
    values = array("f")
    values.frombytes(vector)
    return values
