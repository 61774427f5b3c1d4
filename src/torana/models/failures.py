"""Explain in one safe line why a model request failed, and how to fix it."""

from __future__ import annotations

import math
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai.exceptions import (
    ContentFilterError,
    FallbackExceptionGroup,
    IncompleteToolCall,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)

from torana.characters import one_line
from torana.errors import ModelFailed
from torana.models.context_overflow import overflow_of
from torana.telemetry import mask_text

#: Errors of a model, its provider or the connection; the arguments of ``explain``.
MODEL_ERRORS = (ModelAPIError, UnexpectedModelBehavior, FallbackExceptionGroup)

#: Errors of SDKs and pydantic-ai for a response of the wrong shape, such as text instead of a number.
MISSHAPEN = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)

_CHECK_ADDRESS = "check that TORANA_MODEL_BASE_URL is its API's address"
_MESSAGE_LIMIT = 200
#: Characters of a provider's message that are read. An event of a stream may have megabytes.
_READ_LIMIT = 10_000
_CHAIN_LIMIT = 10
_RETRY_LIMIT = 86_400

#: The variable of the key, by the package that raised the error.
_KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "google": "GOOGLE_API_KEY"}

#: The beginnings of pydantic-ai's messages for a response in another format, such as HTML.
_NO_ANSWER = ("Streamed response ended without", "Invalid response from")


def explain(error: Exception) -> ModelFailed:
    """Return the error for callers and the operator.

    Its detail is one line: the server or model, the error, the remedy if there is one, and at most 200
    characters of the provider's message, without credentials. ``headers`` contain ``Retry-After`` if the
    provider gave a time of at most a day.
    """
    # An SDK may wrap the HTTP client's errors.
    known = next((cause for cause in _chain(error) if isinstance(cause, ModelFailed)), None)
    if known is not None:
        return known
    if isinstance(error, FallbackExceptionGroup):
        return _explain_all([cause for cause in error.exceptions if isinstance(cause, Exception)])
    return ModelFailed(_detail(error), headers=_retry_after(error))


def release(error: BaseException) -> None:
    """Free what the frames and causes of a failed request hold, such as a long response.

    pydantic-ai keeps the error in a reference cycle, so a full collection would free it, much later. Call this
    after ``explain``.
    """
    for each in list(_chain(error)):
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = each.__cause__ = each.__context__ = None
        if isinstance(each, FallbackExceptionGroup):
            for failure in each.exceptions:
                release(failure)


def _explain_all(errors: list[Exception]) -> ModelFailed:
    """Combine the failures of a fallback list, with the shortest wait that a provider gave."""
    failures = [explain(error) for error in errors]
    names = [getattr(error, "model_name", None) for error in errors]
    causes = " | ".join(
        f"{name}: {failure.detail}" if name else failure.detail
        for name, failure in zip(names, failures, strict=True)
    )
    waits = sorted(int(failure.headers["Retry-After"]) for failure in failures if failure.headers)
    return ModelFailed(
        f"all models failed. {causes}", headers={"Retry-After": str(waits[0])} if waits else None
    )


def _detail(error: Exception) -> str:
    if (overflow := overflow_of(error)) is not None:
        window = f" of {overflow.window} tokens" if overflow.window else ""
        return (
            f"the request exceeds the model's context window{window} at {_server(error)}; set "
            "TORANA_CONTEXT_WINDOW to the model's window, or start the server with a larger one"
        )
    for kind, describe in _DESCRIPTIONS:
        if isinstance(error, kind):
            return describe(error)
    return _describe_unknown(error)


def _describe_key(error: Exception) -> str:
    # The provider's message is left out: it may quote the key.
    package = type(error.__cause__).__module__.partition(".")[0]
    server = _server(error)
    if package in _KEY_VARIABLES or server == "api.openai.com":
        variable = _KEY_VARIABLES.get(package, "OPENAI_API_KEY")
        return f"the key was refused by {server}: check {variable} or TORANA_MODEL_API_KEY"
    return (
        f"the key was refused by {server}: check TORANA_MODEL_API_KEY or the provider's own variable, "
        "such as OPENAI_API_KEY"
    )


def _describe_name(error: Exception) -> str:
    suggestion = getattr(error, "suggested_model_id", None)
    cure = f'did you mean "{suggestion}"?' if suggestion else "check TORANA_MODEL and TORANA_MODEL_BASE_URL"
    return f'{_server(error)} does not have the model "{getattr(error, "model_name", "")}"; {cure}'


def _describe_rate(error: Exception) -> str:
    wait = _retry_after(error).get("Retry-After")
    return f"rate limited by {_server(error)}; try again {f'in {wait} s' if wait else 'later'}"


def _describe_quota(error: Exception) -> str:
    return f"the account at {_server(error)} has no quota or credit left{_quote_provider_message(error)}"


