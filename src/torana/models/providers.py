"""Open the configured language model at its provider."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from pydantic_ai.direct import model_request_stream
from pydantic_ai.embeddings import infer_embedding_model
from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import Model, infer_model, known_model_names
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from torana.characters import is_header_value
from torana.errors import ConfigInvalid
from torana.installation import this_installation
from torana.models.builtin import BuiltinModel
from torana.models.embeddings import EMBEDDINGS_BYTES, OpenAIEmbeddings, ProviderEmbedder
from torana.models.failures import MODEL_ERRORS, explain
from torana.models.http_bounds import bound_http
from torana.models.listing import send_listed_tools_only, write_schemas_once
from torana.models.openai_compatible import ChatModel, ChatProvider
from torana.models.response_bounds import RESPONSE_BYTES, bound_responses

if TYPE_CHECKING:
    from openai import AsyncOpenAI

#: The model without a provider.
BUILTIN = "builtin"

_PROBE_TIMEOUT = 60.0

#: Options of a chat request for the OpenAI client itself, not for the body.
_OF_CLIENT = frozenset({"model", "stream", "timeout", "extra_headers", "extra_query"})

#: Errors after which the next model of a list is tried, including responses in another format, such as HTML.
_FALL_BACK_ON = (ModelAPIError, UnexpectedModelBehavior)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    #: The variables of its key; the first that is set is used.
    keys: tuple[str, ...]
    #: Its address, if the library needs it.
    url: str | None = None
    #: The variable for another address; None if the address is fixed.
    url_variable: str | None = None
    key_needed: bool = True
    #: Torana's extra with its library; None if the OpenAI library, always installed, is used.
    extra: str | None = None


_OPENAI = _Service(keys=("OPENAI_API_KEY",), url="https://api.openai.com/v1", url_variable="OPENAI_BASE_URL")

_SERVICES: Mapping[str, _Service] = {
    "openai": _OPENAI,
    "openai-chat": _OPENAI,
    "openai-responses": _OPENAI,
    "anthropic": _Service(
        keys=("ANTHROPIC_API_KEY",),
        url="https://api.anthropic.com",
        url_variable="ANTHROPIC_BASE_URL",
        extra="anthropic",
    ),
    "google": _Service(
        keys=("GOOGLE_API_KEY", "GEMINI_API_KEY"), url_variable="GOOGLE_GEMINI_BASE_URL", extra="google"
    ),
    "ollama": _Service(
        keys=("OLLAMA_API_KEY",),
        url="http://localhost:11434/v1",
        url_variable="OLLAMA_BASE_URL",
        key_needed=False,
    ),
    "vllm": _Service(
        keys=("VLLM_API_KEY",), url="http://localhost:8000/v1", url_variable="VLLM_BASE_URL", key_needed=False
    ),
    "alibaba": _Service(keys=("ALIBABA_API_KEY", "DASHSCOPE_API_KEY")),
    "cerebras": _Service(keys=("CEREBRAS_API_KEY",)),
    "deepseek": _Service(keys=("DEEPSEEK_API_KEY",)),
    "fireworks": _Service(keys=("FIREWORKS_API_KEY",)),
    "moonshotai": _Service(keys=("MOONSHOTAI_API_KEY",)),
    "nebius": _Service(keys=("NEBIUS_API_KEY",)),
    "openrouter": _Service(keys=("OPENROUTER_API_KEY",)),
    "ovhcloud": _Service(keys=("OVHCLOUD_API_KEY",)),
    "sambanova": _Service(keys=("SAMBANOVA_API_KEY",)),
    "together": _Service(keys=("TOGETHER_API_KEY",)),
    "vercel": _Service(keys=("VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN")),
    "zai": _Service(keys=("ZAI_API_KEY",)),
}

#: The services that Torana's own client asks, and pydantic-ai's names of their providers.
_OWN_CLIENT = {"openai-chat": "openai", "ollama": "ollama", "vllm": "vllm"}

#: Variables whose values are passed to providers, so that no library reads them.
KEY_VARIABLES = frozenset(key for service in _SERVICES.values() for key in service.keys)

#: Key variables of other pydantic-ai providers that are not called ``<PROVIDER>_API_KEY``.
_OTHER_KEYS = {
    "azure": "AZURE_OPENAI_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "bedrock-mantle": "AWS_BEARER_TOKEN_BEDROCK",
    "cohere": "CO_API_KEY",
    "heroku": "HEROKU_INFERENCE_KEY",
    "huggingface": "HF_TOKEN",
}


#: Parts of pydantic-ai's messages: the extra of a missing library, and missing variables.
_EXTRA = re.compile(r"pydantic-ai-slim\[([\w-]+)\]")
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    model: str
    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opener:
    environ: Mapping[str, str]
    #: The configured address and key, for ``owner`` only; other services use their own variables.
    base_url: str | None
    api_key: str | None
    owner: _Service | None
    retries: int
    max_response_bytes: int

    def open(self, name: str) -> Model:
        """Return the model of that name. Raises ``ConfigInvalid`` with the missing setting."""
        service_name, _, model_name = name.partition(":")
        if not model_name:
            raise ConfigInvalid(_unknown(name))
        service = _service(service_name)
        url = self._url(name, service)
        if service_name not in _SERVICES:
            return self._other(name, service)
        arguments = self._arguments(name, service, url)
        if service_name == "openai" and url:
            # Compatible servers rarely have the Responses API.
            service_name = "openai-chat"
        return self._model(service_name, model_name, service, arguments)

    def open_embedder(self, name: str) -> ProviderEmbedder:
        """Return the embedding model of that name. Raises ``ConfigInvalid`` with the missing setting."""
        service_name, _, model_name = name.partition(":")
        service = _SERVICES.get(service_name)
        if service is None or not model_name:
            raise ConfigInvalid(_no_embeddings(name))
        # OpenAI has two chat interfaces, but one for embeddings.
        service_name = "openai" if service == _OPENAI else service_name
        try:
            provide = cast("Callable[..., Provider[Any]]", infer_provider_class(service_name))
            provider = provide(**self._arguments(name, service, self._url(name, service)))
            model = (
                OpenAIEmbeddings(model_name, provider=provider)
                if service.extra is None
                else infer_embedding_model(f"{service_name}:{model_name}", provider_factory=lambda _: provider)
            )
        except ImportError as error:
            raise ConfigInvalid(_missing_extra_message(service_name, service, error)) from error
        except UserError as error:
            raise ConfigInvalid(_no_embeddings(name)) from error
        self._limit_client(provider)
        return ProviderEmbedder(name=name, model=model, provider=provider)

    def _arguments(self, name: str, service: _Service, url: str | None) -> dict[str, str]:
        """Return the provider's constructor arguments: a key, and an address if it is known."""
        # Self-hosted servers often need no key, but the SDKs require one.
        arguments = {"api_key": self._key(name, service, needed=service.key_needed and not url) or "none"}
        if url or service.url:
            arguments["base_url"] = url or cast("str", service.url)
        return arguments

    def _model(
        self, service_name: str, model_name: str, service: _Service, arguments: Mapping[str, str]
    ) -> Model:
        try:
            if service_name in _OWN_CLIENT:
                provider = ChatProvider(_OWN_CLIENT[service_name], retries=self.retries, **arguments)
                model = ChatModel(model_name, provider=provider)
            else:
                provide = cast("Callable[..., Provider[Any]]", infer_provider_class(service_name))
                provider = provide(**arguments)
                model = infer_model(f"{service_name}:{model_name}", provider_factory=lambda _: provider)
                if service.extra is None:
                    _send_unchanged(provider.client)
        except ImportError as error:
            raise ConfigInvalid(_missing_extra_message(service_name, service, error)) from error
        write_schemas_once(model)
        return self._limited(model, provider)

    def _other(self, name: str, service: _Service) -> Model:
        """Return a model of a provider that only pydantic-ai knows; it may read the process's environment."""
        service_name = name.partition(":")[0]
        provide = _provider_class(name)
        key = self._key(name, service, needed=False)
        takes_key = key is not None and "api_key" in inspect.signature(provide).parameters
        try:
            provider = provide(api_key=key) if takes_key else provide()
            model = infer_model(name, provider_factory=lambda _: provider)
        except ImportError as error:
            raise ConfigInvalid(_missing_extra_message(service_name, service, error)) from error
        except UserError as error:
            raise ConfigInvalid(_incomplete(name, service, error)) from error
        return self._limited(model, provider)

    def _limited(self, model: Model, provider: Provider[Any]) -> Model:
        """Return the model with limits on its client and its responses."""
        self._limit_client(provider)
        send_listed_tools_only(model)
        bound_responses(model, max_bytes=self.max_response_bytes)
        # To restore special tokens, pydantic-ai reads the arguments of all calls again for each call of a
        # response. This occupies the event loop (docs/decisions/0035).
        model.profile["may_tokenize_special_tokens_in_content"] = False
        return model

    def _limit_client(self, provider: Provider[Any]) -> None:
        uses_sdk = not isinstance(provider, ChatProvider)
        bound_http(provider, max_bytes=self.max_response_bytes, uses_sdk=uses_sdk)
        # Some clients, such as Google's, have no such attribute and do not retry.
        if hasattr(provider.client, "max_retries"):
            provider.client.max_retries = self.retries

    def _url(self, name: str, service: _Service) -> str | None:
        """Return the configured address of the service. Raises ``ConfigInvalid``."""
        if self.base_url and service == self.owner:
            variable, url = "TORANA_MODEL_BASE_URL", self.base_url
            if service.url_variable is None:
                service_name, _, model_name = name.partition(":")
                raise ConfigInvalid(
                    f"TORANA_MODEL_BASE_URL: {service_name} has a fixed address; remove the setting, or write "
                    f"openai-chat:{model_name} for another server"
                )
        else:
            variable = service.url_variable or ""
            url = self.environ.get(variable)
        if not url:
            return None
        if not _is_address(url):
            raise ConfigInvalid(
                f"{variable}: this is not a URL of a server; write for example http://localhost:8000/v1"
            )
        return url.removesuffix("/").removesuffix("/chat/completions")

    def _key(self, name: str, service: _Service, *, needed: bool) -> str | None:
        if self.api_key and service == self.owner:
            return checked_key("TORANA_MODEL_API_KEY", self.api_key)
        for variable in service.keys:
            if key := self.environ.get(variable):
                return checked_key(variable, key)
        if needed:
            raise ConfigInvalid(_needs_key(name, service))
        return None


