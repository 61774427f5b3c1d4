import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import (
    ContentFilterError,
    FallbackExceptionGroup,
    IncompleteToolCall,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel

from torana.errors import ConfigInvalid, ModelFailed
from torana.installation import this_installation
from torana.models.failures import explain
from torana.models.openai_compatible import ChatModel
from torana.models.providers import open_embedder, open_model, probe
from torana.testing import ScriptedModel

KEYS = {
    "OPENAI_API_KEY": "key-of-openai",
    "ANTHROPIC_API_KEY": "key-of-anthropic",
    "GEMINI_API_KEY": "key-of-google",
    "DEEPSEEK_API_KEY": "key-of-deepseek",
}
OPENAI = "https://api.openai.com/v1/"


def open_configured(
    *names: str,
    environ: dict[str, str] | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> Model:
    return open_model(
        names,
        environ=environ or {},
        base_url=base_url,
        api_key=api_key,
        builtin=lambda: ScriptedModel("ready"),
    )


def refusal(*names: str, environ: dict[str, str] | None = None, base_url: str | None = None) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        open_configured(*names, environ=environ, base_url=base_url)
    return caught.value.detail


def tried_by(model: Model) -> list[Model]:
    assert isinstance(model, FallbackModel)
    return model.models


def client_of(model: Model) -> Any:
    assert model.provider is not None
    return model.provider.client


def key_of(model: Model) -> str:
    provider: Any = model.provider
    return provider.api_key if isinstance(model, ChatModel) else provider.client.api_key


@pytest.mark.parametrize(
    ("name", "kind", "base_url"),
    [
        ("openai:gpt-5", "OpenAIResponsesModel", OPENAI),
        ("openai-responses:gpt-5", "OpenAIResponsesModel", OPENAI),
        ("openai-chat:gpt-5", "ChatModel", OPENAI),
        ("anthropic:claude-sonnet-4-5", "AnthropicModel", "https://api.anthropic.com"),
        ("google:gemini-3-pro", "GoogleModel", "https://generativelanguage.googleapis.com/"),
        ("ollama:qwen3:8b", "ChatModel", "http://localhost:11434/v1/"),
        ("vllm:qwen3", "ChatModel", "http://localhost:8000/v1/"),
        ("deepseek:deepseek-chat", "OpenAIChatModel", "https://api.deepseek.com"),
    ],
)
def test_model_name_opens_the_providers_model(name: str, kind: str, base_url: str):
    model = open_configured(name, environ=KEYS)

    assert type(model).__name__ == kind
    assert model.model_name == name.partition(":")[2]
    assert model.base_url == base_url


@pytest.mark.parametrize(
    ("name", "environ"),
    [
        ("openai:m", {"OPENAI_BASE_URL": "http://box:8000/v1"}),
        ("ollama:m", {"OLLAMA_BASE_URL": "http://box:8000/v1"}),
        ("vllm:m", {"VLLM_BASE_URL": "http://box:8000/v1/"}),
        # A URL copied from a page about the API.
        ("openai-chat:m", {"OPENAI_BASE_URL": "http://box:8000/v1/chat/completions"}),
    ],
)
def test_base_url_comes_from_the_providers_own_variable(name: str, environ: dict[str, str]):
    assert open_configured(name, environ=environ).base_url == "http://box:8000/v1/"


def test_base_url_makes_openai_use_chat_completions_with_optional_key():
    model = open_configured("openai:m", base_url="http://box:8000/v1")

    assert type(model).__name__ == "ChatModel"
    assert key_of(model) == "none"


def test_keys_and_urls_come_from_the_mapping_not_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-process")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere.invalid/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-the-process")
    monkeypatch.setenv("GOOGLE_API_KEY", "key-of-the-process")

    assert client_of(open_configured("openai:gpt-5", environ=KEYS)).api_key == "key-of-openai"
    assert open_configured("openai:gpt-5", environ=KEYS).base_url == OPENAI
    for name in ("openai:gpt-5", "anthropic:claude-sonnet-4-5", "google:gemini-3-pro"):
        assert "needs a key" in refusal(name)


def test_configured_key_and_url_apply_to_the_first_provider():
    model = open_configured(
        "builtin",
        "openai-chat:a",
        "anthropic:b",
        "openai-chat:c",
        environ=KEYS,
        base_url="http://box:8000/v1",
        api_key="key-that-was-set",
    )

    _, first, second, third = tried_by(model)
    assert (first.base_url, key_of(first)) == ("http://box:8000/v1/", "key-that-was-set")
    assert (second.base_url, key_of(second)) == ("https://api.anthropic.com", "key-of-anthropic")
    assert (third.base_url, key_of(third)) == ("http://box:8000/v1/", "key-that-was-set")


@pytest.mark.parametrize("name", ["openai:gpt-5", "deepseek:deepseek-chat", "anthropic:claude-sonnet-4-5"])
def test_only_a_model_without_fallback_retries_requests(name: str):
    listed, _ = tried_by(open_configured(name, "builtin", environ=KEYS))

    assert client_of(open_configured(name, environ=KEYS)).max_retries == 1
    assert client_of(listed).max_retries == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gpt-5.6-sol", 'TORANA_MODEL: "gpt-5.6-sol" has no provider; did you mean "openai:gpt-5.6-sol"?'),
        ("builtin1", 'TORANA_MODEL: "builtin1" has no provider; did you mean "builtin"?'),
        ("antropic:x", 'TORANA_MODEL: unknown provider "antropic"; did you mean "anthropic:x"?'),
        ("OpenAI:gpt-5", 'TORANA_MODEL: unknown provider "OpenAI"; did you mean "openai:gpt-5"?'),
        ("grok:x", 'TORANA_MODEL: unknown provider "grok"; did you mean "groq:x"?'),
        ("openai:", 'TORANA_MODEL: "openai:" has no model; write for example openai:gpt-5'),
        ("openai:gpt-5", "openai:gpt-5 needs a key: set OPENAI_API_KEY"),
        ("google:gemini-3-pro", "google:gemini-3-pro needs a key: set GOOGLE_API_KEY or GEMINI_API_KEY"),
    ],
)
def test_invalid_name_or_missing_key_is_refused_with_a_cure(name: str, told: str):
    assert refusal(name) == told


