"""Compute text embeddings with the configured provider."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic_ai.embeddings import EmbeddingModel, EmbeddingResult, EmbeddingSettings
from pydantic_ai.embeddings.result import EmbedInputType
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelTimeoutError,
)
from pydantic_ai.providers import Provider

from torana.errors import ModelFailed
from torana.models.failures import MISSHAPEN, MODEL_ERRORS, explain

if TYPE_CHECKING:
    from openai import APIStatusError

#: Seconds until a call times out: a turn waits for it, and can be answered without vectors.
_TIMEOUT = 5.0

#: Maximum dimensions of a vector; the largest models return 8,192.
_DIMENSIONS = 16_384

#: Response limit, a quarter of the bytes that are read: 64 vectors of 8,192 numbers with 10 digits.
EMBEDDINGS_BYTES = 2_097_152

_CATEGORIES: dict[int, type[Any]] = {
    401: ModelAuthenticationError,
    403: ModelAuthenticationError,
    404: ModelNotFoundError,
    429: ModelRateLimitError,
}


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


class OpenAIEmbeddings(EmbeddingModel):
    """An embedding model of OpenAI or of a server that is compatible with it.

    pydantic-ai's class for this cannot be imported without tiktoken, which it uses only to count tokens.
    """

    def __init__(self, model_name: str, *, provider: Provider[Any]) -> None:
        super().__init__()
        self._model_name = model_name
        self._provider = provider

    @property
    def model_name(self) -> str:
        return self._model_name

    @property
    def system(self) -> str:
        return self._provider.name

    async def embed(
        self,
        inputs: str | Sequence[str],
        *,
        input_type: EmbedInputType,
        settings: EmbeddingSettings | None = None,
    ) -> EmbeddingResult:
        # Imported here because only a gateway with such a model needs the client.
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        texts, _ = self.prepare_embed(inputs, settings)
        try:
            response = await self._provider.client.embeddings.create(input=texts, model=self._model_name)
        except APIStatusError as error:
            raise self._refusal(error) from error
        except APIConnectionError as error:
            kind = ModelTimeoutError if isinstance(error, APITimeoutError) else ModelConnectionError
            raise kind(self._model_name, error.message) from error
        return EmbeddingResult(
            embeddings=[item.embedding for item in response.data],
            inputs=texts,
            input_type=input_type,
            model_name=response.model,
            provider_name=self.system,
        )

    def _refusal(self, error: APIStatusError) -> ModelAPIError:
        category = _CATEGORIES.get(error.status_code)
        if error.code == "insufficient_quota":
            category = ModelQuotaExceededError
        return ModelHTTPError.for_category(
            category,
            status_code=error.status_code,
            model_name=self._model_name,
            body=error.body,
            headers=dict(error.response.headers),
        )
