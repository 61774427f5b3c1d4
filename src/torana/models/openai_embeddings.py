"""Compute embeddings with the OpenAI client.

pydantic-ai's class for this cannot be imported without tiktoken, which it uses only to count tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from openai import APIStatusError

_CATEGORIES: dict[int, type[Any]] = {
    401: ModelAuthenticationError,
    403: ModelAuthenticationError,
    404: ModelNotFoundError,
    429: ModelRateLimitError,
}


class OpenAIEmbeddings(EmbeddingModel):
    """An embedding model of OpenAI or of a server that is compatible with it."""

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
