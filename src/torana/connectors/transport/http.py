"""Call a platform's HTTP interface with httpx2, and read its responses."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import httpx2

from torana.connectors.base import OutcomeUnknown, RetryLater, TooLarge, collect

#: Maximum size, in bytes, of a response other than a file.
ANSWER_LIMIT = 1_000_000


@contextmanager
def translate_errors(platform: str) -> Generator[None]:
    """Translate httpx2's errors by whether the call may have arrived; omit the URL, which may be a secret."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise RetryLater(f"cannot connect to {platform}: {type(error).__name__}") from None
    except httpx2.HTTPError as error:
        raise OutcomeUnknown(f"{platform} did not answer: {type(error).__name__}") from None


async def request_json(
    platform: str,
    http: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[httpx2.Response, Any]:
    """Return the response to a call, and its JSON; None for a body that is not JSON.

    Raises ``RetryLater`` or ``OutcomeUnknown`` if there is no response, or if it is too long.
    """
    try:
        with translate_errors(platform):
            async with http.stream(method, url, json=body, headers=headers) as answer:
                content = await read_bounded(answer, ANSWER_LIMIT)
    except TooLarge as error:
        raise OutcomeUnknown(f"{platform} did not answer: {type(error).__name__}") from None
    return answer, read_json(content)


async def read_bounded(answer: httpx2.Response, limit: int) -> bytes:
    """Return the body of a response. Raises ``TooLarge`` if it has, or announces, more bytes than the limit."""
    announced = answer.headers.get("content-length", "")
    size = int(announced) if announced.isascii() and announced.isdigit() else 0
    return await collect(answer.aiter_bytes(), limit, announced=size)


def read_json(raw: str | bytes) -> Any:
    """Parse a text as JSON; return None if it is invalid or nested too deeply."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def as_object(value: object) -> dict[str, Any]:
    """Return a value of JSON if it is an object, else an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def text_at(found: Mapping[str, object], key: str) -> str:
    """Return the text of a field; empty if the field is missing or not a text."""
    value = found.get(key)
    return value if isinstance(value, str) else ""


def seconds(header: str | None) -> float | None:
    """Return the number of a header such as ``Retry-After``; None if it is missing or not a number."""
    return float(header) if header and re.fullmatch(r"\d{1,6}(\.\d+)?", header, re.ASCII) else None