def open_model(
    names: Sequence[str],
    *,
    environ: Mapping[str, str],
    base_url: str | None,
    api_key: str | None,
    builtin: Callable[[], Model],
    max_response_bytes: int = RESPONSE_BYTES,
) -> Model:
    """Return the model of that name, or one that tries several in order.

    A name is ``builtin`` or pydantic-ai's ``provider:model``. Keys and addresses come from the providers' usual
    variables in ``environ``; ``base_url`` and ``api_key`` take precedence for the first provider in the list.
    pydantic-ai reads other provider settings, such as a region, from the process's environment. With another
    address, ``openai:`` means Chat Completions and the key is optional.

    Nothing is sent, and only the libraries of the named providers are imported. Time-outs are 5 s for a
    connection and 600 s for each part of a response. A single model retries a request once after a transient
    failure. In a list the next model is tried instead, unless a part of the response has arrived.

    Use it as an async context manager, which closes its connections. A response of more than
    ``max_response_bytes`` raises ``ModelResponseTooLarge``; see ``response_bounds`` and ``http_bounds``. Raises
    ``ConfigInvalid`` for an unknown name, a missing key or library, or an invalid address.
    """
    if not names:
        raise ConfigInvalid(f"TORANA_MODEL: the model is missing; write {BUILTIN} or for example openai:gpt-5")
    services = [_service(name.partition(":")[0]) for name in names if name != BUILTIN]
    opener = _Opener(
        environ=environ,
        base_url=base_url,
        api_key=api_key,
        owner=services[0] if services else None,
        retries=0 if len(names) > 1 else 1,
        max_response_bytes=max_response_bytes,
    )
    models = [builtin() if name == BUILTIN else opener.open(name) for name in names]
    return FallbackModel(*models, fallback_on=_FALL_BACK_ON) if len(models) > 1 else models[0]


