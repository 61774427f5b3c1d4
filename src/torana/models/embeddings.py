"""Turns texts into vectors, at the provider that the settings name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pydantic_ai.embeddings import EmbeddingModel
from pydantic_ai.providers import Provider

from torana.errors import ModelFailed
from torana.models.failures import MISSHAPEN, MODEL_ERRORS, explain

#: Seconds that a call may take: somebody waits for an answer, which is found without vectors too.
_TIMEOUT = 5.0

#: Numbers of a vector; the largest models give 8,192.
_DIMENSIONS = 16_384

#: Bytes of an answer, a quarter of what is read of it: 64 vectors of 8,192 numbers, written with 10 digits.
EMBEDDINGS_BYTES = 2_097_152


class Embedder:
    """An embedding model. Enter it (``async with``) for as long as it is used."""

    def __init__(self, *, name: str, model: EmbeddingModel, provider: Provider[Any]) -> None:
        #: What its vectors are known by: those of different models do not compare.
        self.name = name
        self.provider = provider
        self._model = model

    async def __aenter__(self) -> Self:
        """Open the connections."""
        await self.provider.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close them."""
        await self.provider.__aexit__(kind, error, traceback)

    async def vectors(self, texts: Sequence[str], *, query: bool) -> Sequence[Sequence[float]]:
        """A vector for each text, in their order; ``query`` tells questions from what is searched.

        Raises ``ModelFailed`` with the reason, after 5 s at the latest.
        """
        try:
            async with asyncio.timeout(_TIMEOUT):
                result = await self._model.embed(texts, input_type="query" if query else "document")
        except TimeoutError as error:
            raise ModelFailed(f"{self.name} gave no vectors within {_TIMEOUT:g} s") from error
        except MODEL_ERRORS as error:
            raise explain(error) from error
        except MISSHAPEN as error:
            raise ModelFailed(f"{self.name} gave no vectors: its answer has the wrong shape") from error
        if len(result.embeddings) != len(texts):
            raise ModelFailed(f"{self.name} gave {len(result.embeddings)} vectors for {len(texts)} texts")
        if not all(_is_usable(vector) for vector in result.embeddings):
            raise ModelFailed(
                f"{self.name} gave a vector that has no numbers, infinite ones, or more than {_DIMENSIONS}"
            )
        return result.embeddings


def _is_usable(vector: Sequence[float]) -> bool:
    """Whether a vector can be kept and compared; a provider may send anything in its place."""
    try:
        return 0 < len(vector) <= _DIMENSIONS and math.isfinite(math.hypot(*vector))
    except (TypeError, OverflowError):
        return False
