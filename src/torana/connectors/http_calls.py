"""What connectors share that call a platform's HTTP interface by httpx, and read what it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import httpx

from torana.connectors.base import TooLarge, TryLater, Unsure

#: Bytes of an answer that is no file.
ANSWER_LIMIT = 1_000_000


@contextmanager
def told_by(platform: str) -> Generator[None]:
    """Say of a call that failed whether it can have been heard; not its address, which may be a secret."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise TryLater(f"{platform} cannot be reached: {type(error).__name__}") from None
    except httpx.HTTPError as error:
        raise Unsure(f"{platform} did not answer: {type(error).__name__}") from None


async def asked(
    platform: str,
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[httpx.Response, Any]:
    """The answer to a call, and the JSON in it, None where it is none.

    Raises ``TryLater`` or ``Unsure`` where there is no answer, or a far too long one.
    """
    try:
        with told_by(platform):
            async with http.stream(method, url, json=body, headers=headers) as answer:
                content = await bounded(answer, ANSWER_LIMIT)
    except TooLarge as error:
        raise Unsure(f"{platform} did not answer: {type(error).__name__}") from None
    return answer, read_json(content)


async def bounded(answer: httpx.Response, limit: int) -> bytes:
    """What an answer holds; ``TooLarge`` as soon as there is, or is said to be, more than the limit."""
    announced = answer.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise TooLarge(f"{announced} bytes are more than {limit}")
    content = bytearray()
    async for chunk in answer.aiter_bytes():
        content += chunk
        if len(content) > limit:
            raise TooLarge(f"more than {limit} bytes")
    return bytes(content)


def read_json(raw: str | bytes) -> Any:
    """What a text says as JSON; None where it is none, or one that nobody can read."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def as_object(value: object) -> dict[str, object]:
    """A JSON object; an empty one in place of anything else."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def text_at(found: Mapping[str, object], key: str) -> str:
    """The text that stands there, empty where none does."""
    value = found.get(key)
    return value if isinstance(value, str) else ""


def seconds(header: str | None) -> float | None:
    """The seconds that a header such as ``Retry-After`` names, if it does."""
    return float(header) if header and re.fullmatch(r"\d{1,6}(\.\d+)?", header, re.ASCII) else None


def one_line(text: str) -> str:
    """One short printable line."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())[:200]
