"""Find out how many tokens a model's context window has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai.models import Model

from torana.models.openai_compatible import ChatModel

#: The assumed window of a model that no source describes.
UNKNOWN_WINDOW = 32_768

#: The window that Ollama gives a model whose window is not configured.
_OLLAMA_WINDOW = 4_096

#: The timeout in seconds for all requests to one server.
_TIMEOUT = 3.0

#: Plausible windows; anything else that a server states is ignored.
_SMALLEST, _LARGEST = 256, 100_000_000

#: Fields of a model in ``/v1/models``, by precedence: llama.cpp, vLLM and SGLang, LM Studio, OpenRouter, Groq,
#: Mistral.
_FIELDS = (
    ("meta", "n_ctx"),
    ("max_model_len",),
    ("loaded_context_length",),
    ("context_length",),
    ("context_window",),
    ("max_context_length",),
)

#: The window among Ollama's parameters. Each line is read once, however many are empty.
_NUM_CTX = re.compile(r"^[ \t]*+num_ctx[ \t]++(\d{1,12})[ \t]*+\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWindow:
    """A context window in tokens; ``is_assumed`` if no source states it."""

    tokens: int
    is_assumed: bool = False


async def find_window(model: Model) -> KnownWindow:
    """Return the context window of a model.

    A hosted model is first looked up in pydantic-ai's price list. If that does not state the window, the
    model's server is asked, with a timeout of three seconds: llama.cpp, vLLM, SGLang, LM Studio and Ollama
    state it. Failures are ignored. If no source states the window, it is assumed to be ``UNKNOWN_WINDOW``.
    """
    base = _base_url(model)
    found = None
    if not _is_own(base) and (base or hasattr(model, "client")):
        found = _plausible_window(await asyncio.to_thread(_listed_window, model.system, model.model_name))
    if found is None and base:
        found = await _ask_server(model, base)
    return found or KnownWindow(tokens=UNKNOWN_WINDOW, is_assumed=True)


def _base_url(model: Model) -> str:
    """Return the address of the model's API if its client can send other requests there, else ''."""
    if isinstance(model, ChatModel):
        return model.base_url
    client = getattr(model, "client", None)
    return str(getattr(client, "base_url", "")) if hasattr(client, "get") and hasattr(client, "post") else ""


def _is_own(base: str) -> bool:
    """Return whether the address is of a server that the operator runs, and not of a hosted service."""
    parts = urlsplit(base)
    return parts.scheme == "http" or parts.port is not None


async def _ask_server(model: Model, base: str) -> KnownWindow | None:
    root = base.rstrip("/").removesuffix("/v1")
    name = model.model_name
    try:
        async with asyncio.timeout(_TIMEOUT):
            listed = await _send(model, "get", f"{base.rstrip('/')}/models")
            if found := _window_in(listed, name):
                return found
            if _is_ollama(listed):
                return await _ask_ollama(model, root)
            props, rest = await asyncio.gather(
                _send(model, "get", f"{root}/props"), _send(model, "get", f"{root}/api/v0/models")
            )
    except TimeoutError:
        return None
    return _plausible_window(_dig(props, "default_generation_settings", "n_ctx")) or _window_in(rest, name)


async def _ask_ollama(model: Model, root: str) -> KnownWindow:
    """Return the window of the loaded model, else the configured one, else Ollama's default as assumed.

    Ollama silently truncates longer requests, so the maximum window of the model is not used.
    """
    running = await _send(model, "get", f"{root}/api/ps")
    for entry in _entries(running, "models"):
        names = (entry.get("name"), entry.get("model"), str(entry.get("name")).split(":")[0])
        if model.model_name in names and (found := _plausible_window(entry.get("context_length"))):
            return found
    details = await _send(model, "post", f"{root}/api/show", {"model": model.model_name})
    configured = _NUM_CTX.search(str(_dig(details, "parameters") or ""))
    found = _plausible_window(int(configured[1])) if configured else None
    return found or KnownWindow(tokens=_OLLAMA_WINDOW, is_assumed=True)


def _is_ollama(listed: object) -> bool:
    """Return whether the list is Ollama's: its models are owned by ``library`` or have a tag."""
    return any(
        entry.get("owned_by") == "library" or ":" in str(entry.get("id", ""))
        for entry in _entries(listed, "data")
    )


def _window_in(listed: object, name: str) -> KnownWindow | None:
    """Return the window of the named model in a list. If the list has a single model, use that model."""
    entries = list(_entries(listed, "data"))
    named = [entry for entry in entries if name in (entry.get("id"), entry.get("name"))]
    for entry in named or (entries if len(entries) == 1 else []):
        for path in _FIELDS:
            if found := _plausible_window(_dig(entry, *path)):
                return found
    return None


async def _send(model: Model, method: str, url: str, body: dict[str, Any] | None = None) -> object:
    """Return the JSON of a response; None after any failure, because the window is optional."""
    client: Any = getattr(model, "client", None)
    options = {} if body is None else {"body": body}
    try:
        if isinstance(model, ChatModel):
            return await model.call(method, url, body=body)
        return await getattr(client, method)(
            url, cast_to=object, options={"timeout": _TIMEOUT, "max_retries": 0}, **options
        )
    except Exception:  # noqa: BLE001 - an unknown server may answer anything
        return None


def _listed_window(system: str, name: str) -> object:
    """Return the window from the price list, whose import takes long."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, listed = get_snapshot().find_provider_model(name, None, system, None)
    except LookupError:
        return None
    return listed.context_window


def _entries(listed: object, field: str) -> Iterator[Mapping[str, Any]]:
    found = _dig(listed, field)
    if isinstance(found, Sequence) and not isinstance(found, str):
        for entry in cast("Sequence[object]", found):
            if isinstance(entry, Mapping):
                yield cast("Mapping[str, Any]", entry)


def _dig(value: object, *path: str) -> object:
    for name in path:
        value = cast("Mapping[str, object]", value).get(name) if isinstance(value, Mapping) else None
    return value


def _plausible_window(tokens: object) -> KnownWindow | None:
    if isinstance(tokens, int) and not isinstance(tokens, bool) and _SMALLEST <= tokens <= _LARGEST:
        return KnownWindow(tokens=tokens)
    return None