def test_unknown_provider_is_refused_with_all_options():
    told = refusal("hal9000:pod-bay")

    assert 'unknown provider "hal9000"; write builtin, or PROVIDER:MODEL with one of openai, ' in told
    assert told.endswith("openai-chat:MODEL with TORANA_MODEL_BASE_URL")


def test_empty_model_list_is_refused():
    assert refusal() == "TORANA_MODEL: the model is missing; write builtin or for example openai:gpt-5"


@pytest.mark.parametrize(
    "base_url",
    ["localhost:8000", "http://", "ftp://box/v1", "box", "http:///v1", "http://[::1", "http://box:99999/v1"],
)
def test_invalid_base_url_is_refused(base_url: str):
    cure = "this is not a URL of a server; write for example http://localhost:8000/v1"

    assert refusal("openai:m", base_url=base_url) == f"TORANA_MODEL_BASE_URL: {cure}"
    assert refusal("ollama:m", environ={"OLLAMA_BASE_URL": base_url}) == f"OLLAMA_BASE_URL: {cure}"


def test_provider_with_a_fixed_url_refuses_another():
    told = refusal("deepseek:x", environ=KEYS, base_url="http://box:8000/v1")

    assert told == (
        "TORANA_MODEL_BASE_URL: deepseek has a fixed address; remove the setting, or write openai-chat:x "
        "for another server"
    )


@pytest.mark.parametrize("key", ["two words", "schlüssel", "line\nbreak", "   "])
def test_invalid_key_is_refused_without_its_value(key: str):
    told = refusal("openai:gpt-5", environ={"OPENAI_API_KEY": key})

    assert told == "OPENAI_API_KEY: the key is not ASCII without spaces; copy it again"


def test_spaces_around_a_key_are_removed():
    model = open_configured("openai:gpt-5", environ={"OPENAI_API_KEY": " key-of-openai\n"})

    assert client_of(model).api_key == "key-of-openai"


def run_python(script: str) -> list[str]:
    """Return the lines that a fresh interpreter prints."""
    opening = """
import sys
from torana.errors import ConfigInvalid
from torana.models.providers import open_model
def opened(name):
    keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GOOGLE_API_KEY": "k"}
    return open_model([name], environ=keys, base_url=None, api_key=None, builtin=lambda: None)
"""
    command = [sys.executable, "-c", opening + script]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


@pytest.mark.long
def test_only_the_library_of_a_named_provider_is_imported():
    printed = run_python("""
for name in ("builtin", "anthropic:claude-sonnet-4-5", "google:gemini-3-pro", "openai:gpt-5"):
    opened(name)
    print(*(library for library in ("anthropic", "google.genai", "openai") if library in sys.modules))
""")

    assert printed == ["", "anthropic", "anthropic google.genai", "anthropic google.genai openai"]


def test_missing_library_is_reported_with_its_install_command():
    printed = run_python("""
for library, name in (("anthropic", "anthropic:claude-sonnet-4-5"), ("google.genai", "google:gemini-3-pro")):
    sys.modules[library] = None
    try:
        opened(name)
    except ConfigInvalid as error:
        print(error.detail)
""")

    assert printed == [
        f"the library for {service} is not installed; run: {this_installation().extra_command(service)}"
        for service in ("anthropic", "google")
    ]


