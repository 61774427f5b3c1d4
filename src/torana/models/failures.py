"""Says in one safe line why a language model did not answer, and what would mend it."""

from __future__ import annotations

import math
import socket
import ssl
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
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)

from torana.errors import ModelFailed
from torana.telemetry import mask_text

#: What a model call raises when the model, its provider or the way there is at fault; all for ``explain``.
MODEL_ERRORS = (ModelAPIError, UnexpectedModelBehavior, FallbackExceptionGroup)

#: What an SDK and pydantic-ai raise where an answer has the wrong shape, such as a text in place of a number.
MISSHAPEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

_CHECK_ADDRESS = "check that TORANA_MODEL_BASE_URL is its API's address"
_MESSAGE_LIMIT = 200
_CHAIN_LIMIT = 10
_RETRY_LIMIT = 86_400

#: By the package that raised: the variable from which the key came.
_KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "google": "GOOGLE_API_KEY"}

#: How pydantic-ai begins where what came is no answer in the provider's format, such as a page of HTML.
_NO_ANSWER = ("Streamed response ended without", "Invalid response from")


def explain(error: Exception) -> ModelFailed:
    """The error that may be shown to a caller and to the operator.

    Its detail is one line: which server or model, what happened, the cure where there is one, and at most 200
    characters of the provider's own message, without keys and credentials. ``Retry-After`` is among its headers
    when the provider named a time of at most a day.
    """
    # An SDK may wrap what the HTTP client raises.
    known = next((cause for cause in _chain(error) if isinstance(cause, ModelFailed)), None)
    if known is not None:
        return known
    if isinstance(error, FallbackExceptionGroup):
        return _explain_all([cause for cause in error.exceptions if isinstance(cause, Exception)])
    return ModelFailed(_detail(error), headers=_retry_after(error))


def _explain_all(errors: list[Exception]) -> ModelFailed:
    """One failure out of those of a fallback list, with the shortest wait that any provider named."""
    failures = [explain(error) for error in errors]
    told = " | ".join(_named(error, failure) for error, failure in zip(errors, failures, strict=True))
    waits = sorted(int(failure.headers["Retry-After"]) for failure in failures if failure.headers)
    return ModelFailed(
        f"none of the models answered. {told}", headers={"Retry-After": str(waits[0])} if waits else None
    )


def _named(error: Exception, failure: ModelFailed) -> str:
    name = getattr(error, "model_name", None)
    return f"{name}: {failure.detail}" if name else failure.detail


def _detail(error: Exception) -> str:
    for kind, tell in _TELLERS:
        if isinstance(error, kind):
            return tell(error)
    return _tell_unknown(error)


def _tell_context(error: Exception) -> str:
    return (
        f"the conversation is longer than the model can read (context length exceeded at {_server(error)}); "
        "lower TORANA_HISTORY_MESSAGES or go on in a new channel"
    )


def _tell_key(error: Exception) -> str:
    # The provider's own message is left out: it may quote the key.
    package = type(error.__cause__).__module__.partition(".")[0]
    server = _server(error)
    if package in _KEY_VARIABLES or server == "api.openai.com":
        variable = _KEY_VARIABLES.get(package, "OPENAI_API_KEY")
        return f"the key was refused by {server}: check {variable} or TORANA_MODEL_API_KEY"
    return (
        f"the key was refused by {server}: check TORANA_MODEL_API_KEY or the provider's own variable, "
        "such as OPENAI_API_KEY"
    )


def _tell_name(error: Exception) -> str:
    suggestion = getattr(error, "suggested_model_id", None)
    cure = f'did you mean "{suggestion}"?' if suggestion else "check TORANA_MODEL and TORANA_MODEL_BASE_URL"
    return f'{_server(error)} does not have the model "{getattr(error, "model_name", "")}"; {cure}'


def _tell_rate(error: Exception) -> str:
    wait = _retry_after(error).get("Retry-After")
    return f"rate limited by {_server(error)}; try again {f'in {wait} s' if wait else 'later'}"


def _tell_quota(error: Exception) -> str:
    return f"the account at {_server(error)} has no quota or credit left{_quoted(error)}"