def without_builtin(model: Model) -> Model | None:
    """Return the model without the builtin model; None if there is no other."""
    if isinstance(model, FallbackModel):
        others = [member for member in model.models if not isinstance(member, BuiltinModel)]
        return FallbackModel(*others, fallback_on=_FALL_BACK_ON) if others else None
    return None if isinstance(model, BuiltinModel) else model


def open_embedder(
    name: str, *, models: Sequence[str], environ: Mapping[str, str], base_url: str | None, api_key: str | None
) -> ProviderEmbedder:
    """Return the embedding model of that name, such as ``openai:text-embedding-3-small``.

    ``base_url`` and ``api_key`` belong to the first provider in ``models``; they apply here if this is the same
    provider or ``models`` has none. Nothing is sent. Raises ``ConfigInvalid`` as ``open_model`` does.
    """
    services = [_service(model.partition(":")[0]) for model in models if model != BUILTIN]
    owner = services[0] if services else _service(name.partition(":")[0])
    opener = _Opener(
        environ=environ,
        base_url=base_url,
        api_key=api_key,
        owner=owner,
        retries=0,
        max_response_bytes=EMBEDDINGS_BYTES,
    )
    return opener.open_embedder(name)


async def probe(model: Model) -> ProbeResult:
    """Make one small streamed request of at most a minute. Raises ``ModelFailed`` with the reason."""
    request = ModelRequest.user_text_prompt("Answer with one word: ready")
    started = time.perf_counter()
    settings = ModelSettings(request_timeout=_PROBE_TIMEOUT)
    try:
        async with model, model_request_stream(model, [request], model_settings=settings) as stream:
            async for _ in stream:
                pass
    except MODEL_ERRORS as error:
        raise explain(error) from error
    return ProbeResult(
        model=stream.model_name or model.model_name, latency_ms=(time.perf_counter() - started) * 1_000
    )