@pytest.mark.parametrize(
    ("name", "extra"),
    [("groq:llama", "groq"), ("mistral:large", "mistral"), ("bedrock:nova", "bedrock"), ("xai:grok", "xai"),
     ("cohere:command", "cohere"), ("huggingface:some/model", "huggingface")],
)  # fmt: skip
def test_missing_library_of_a_pydantic_ai_provider_is_reported(name: str, extra: str):
    told = refusal(name, environ={"GROQ_API_KEY": "k"})

    assert told == (
        f"the library for {extra} is not installed; run: "
        f"{sys.executable} -m pip install 'pydantic-ai-slim[{extra}]=={version('pydantic-ai-slim')}'"
    )


@pytest.mark.parametrize(
    ("name", "variable"), [("meta:muse", "META_API_KEY"), ("heroku:claude", "HEROKU_INFERENCE_KEY")]
)
def test_pydantic_ai_provider_gets_its_key_from_the_mapping(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str
):
    monkeypatch.delenv(variable, raising=False)

    assert client_of(open_configured(name, environ={variable: "the-key"})).api_key == "the-key"
    assert client_of(open_configured(name, api_key="key-that-was-set")).api_key == "key-that-was-set"
    assert client_of(open_configured(name, environ={variable: "the-key"})).max_retries == 1
    assert refusal(name) == f"{name} needs a key: set {variable}"
    assert "has a fixed address" in refusal(name, base_url="http://box:8000/v1")


def test_other_provider_requirements_are_reported_by_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)

    told = refusal("azure:gpt-5", environ={"AZURE_OPENAI_API_KEY": "k"})

    assert told.startswith("azure:gpt-5 needs AZURE_OPENAI_ENDPOINT or ")
    assert told.endswith(" in the environment (.env is not read for it)")


async def test_probe_returns_the_model_that_answered():
    result = await probe(ScriptedModel("ready"))

    assert result.model == "scripted"
    assert result.latency_ms > 0


async def test_failed_probe_gives_a_reason():
    with pytest.raises(ModelFailed, match=r"^the provider did not answer in time$"):
        await probe(ScriptedModel([ModelRequestTimeout("m", 60.0)]))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ModelHTTPError.for_category(ModelServerError, status_code=500, model_name="m", body="it broke"),
            "the provider answered 500: it broke",
        ),
        # Anthropic nests its message one level deeper than OpenAI.
        (
            ModelHTTPError(529, "m", {"type": "error", "error": {"message": "Overloaded"}}),
            "the provider answered 529: Overloaded",
        ),
        # A proxy's HTML page is not shown.
        (ModelHTTPError(502, "m", "<html><body>Bad gateway</body></html>"), "the provider answered 502"),
        (ModelHTTPError(503, "m", {"message": 5}), "the provider answered 503"),
        (ModelHTTPError(503, "m", None), "the provider answered 503"),
        (
            ModelHTTPError.for_category(
                ModelQuotaExceededError, status_code=402, model_name="m", body={"message": "Pay first."}
            ),
            "the account at the provider has no quota or credit left: Pay first.",
        ),
        (ModelRateLimitError("m", "slow down"), "rate limited by the provider; try again later"),
        (ModelTimeoutError("m", "timed out"), "the provider did not answer in time"),
        (ModelConnectionError("m", "gone"), "the connection to the provider broke"),
        (
            ModelConnectionError("m", "gone", phase="read"),
            "the connection to the provider broke before the answer was complete",
        ),
        (ModelAPIError("m", "odd"), "the provider failed: odd"),
        (
            ContentFilterError("no"),
            "the provider's content filter blocked the answer; rephrase the message",
        ),
        (
            IncompleteToolCall("cut"),
            "the model reached its token limit within a tool call; ask for less at once",
        ),
        (
            UnexpectedModelBehavior("Streamed response ended without content or tool calls"),
            (
                "the provider's response is not a language model's response; "
                "check that TORANA_MODEL_BASE_URL is "
                "its API's address"
            ),
        ),
        (UnexpectedModelBehavior("empty answer"), "the model's answer is not usable: empty answer"),
        (ConnectionRefusedError(), "connection refused to the provider: is the server running there?"),
        (KeyError("x"), "the model call failed (KeyError); the log has the details"),
    ],
)
def test_each_failure_is_explained_in_one_line(error: Exception, told: str):
    assert explain(error).detail == told


