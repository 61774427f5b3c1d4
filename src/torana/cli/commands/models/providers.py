"""Providers and local servers of language models, and the models that they offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2

from torana.errors import OperatorError
from torana.models.providers import checked_key

#: Seconds to wait for a provider, and for a server on this machine.
_PROVIDER_TIMEOUT, _LOCAL_TIMEOUT = 15.0, 0.5

#: Models that do not converse, by parts of their names.
_OTHER_USES = (
    *("audio", "dall-e", "embed", "image", "moderation", "realtime"),
    *("rerank", "sora", "transcribe", "tts", "whisper"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider of language models, or a kind of local server."""

    title: str
    #: The part of a model's name before the colon.
    prefix: str
    url: str
    #: The variable of the provider's key; None if the provider needs no key.
    key: str | None = None
    #: The beginnings of the provider's keys.
    key_starts: tuple[str, ...] = ()
    #: True if ``model_base_url`` must name its address.
    names_url: bool = False
    local: bool = False


#: The variable of the key of a provider that has no variable of its own.
OWN_KEY = "TORANA_MODEL_API_KEY"

PROVIDERS: Mapping[str, Provider] = {
    "ollama": Provider(title="Ollama", prefix="ollama", url="http://127.0.0.1:11434/v1", local=True),
    "lm-studio": Provider(
        title="LM Studio", prefix="openai-chat", url="http://127.0.0.1:1234/v1", names_url=True, local=True
    ),
    "llama.cpp": Provider(
        title="llama.cpp", prefix="openai-chat", url="http://127.0.0.1:8080/v1", names_url=True, local=True
    ),
    "vllm": Provider(title="vLLM", prefix="vllm", url="http://127.0.0.1:8000/v1", local=True),
    "openai": Provider(
        title="OpenAI",
        prefix="openai",
        url="https://api.openai.com/v1",
        key="OPENAI_API_KEY",
        key_starts=("sk-",),
    ),
    "anthropic": Provider(
        title="Anthropic",
        prefix="anthropic",
        url="https://api.anthropic.com/v1",
        key="ANTHROPIC_API_KEY",
        key_starts=("sk-ant-",),
    ),
    "google": Provider(
        title="Google Gemini",
        prefix="google",
        url="https://generativelanguage.googleapis.com/v1beta",
        key="GOOGLE_API_KEY",
        key_starts=("AIza",),
    ),
    "openrouter": Provider(
        title="OpenRouter",
        prefix="openrouter",
        url="https://openrouter.ai/api/v1",
        key="OPENROUTER_API_KEY",
        key_starts=("sk-or-",),
    ),
    "groq": Provider(
        title="Groq",
        prefix="openai-chat",
        url="https://api.groq.com/openai/v1",
        key=OWN_KEY,
        key_starts=("gsk_",),
        names_url=True,
    ),
    "deepseek": Provider(
        title="DeepSeek", prefix="deepseek", url="https://api.deepseek.com", key="DEEPSEEK_API_KEY"
    ),
}


def other_server(url: str) -> Provider:
    """Return a server with OpenAI's Chat Completions at this address."""
    return Provider(title=url, prefix="openai-chat", url=url.rstrip("/"), key=OWN_KEY, names_url=True)


def provider_of_key(key: str) -> str | None:
    """Return the name of the provider whose keys begin like this one; the longest beginning counts."""
    found = [
        (len(start), name)
        for name, provider in PROVIDERS.items()
        for start in provider.key_starts
        if key.startswith(start)
    ]
    return max(found)[1] if found else None


def find_local_servers() -> Mapping[str, Sequence[str]]:
    """Return the local servers that respond on this machine, with their models."""
    names = [name for name, provider in PROVIDERS.items() if provider.local]
    with ThreadPoolExecutor(len(names)) as pool:
        found = dict(zip(names, pool.map(_local_models, names), strict=True))
    return {name: models for name, models in found.items() if models is not None}


def _local_models(name: str) -> Sequence[str] | None:
    try:
        return list_models(PROVIDERS[name], key=None, timeout=_LOCAL_TIMEOUT)
    except OperatorError:
        return None


def list_models(provider: Provider, *, key: str | None, timeout: float = _PROVIDER_TIMEOUT) -> Sequence[str]:
    """Return the names of a provider's models that converse. Raises ``OperatorError`` with the cure."""
    # The client's error for an invalid header would contain the key.
    checked = None if key is None else checked_key(provider.key or OWN_KEY, key)
    url, headers = f"{provider.url}/models", _headers(provider, checked)
    try:
        # A proxy of the environment does not reach this machine's own servers.
        with httpx2.Client(timeout=timeout, trust_env=not provider.local) as client:
            answer = client.get(url, headers=headers)
            if answer.status_code in (401, 403) or (provider.prefix == "google" and answer.status_code == 400):
                raise OperatorError(f"{provider.title} refused the key; copy the key again")
            answer.raise_for_status()
            names = _names(answer.json())
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError, UnicodeError) as error:
        reason = str(error) or type(error).__name__
        raise OperatorError(
            f"{provider.title} did not list its models at {url}: {reason}; check the address and the network"
        ) from error
    return [name for name in names if not any(part in name.lower() for part in _OTHER_USES)]


def _headers(provider: Provider, key: str | None) -> dict[str, str]:
    if key is None:
        return {}
    if provider.prefix == "anthropic":
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}
    if provider.prefix == "google":
        return {"x-goog-api-key": key}
    return {"Authorization": f"Bearer {key}"}


def _names(document: Any) -> list[str]:
    if "models" in document:  # Google
        return [
            str(model["name"]).removeprefix("models/")
            for model in document["models"]
            if "generateContent" in model.get("supportedGenerationMethods", ())
        ]
    return [str(model["id"]) for model in document["data"]]