def _tell_time(error: Exception) -> str:
    return f"{_server(error)} did not answer in time"


def _tell_connection(error: Exception) -> str:
    causes = list(_chain(error))
    server = _server(error)
    for kind, told in _CONNECTION_FAULTS:
        if any(isinstance(cause, kind) for cause in causes):
            return told.format(server=server)
    phase = getattr(error, "phase", None)
    return f"the connection to {server} broke{' before the answer was complete' if phase == 'read' else ''}"


def _tell_status(error: Exception) -> str:
    return f"{_server(error)} answered {getattr(error, 'status_code', 'with an error')}{_quoted(error)}"


def _tell_unreadable(error: Exception) -> str:
    if isinstance(error.__cause__, ValueError):
        return f"the provider's answer is not valid JSON; {_CHECK_ADDRESS}"
    return f"the provider failed: {_safe(str(error))}"


def _tell_filter(_: Exception) -> str:
    return "the provider's content filter stopped the answer; put the question differently"


def _tell_cut(_: Exception) -> str:
    return "the model reached its limit of tokens while it was calling a tool; ask for less at once"


def _tell_behaviour(error: Exception) -> str:
    if str(error).startswith(_NO_ANSWER):
        return f"what the provider sent is no answer of a language model; {_CHECK_ADDRESS}"
    return f"the model's answer could not be used: {_safe(str(error))}"


def _tell_unknown(error: Exception) -> str:
    """An error that did not come through pydantic-ai: the connection's, or something else's."""
    causes = list(_chain(error))
    if any(isinstance(cause, OSError) or _netloc(cause) for cause in causes):
        return _tell_connection(error)
    return f"the model could not be asked ({type(error).__name__}); the log has the details"


#: From the particular to the general: the first that fits tells.
_TELLERS: tuple[tuple[type[Exception], Callable[[Exception], str]], ...] = (
    (ModelContextWindowExceededError, _tell_context),
    (ModelAuthenticationError, _tell_key),
    (ModelNotFoundError, _tell_name),
    (ModelRateLimitError, _tell_rate),
    (ModelQuotaExceededError, _tell_quota),
    (ModelTimeoutError, _tell_time),
    (ModelRequestTimeout, _tell_time),
    (ModelConnectionError, _tell_connection),
    (ModelHTTPError, _tell_status),
    (ModelAPIError, _tell_unreadable),
    (ContentFilterError, _tell_filter),
    (IncompleteToolCall, _tell_cut),
    (UnexpectedModelBehavior, _tell_behaviour),
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


def _quoted(error: Exception) -> str:
    """What the provider itself said, ready to stand at the end of a sentence; empty if nothing fit to show."""
    body: object = getattr(error, "body", None)
    if isinstance(body, Mapping):
        fields = cast("Mapping[str, Any]", body)
        inner = fields.get("error", fields)
        body = cast("Mapping[str, Any]", inner).get("message") if isinstance(inner, Mapping) else inner
    if not isinstance(body, str) or not body.strip() or body.lstrip().startswith("<"):
        return ""
    return f": {_safe(body)}"


def _safe(text: str) -> str:
    """One printable line, without what looks like a secret, cut at the limit."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    line = mask_text(" ".join(printable.split()))
    return line if len(line) <= _MESSAGE_LIMIT else f"{line[: _MESSAGE_LIMIT - 1]}…"


def _server(error: Exception) -> str:
    """The host, with the port where it is not the usual one."""
    return next((netloc for cause in _chain(error) if (netloc := _netloc(cause))), "the provider")


def _netloc(error: BaseException) -> str:
    """Where the request of an HTTP client's or an SDK's error went; without user name and password."""
    request: Any = None
    # httpx raises RuntimeError when an error has no request.
    with suppress(RuntimeError):
        request = getattr(error, "request", None) or getattr(getattr(error, "response", None), "request", None)
    return urlsplit(str(getattr(request, "url", ""))).netloc.rpartition("@")[2]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that led to it."""

    def follow() -> Iterator[BaseException]:
        current: BaseException | None = error
        while current is not None:
            yield current
            current = current.__cause__ or current.__context__

    return islice(follow(), _CHAIN_LIMIT)
