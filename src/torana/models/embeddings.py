"""Compute text embeddings with the configured provider."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Self

from pydantic_ai.embeddings import EmbeddingModel
from pydantic_ai.providers import Provider

from torana.errors import ModelFailed
from torana.models.failures import MISSHAPEN, MODEL_ERRORS, explain

#: Seconds until a call times out: a turn waits for it, and can be answered without vectors.
_TIMEOUT = 5.0

#: Maximum dimensions of a vector; the largest models return 8,192.
_DIMENSIONS = 16_384

#: Response limit, a quarter of the bytes that are read: 64 vectors of 8,192 numbers with 10 digits.
EMBEDDINGS_BYTES = 2_097_152


class ProviderEmbedder:
    """An embedding model. Use it as an async context manager."""

    def __init__(self, *, name: str, model: EmbeddingModel, provider: Provider[Any]) -> None:
        #: Stored with its vectors: vectors of different models are not comparable.
        self.name = name
        self.provider = provider
        self._model = model

    async def __aenter__(self) -> Self:
        await self.provider.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.provider.__aexit__(*error)

    async def vectors(self, texts: Sequence[str], *, query: bool) -> Sequence[Sequence[float]]:
        """Return a vector for each text, in order; ``query`` is true for search queries.

        Raises ``ModelFailed`` with the reason, after at most 5 s.
        """
        try:
            async with asyncio.timeout(_TIMEOUT):
                result = await self._model.embed(texts, input_type="query" if query else "document")
        except TimeoutError as error:
            raise ModelFailed(f"{self.name} returned no vectors within {_TIMEOUT:g} s") from error
        except MODEL_ERRORS as error:
            raise explain(error) from error
        except MISSHAPEN as error:
            raise ModelFailed(f"{self.name} returned no vectors: its response has the wrong shape") from error
        if len(result.embeddings) != len(texts):
            raise ModelFailed(f"{self.name} returned {len(result.embeddings)} vectors for {len(texts)} texts")
        if not all(_is_usable(vector) for vector in result.embeddings):
            raise ModelFailed(
                f"{self.name} returned a vector that is empty, has infinite numbers, or has more "
                f"than {_DIMENSIONS} numbers"
            )
        return result.embeddings


def _is_usable(vector: Sequence[float]) -> bool:
    """Return whether a vector is finite and has the expected size; a provider may return anything."""
    try:
        return 0 < len(vector) <= _DIMENSIONS and math.isfinite(math.hypot(*vector))
    except (TypeError, OverflowError):
        return False