def _service(service_name: str) -> _Service:
    usual = f"{service_name.upper().replace('-', '_')}_API_KEY"
    return _SERVICES.get(service_name) or _Service(keys=(_OTHER_KEYS.get(service_name, usual),))


def _provider_class(name: str) -> Callable[..., Provider[Any]]:
    """Return the class of a provider that only pydantic-ai knows."""
    service_name = name.partition(":")[0]
    try:
        # pydantic-ai reads gateway/NAME as the provider NAME, and would send that provider's key to the
        # gateway.
        if "/" in service_name:
            raise ConfigInvalid(_unknown(name))
        return cast("Callable[..., Provider[Any]]", infer_provider_class(service_name))
    except ImportError as error:
        raise ConfigInvalid(_missing_extra_message(service_name, _service(service_name), error)) from error
    except ValueError as error:
        raise ConfigInvalid(_unknown(name)) from error


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Reading an invalid port raises ``ValueError``.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def checked_key(variable: str, key: str) -> str:
    """Return a key that fits into a header. Raises ``ConfigInvalid``, which does not contain the key."""
    key = key.strip()
    # The key is sent in a header; other characters would fail at the first message, without naming the
    # variable.
    if not key or not is_header_value(key) or " " in key:
        raise ConfigInvalid(f"{variable}: the key is not ASCII without spaces; copy it again")
    return key