@pytest.mark.timeout(10)
def test_megabytes_in_an_error_are_explained_within_the_time_limit():
    hostile = "-eyJ" * 500 + "aaaaaaaa." + "b" * 8_000_000

    told = explain(ModelAPIError("m", hostile)).detail

    assert len(told) < 300


def anthropic_error() -> Exception:
    from anthropic import AnthropicError  # here, because its import takes a second

    return AnthropicError("no")


def openai_error() -> Exception:
    from openai import APIConnectionError

    return APIConnectionError(request=httpx2.Request("POST", f"{OPENAI}responses"))


@pytest.mark.parametrize(
    ("make_cause", "told"),
    [
        (
            anthropic_error,
            "the key was refused by the provider: check ANTHROPIC_API_KEY or TORANA_MODEL_API_KEY",
        ),
        (
            openai_error,
            "the key was refused by api.openai.com: check OPENAI_API_KEY or TORANA_MODEL_API_KEY",
        ),
    ],
)
def test_refused_key_is_reported_without_the_providers_message(make_cause: Callable[[], Exception], told: str):
    error = ModelHTTPError.for_category(
        ModelAuthenticationError, status_code=401, model_name="m", body={"message": "Wrong key: abc…xyz"}
    )
    error.__cause__ = make_cause()

    assert explain(error).detail == told


def test_explained_failure_is_unchanged():
    failure = ModelFailed("known")

    assert explain(failure) is failure


@pytest.mark.parametrize(
    ("seconds", "headers"),
    [
        (0.2, {"Retry-After": "1"}),
        (7.0, {"Retry-After": "7"}),
        (None, {}),
        (-1.0, {}),
        (1e9, {}),
        (float("nan"), {}),
    ],
)
def test_providers_retry_after_is_passed_on_in_whole_seconds(seconds: float | None, headers: dict[str, str]):
    assert explain(ModelRateLimitError("m", "slow down", retry_after=seconds)).headers == headers


def test_failed_fallback_lists_each_model_and_the_shortest_wait():
    errors = [
        ModelRateLimitError("a", "slow down", retry_after=30),
        ModelTimeoutError("b", "timed out"),
        ModelRateLimitError("c", "slow down", retry_after=4),
    ]

    failure = explain(FallbackExceptionGroup("all failed", errors))

    assert failure.detail == (
        "all models failed. a: rate limited by the provider; try again in 30 s | "
        "b: the provider did not answer in time | c: rate limited by the provider; try again in 4 s"
    )
    assert failure.headers == {"Retry-After": "4"}


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijkl1234",
        "AIzaSyA1234567890abcdef",
        "gsk_abcdefghijkl1234",
        "Bearer abc.def.ghi",
        "https://someone:pass@host.invalid/v1",
        "https://host.invalid/v1?key=abcdefgh",
    ],
)
def test_secrets_in_a_providers_message_are_masked(secret: str):
    told = explain(ModelHTTPError(500, "m", {"message": f"failed with {secret} here"})).detail

    assert told.startswith("the provider answered 500: failed with ")
    assert not any(part in told for part in ("abc", "A123", "someone", "pass@"))
    assert "********" in told
    assert told.endswith(" here")


def test_ordinary_words_in_a_providers_message_are_not_masked():
    told = explain(ModelHTTPError(500, "m", {"message": "The skeleton-model in pkgconfiguration broke. Why?"}))

    assert told.detail == "the provider answered 500: The skeleton-model in pkgconfiguration broke. Why?"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "message", "code"]), inner),
)


@given(status=st.integers(400, 599), body=JSON)
def test_any_provider_error_is_explained_in_one_short_line(status: int, body: object):
    told = explain(ModelHTTPError(status, "m", body)).detail

    assert len(told) < 300
    assert told.isprintable()
    assert told.startswith(f"the provider answered {status}")


@pytest.mark.parametrize(
    ("name", "models", "address", "key"),
    [
        ("openai:e", ["builtin"], "http://localhost:9/v1/", "the-models"),
        ("openai:e", ["openai-chat:m", "builtin"], "http://localhost:9/v1/", "the-models"),
        ("openai:e", ["ollama:m"], OPENAI, "its-own"),
        ("ollama:e", ["openai:m"], "http://localhost:11434/v1/", "none"),
    ],
)
def test_embedder_shares_url_and_key_with_a_model_of_its_provider(
    name: str, models: list[str], address: str, key: str
) -> None:
    embedder = open_embedder(
        name,
        models=models,
        environ={"OPENAI_API_KEY": "its-own"},
        base_url="http://localhost:9/v1",
        api_key="the-models",
    )

    client: Any = embedder.provider.client
    assert (str(client.base_url), client.api_key, embedder.name) == (address, key, name)