def _describe_time(error: Exception) -> str:
    return f"{_server(error)} did not answer in time"


def _describe_connection(error: Exception) -> str:
    causes = list(_chain(error))
    server = _server(error)
    for kind, template in _CONNECTION_FAULTS:
        if any(isinstance(cause, kind) for cause in causes):
            return template.format(server=server)
    phase = getattr(error, "phase", None)
    return f"the connection to {server} broke{' before the answer was complete' if phase == 'read' else ''}"


def _describe_status(error: Exception) -> str:
    status = getattr(error, "status_code", "with an error")
    return f"{_server(error)} answered {status}{_quote_provider_message(error)}"


def _describe_unreadable(error: Exception) -> str:
    if isinstance(error.__cause__, ValueError | RecursionError):
        return f"the provider's answer is not valid JSON; {_CHECK_ADDRESS}"
    return f"the provider failed: {_safe(str(error))}"


def _describe_behaviour(error: Exception) -> str:
    if str(error).startswith(_NO_ANSWER):
        return f"the provider's response is not a language model's response; {_CHECK_ADDRESS}"
    return f"the model's answer is not usable: {_safe(str(error))}"


def _describe_unknown(error: Exception) -> str:
    """Describe an error that pydantic-ai did not raise, such as a connection error."""
    causes = list(_chain(error))
    if any(isinstance(cause, OSError) or _netloc(cause) for cause in causes):
        return _describe_connection(error)
    return f"the model call failed ({type(error).__name__}); the log has the details"


#: From specific to general; the first match is used.
_DESCRIPTIONS: tuple[tuple[type[Exception], Callable[[Exception], str]], ...] = (
    (ModelAuthenticationError, _describe_key),
    (ModelNotFoundError, _describe_name),
    (ModelRateLimitError, _describe_rate),
    (ModelQuotaExceededError, _describe_quota),
    (ModelTimeoutError, _describe_time),
    (ModelRequestTimeout, _describe_time),
    (ModelConnectionError, _describe_connection),
    (ModelHTTPError, _describe_status),
    (ModelAPIError, _describe_unreadable),
    (ContentFilterError, lambda _: "the provider's content filter blocked the answer; rephrase the message"),
    (
        IncompleteToolCall,
        lambda _: "the model reached its token limit within a tool call; ask for less at once",
    ),
    (UnexpectedModelBehavior, _describe_behaviour),
)

_CONNECTION_FAULTS: tuple[tuple[type[BaseException], str], ...] = (
    (ConnectionRefusedError, "connection refused to {server}: is the server running there?"),
    (socket.gaierror, "the name of {server} cannot be resolved; check TORANA_MODEL_BASE_URL and the network"),
    (ssl.SSLError, "no secure connection to {server}; check its certificate and https:// in the address"),
    (TimeoutError, "{server} cannot be reached in time"),
)


def _retry_after(error: Exception) -> dict[str, str]:
    seconds: float | None = getattr(error, "retry_after", None)
    if seconds is None or not 0 <= seconds <= _RETRY_LIMIT:
        return {}
    return {"Retry-After": str(math.ceil(seconds))}


def _quote_provider_message(error: Exception) -> str:
    """Return the provider's message as the end of a sentence, or '' if it is unusable."""
    body: object = getattr(error, "body", None)
    if isinstance(body, Mapping):
        fields = cast("Mapping[str, Any]", body)
        inner = fields.get("error", fields)
        body = cast("Mapping[str, Any]", inner).get("message") if isinstance(inner, Mapping) else inner
    if not isinstance(body, str) or not body.strip() or body.lstrip().startswith("<"):
        return ""
    return f": {_safe(body)}"


def _safe(text: str) -> str:
    """Return the text as one printable line without secrets, cut off at the limit."""
    line = mask_text(one_line(text, _READ_LIMIT))
    return line if len(line) <= _MESSAGE_LIMIT else f"{line[: _MESSAGE_LIMIT - 1]}…"


def _server(error: Exception) -> str:
    """Return the host, with its port unless it is the default."""
    return next((netloc for cause in _chain(error) if (netloc := _netloc(cause))), "the provider")


def _netloc(error: BaseException) -> str:
    """Return the host of a failed request, without user name and password."""
    request: Any = None
    # HTTPX raises ``RuntimeError`` if an error has no request.
    with suppress(RuntimeError):
        request = getattr(error, "request", None) or getattr(getattr(error, "response", None), "request", None)
    return urlsplit(str(getattr(request, "url", ""))).netloc.rpartition("@")[2]


def _chain(error: BaseException) -> Iterator[BaseException]:
    def follow() -> Iterator[BaseException]:
        current: BaseException | None = error
        while current is not None:
            yield current
            current = current.__cause__ or current.__context__

    return islice(follow(), _CHAIN_LIMIT)
