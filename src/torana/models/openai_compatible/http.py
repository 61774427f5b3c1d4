"""Send a chat request, repeat it after a transient failure, and translate errors to pydantic-ai's."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from email.utils import mktime_tz, parsedate_tz
from http import HTTPStatus
from typing import Any, cast

import httpx2
from pydantic_ai import _model_errors
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models import (
    _suggest_known_model_id_from_provider_error as nearest_known_name,  # pyright: ignore[reportPrivateUsage]
)

#: The longest wait in seconds that a server may request, as in the OpenAI client.
_LONGEST_REQUESTED_WAIT = 120.0
#: The wait in seconds if the server requests none, as in the OpenAI client. A random part of up to
#: a quarter is subtracted.
_WAIT = 0.5

_TRANSIENT = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS})


async def send(client: httpx2.AsyncClient, request: httpx2.Request, *, retries: int) -> httpx2.Response:
    """Send a request, and return the response before its body is read.

    After a transient failure, the request is repeated after a pause, at most ``retries`` times. Raises
    ``httpx2.HTTPError``. If the status is not 2xx, the body of the response is read before the error is raised.
    """
    for retries_left in range(retries, -1, -1):
        try:
            response = await client.send(request, stream=True)
        except httpx2.RequestError:
            if not retries_left:
                raise
            await _wait({})
            continue
        if response.is_success:
            return response
        if not (retries_left and _may_repeat(response)):
            # This also closes the response.
            await response.aread()
            response.raise_for_status()
        await response.aclose()
        await _wait(response.headers)
    raise AssertionError("unreachable: the last failure is raised")


@contextmanager
def translate_errors(model: str, namespace: str) -> Generator[None]:
    try:
        yield
    except httpx2.HTTPStatusError as error:
        raise _status_error(error.response, model, namespace) from error
    except httpx2.TimeoutException as error:
        raise _model_errors.connection_error(model, "Request timed out.", error, timeout=True) from error
    except httpx2.RequestError as error:
        raise _model_errors.connection_error(model, "Connection error.", error, timeout=False) from error
    except (ValueError, RecursionError) as error:
        raise ModelAPIError(model, f"Failed to decode response as JSON: {error}") from error


def raise_if_error(chunk: Mapping[str, Any], model: str, request: httpx2.Request) -> None:
    """Raise the error of a chunk, which a server may send after status 200. Its cause has the URL."""
    if body := chunk.get("error"):
        message = _fields(body).get("message")
        text = message if isinstance(message, str) and message else "An error occurred during streaming"
        cause = httpx2.RequestError(text, request=request)
        raise _model_errors.stream_error(model, text, body) from cause


def _status_error(response: httpx2.Response, model: str, namespace: str) -> ModelAPIError:
    body: object = response.text.strip()
    with suppress(ValueError, RecursionError):
        body = json.loads(response.text)
    body = _fields(body).get("error", body)
    fields = _fields(body)
    code, kind, message = fields.get("code"), fields.get("type"), fields.get("message")
    code = None if code is None else str(code)
    kind = kind if isinstance(kind, str) else None
    explanation = f" - {message}" if isinstance(message, str) and message else ""
    text = f"Error code: {response.status_code}{explanation}"
    if not response.is_error:
        return ModelAPIError(model, text)
    return ModelHTTPError.for_category(
        _model_errors.openai_compatible_category(response.status_code, code, kind, text),
        status_code=response.status_code,
        model_name=model,
        body=body,
        headers=dict(response.headers),
        suggested_model_id=nearest_known_name(namespace, model) if code == "model_not_found" else None,
        provider_error_code=code,
        provider_error_type=kind,
    )


def _fields(body: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", body) if isinstance(body, dict) else {}


def _may_repeat(response: httpx2.Response) -> bool:
    wait = _requested_wait(response.headers)
    if wait is not None and _LONGEST_REQUESTED_WAIT < wait < math.inf:
        return False
    hint = response.headers.get("x-should-retry")
    if hint in ("true", "false"):
        return hint == "true"
    return response.status_code in _TRANSIENT or response.is_server_error


async def _wait(headers: Mapping[str, str]) -> None:
    wait = _requested_wait(headers)
    if wait is None or not 0 < wait <= _LONGEST_REQUESTED_WAIT:
        wait = _WAIT * (1 - random.random() / 4)  # noqa: S311
    await asyncio.sleep(wait)


def _requested_wait(headers: Mapping[str, str]) -> float | None:
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            return float(headers[name]) / divisor
        except (KeyError, ValueError):
            pass
    try:
        date = parsedate_tz(headers.get("retry-after", ""))
        return None if date is None else mktime_tz(date) - time.time()
    except (TypeError, ValueError, OverflowError):
        return None
