"""Providers with a Chat Completions API: the profiles of their models, and the HTTP client."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx2
from pydantic_ai._http import create_async_httpx2_client
from pydantic_ai.profiles import ModelProfile, merge_profile
from pydantic_ai.profiles.cohere import cohere_model_profile
from pydantic_ai.profiles.deepseek import deepseek_model_profile
from pydantic_ai.profiles.google import google_model_profile
from pydantic_ai.profiles.harmony import harmony_model_profile
from pydantic_ai.profiles.meta import meta_model_profile
from pydantic_ai.profiles.mistral import mistral_model_profile
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer, OpenAIModelProfile, openai_model_profile
from pydantic_ai.profiles.openai import (
    _OpenAIJsonSchemaTransformer as NewSchemas,  # pyright: ignore[reportPrivateUsage]
)
from pydantic_ai.profiles.qwen import qwen_model_profile
from pydantic_ai.profiles.zai import zai_model_profile
from pydantic_ai.providers import Provider

_FAMILIES: Mapping[str, Callable[[str], ModelProfile | None]] = {
    "llama": meta_model_profile,
    "gemma": google_model_profile,
    "qwen": qwen_model_profile,
    "qwq": qwen_model_profile,
    "deepseek": deepseek_model_profile,
    "mistral": mistral_model_profile,
    "command": cohere_model_profile,
    "c4ai-command": cohere_model_profile,
    "gpt-oss": harmony_model_profile,
    "glm": zai_model_profile,
}


def _openai_profile(model_name: str) -> ModelProfile:
    # Fine-tuned models accept fewer kinds of schemas.
    schemas = OpenAIJsonSchemaTransformer if model_name.startswith("ft:") else NewSchemas
    return merge_profile(openai_model_profile(model_name), ModelProfile(json_schema_transformer=schemas))


def _ollama_profile(model_name: str) -> ModelProfile:
    return merge_profile(
        OpenAIModelProfile(json_schema_transformer=OpenAIJsonSchemaTransformer),
        _family_profile(model_name.lower()),
        OpenAIModelProfile(
            openai_chat_thinking_field="reasoning", openai_supports_strict_tool_definition=False
        ),
    )


def _vllm_profile(model_name: str) -> ModelProfile:
    # vLLM uses the names of Hugging Face: `organization/model`.
    bare_name = model_name.lower().rpartition("/")[2].replace("qwen3-coder", "qwen-3-coder", 1)
    return merge_profile(
        OpenAIModelProfile(json_schema_transformer=OpenAIJsonSchemaTransformer),
        _family_profile(bare_name),
        OpenAIModelProfile(openai_supports_strict_tool_definition=True)
        if bare_name.startswith("qwen-3-coder")
        else None,
        OpenAIModelProfile(supports_document_input=False, openai_chat_supports_multiple_system_messages=False),
    )


def _family_profile(model_name: str) -> ModelProfile | None:
    return next(
        (profile(model_name) for start, profile in _FAMILIES.items() if model_name.startswith(start)), None
    )


#: The functions that return a model's profile, by the name of the provider in pydantic-ai.
_PROFILES = {"openai": _openai_profile, "ollama": _ollama_profile, "vllm": _vllm_profile}


class ChatProvider(Provider[httpx2.AsyncClient]):
    """The base URL, the key and the HTTP client of a provider.

    pydantic-ai creates a new client for another event loop.
    """

    def __init__(self, name: str, *, base_url: str, api_key: str, retries: int = 0) -> None:
        self._name = name
        self._base_url = f"{base_url.rstrip('/')}/"
        self.api_key = api_key
        #: Maximum number of times that a request is repeated after a transient failure.
        self.retries = retries
        self._http_client_factory = create_async_httpx2_client
        self._own_http_client = self._client = create_async_httpx2_client()

    @property
    def name(self) -> str:
        return self._name

    @property
    def base_url(self) -> str:
        """Return the base URL, with a slash at its end."""
        return self._base_url

    @property
    def client(self) -> httpx2.AsyncClient:
        return self._client

    def _set_http_client(self, http_client: httpx2.AsyncClient) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._client = http_client

    def _configured_model_profile(self, model_name: str) -> ModelProfile:
        return _PROFILES[self._name](model_name)