def _no_embeddings(name: str) -> str:
    return (
        f'TORANA_EMBEDDING_MODEL: "{name}" is not an embedding model; write for example '
        "openai:text-embedding-3-small or ollama:nomic-embed-text"
    )


def _needs_key(name: str, service: _Service) -> str:
    return f"{name} needs a key: set {' or '.join(service.keys)}"


def _incomplete(name: str, service: _Service, error: UserError) -> str:
    """Return the error message with the variables that the provider still needs."""
    variables = tuple(dict.fromkeys(_VARIABLE.findall(str(error))))
    if variables == service.keys:
        return _needs_key(name, service)
    if variables:
        return f"{name} needs {' or '.join(variables)} in the environment (.env is not read for it)"
    return f"{name} cannot be opened: {str(error).partition('. ')[0]}"


def _missing_extra_message(service_name: str, service: _Service, error: ImportError) -> str:
    extra = _EXTRA.search(str(error))
    if service.extra:
        cure = f"run: {this_installation().extra_command(service.extra)}"
    elif extra:
        package = f"pydantic-ai-slim[{extra[1]}]=={version('pydantic-ai-slim')}"
        cure = f"run: {this_installation().package_command(package)}"
    else:
        cure = f"it says: {error}"
    return f"the library for {service_name} is not installed; {cure}"


def _unknown(name: str) -> str:
    """Return the error message for an unknown name, with the nearest known name or the list of providers."""
    service_name, colon, model_name = name.partition(":")
    if not colon:
        nearest = get_close_matches(name, _known_by_short_name(), n=1)
        hint = f'did you mean "{_known_by_short_name()[nearest[0]]}"?' if nearest else _every_service()
        return f'TORANA_MODEL: "{name}" has no provider; {hint}'
    if not model_name:
        return f'TORANA_MODEL: "{name}" has no model; write for example openai:gpt-5'
    nearest = get_close_matches(service_name.lower(), _every_service_name(), n=1)
    hint = f'did you mean "{nearest[0]}:{model_name}"?' if nearest else _every_service()
    return f'TORANA_MODEL: unknown provider "{service_name}"; {hint}'


def _known_by_short_name() -> dict[str, str]:
    names = [
        name for name in known_model_names() if name.partition(":")[0] in ("openai", "anthropic", "google")
    ]
    return {name.partition(":")[2]: name for name in names} | {BUILTIN: BUILTIN}


def _every_service_name() -> list[str]:
    known = {name.partition(":")[0] for name in known_model_names() if ":" in name}
    return [*_SERVICES, *sorted(name for name in known - _SERVICES.keys() if "/" not in name)]


def _every_service() -> str:
    return (
        f"write {BUILTIN}, or PROVIDER:MODEL with one of {', '.join(_every_service_name())}; any server that "
        "speaks OpenAI's Chat Completions is openai-chat:MODEL with TORANA_MODEL_BASE_URL"
    )


def _send_unchanged(client: AsyncOpenAI) -> None:
    """Make this client send the options of a chat request unchanged in the body.

    The client checks every message against all message types and searches every field for names to convert and
    files to read. pydantic-ai passes plain JSON, so this is unnecessary; ``extra_body`` is merged after the
    search. ``docs/explanation/performance.md`` has the measurements. Copies from ``client.with_options`` are
    not changed.
    """
    completions = client.chat.completions
    create = cast("Callable[..., Awaitable[Any]]", completions.create)

    async def create_untouched(*, extra_body: Mapping[str, object] | None = None, **options: object) -> Any:
        # The client marks omitted options with its own types.
        plain: dict[str, object] = {
            name: option
            for name, option in options.items()
            if name not in _OF_CLIENT and isinstance(option, str | int | float | list | dict)
        }
        left = {name: option for name, option in options.items() if name not in plain}
        return await create(extra_body={**plain, **(extra_body or {})}, **{"messages": (), **left})

    # Set on the object, so that the class and other clients stay unchanged.
    vars(completions)["create"] = create_untouched
