"""Read and validate request bodies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from torana.api.dependencies import check_token, services_of, slot_of
from torana.characters import is_storable
from torana.errors import (
    BadRequest,
    BodyTooLarge,
    ContentTooLong,
    FieldFault,
    InvalidContent,
    InvalidField,
    InvalidJson,
    InvalidText,
    RequestTimeout,
    ScopeMissing,
    UnsupportedMediaType,
    WrongUser,
)
from torana.json_bounds import has_more_values
from torana.messages import CONTENT_LIMIT, ID_LIMIT, Inbound, OnBusy, Principal

#: Maximum bytes of a body: enough for a message of 10,000 characters that are all escaped.
BODY_LIMIT = 256 * 1024
#: The size in bytes above which a body waits for a slot. A body of 10,000 values takes 20 milliseconds.
_LONG_BODY = 4 * 1024
#: The pause after a long body, in multiples of the time that it took.
_PAUSE = 3
#: Maximum number of JSON values in a body; each takes time to validate.
_VALUES_LIMIT = 10_000

_ON_BUSY: tuple[OnBusy, ...] = get_args(OnBusy)

T = TypeVar("T", bound=str)
Model = TypeVar("Model", bound=BaseModel)

#: The details of field faults, by pydantic's error type.
_DETAILS = {
    "missing": "is missing",
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length:,} characters",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "literal_error": "must be one of {expected}",
    "greater_than_equal": "must be at least {ge:,}",
    "less_than_equal": "must be at most {le:,}",
    "value_error": "{error}",
}


async def read_body(request: Request, model: type[Model]) -> Model:
    """Return the request's JSON object as a model. Raises ``InvalidField`` and ``read_object``'s errors."""
    raw = await _read_json(request, within=services_of(request).body_timeout, limit=BODY_LIMIT)
    async with _pace(request, len(raw)):
        return _validate(model, _parse_clean(raw))


async def read_optional_body(request: Request, model: type[Model]) -> Model:
    """Return the request's JSON object as a model; without a body, the model's defaults."""
    return _validate(model, await optional_object(request, within=services_of(request).body_timeout))


async def read_object(request: Request, *, within: float, limit: int = BODY_LIMIT) -> dict[str, Any]:
    """Return the JSON object of a request, which must arrive within the seconds. ``limit`` is in bytes.

    Raises ``UnsupportedMediaType``, ``BodyTooLarge`` (without reading the rest), ``RequestTimeout``,
    ``InvalidJson``, or ``InvalidText`` for a text with U+0000 or half of a surrogate pair.
    """
    raw = await _read_json(request, within=within, limit=limit)
    async with _pace(request, len(raw)):
        return _parse_clean(raw)


@asynccontextmanager
async def _pace(request: Request, size: int) -> AsyncGenerator[None]:
    """Process a body of ``size`` bytes in the block, without an ``await``.

    Long bodies are processed one after the other, with pauses, so that they use a part of the processor only.
    """
    if size <= _LONG_BODY:
        yield
        return
    async with slot_of(request, services_of(request).parsing):
        begin = time.perf_counter()
        try:
            yield
        finally:
            await asyncio.sleep(_PAUSE * (time.perf_counter() - begin))


async def _read_json(request: Request, *, within: float, limit: int) -> bytes:
    kind = media_type(request.headers)
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType
    return await read_bytes(request, limit=limit, within=within)


def _parse_clean(raw: bytes) -> dict[str, Any]:
    document = _parse_json(raw)
    for name, value in document.items():
        if not all(map(is_storable, _texts(value))):
            raise InvalidText(faults=[fault(name, "contains U+0000 or half of a surrogate pair")])
    return document


async def optional_object(request: Request, *, within: float) -> dict[str, Any]:
    """Return the JSON object of a request, or an empty one for a request without a body."""
    headers = request.headers
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return {}
    return await read_object(request, within=within)


async def read_bytes(request: Request, *, limit: int, within: float) -> bytes:
    """Return the body of a request.

    Raises ``BodyTooLarge``, ``RequestTimeout``, and ``check_token``'s error.
    """
    try:
        async with asyncio.timeout(within):
            body = await _read_body(request, limit)
    except TimeoutError:
        # The rest of the body may still arrive, so the connection cannot be used again.
        raise RequestTimeout(headers={"Connection": "close"}) from None
    await check_token(request)
    return body


def media_type(headers: Headers) -> str:
    """Return the media type of the body without its parameters, or an empty string if none is given."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_too_large(headers: Headers, limit: int = BODY_LIMIT) -> bool:
    """Return whether the headers announce a body over the limit."""
    length = headers.get("content-length", "")
    # Python does not convert numbers of thousands of digits.
    return length.isdecimal() and (len(length) > 18 or int(length) > limit)


def parse_message(document: dict[str, Any], principal: Principal) -> Inbound:
    """Return the message of a request body (see decision 0006).

    Raises ``InvalidContent``, ``ContentTooLong``, ``InvalidField``, ``WrongUser`` or ``ScopeMissing``.
    """
    on_busy = document.get("onBusy")
    return Inbound(
        owner=principal.owner,
        principal=principal.name,
        token=principal.token,
        content=_content(document.get("content")),
        channel=identifier(document, "channelId"),
        user=named_user(identifier(document, "userId"), principal),
        on_busy="queue" if on_busy is None else one_of("onBusy", on_busy, _ON_BUSY),
    )


def _content(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidContent(faults=[fault("content", "must be a string")])
    if len(value) > CONTENT_LIMIT:
        raise ContentTooLong(
            f"`content` has {len(value):,} characters; the maximum is {CONTENT_LIMIT:,}. Split the message.",
            faults=[fault("content", f"has {len(value)} characters, more than {CONTENT_LIMIT}")],
        )
    if not value.strip():
        raise InvalidContent(faults=[fault("content", "must not be blank")])
    return value


def identifier(document: dict[str, Any], name: str) -> str | None:
    """Return the channel id or user id of a body, or None. Raises ``InvalidField``."""
    value = document.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise wrong(name, "must be a string or an integer")
    text = str(value)
    if len(text) > ID_LIMIT:
        raise wrong(name, f"must have at most {ID_LIMIT} characters")
    return text


def named_user(user: str | None, principal: Principal) -> str | None:
    """Return the user that a body names, or the principal's own.

    Raises ``WrongUser`` or ``ScopeMissing`` if the principal may not name this user.
    """
    if user in (None, principal.user):
        return principal.user
    if principal.user is not None:
        raise WrongUser(faults=[fault("userId", "is not the user that the token is bound to")])
    if "impersonate" not in principal.scopes:
        raise ScopeMissing(
            "The token may not name a `userId`. It needs the scope `impersonate`, or to be bound to the user."
        )
    return user


def one_of(name: str, value: object, allowed: Sequence[T]) -> T:
    """Return the value as one of the allowed ones. Raises ``InvalidField``."""
    for one in allowed:
        if value == one:
            return one
    raise wrong(name, f"must be one of {', '.join(allowed)}")


def wrong(name: str, detail: str) -> InvalidField:
    """Return the error of an invalid field."""
    return InvalidField(f"`{name}` {detail}.", faults=[fault(name, detail)])


def fault(name: str, detail: str) -> FieldFault:
    """Return a fault of a field of the body."""
    name = name.encode(errors="backslashreplace").decode()  # the name may contain half of a surrogate pair
    return FieldFault("/" + name.replace("~", "~0").replace("/", "~1"), detail)


def _validate(model: type[Model], document: dict[str, Any]) -> Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _invalid_fields(error) from None


def _invalid_fields(error: ValidationError) -> InvalidField:
    """Return the error for the invalid fields of a body: one fault for each top-level field."""
    details: dict[str, str] = {}
    for line in error.errors(include_url=False, include_input=False):
        name, *path = line["loc"]
        item = "".join(f"item {part} " for part in path if isinstance(part, int))
        details.setdefault(str(name), item + _detail(line))
    sentences = "; ".join(f"`{name}` {detail}" for name, detail in details.items())
    return InvalidField(f"{sentences}.", faults=[fault(name, detail) for name, detail in details.items()])


def _detail(line: ErrorDetails) -> str:
    """Return what is wrong with a field."""
    values = line.get("ctx", {})
    template = _DETAILS.get(line["type"])
    return template.format(**values) if template else line["msg"]


def _parse_json(raw: bytes) -> dict[str, Any]:
    if has_more_values(raw, _VALUES_LIMIT):
        raise InvalidJson(f"The body has more than {_VALUES_LIMIT:,} JSON values.")
    try:
        document: object = json.loads(raw.decode(), parse_constant=_refuse_constant, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise InvalidJson from error
    if not isinstance(document, dict):
        raise InvalidJson
    return cast("dict[str, Any]", document)


def _integer(digits: str) -> int | Decimal:
    """Return an integer. With more digits than Python reads, which no valid id has, return a decimal."""
    return int(digits) if len(digits) <= 1_000 else Decimal(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in a value at any depth, except the names of fields."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case list(items):  # pyright: ignore[reportUnknownVariableType]
                waiting.extend(cast("list[object]", items))
            case dict(fields):  # pyright: ignore[reportUnknownVariableType]
                waiting.extend(cast("dict[str, object]", fields).values())
            case _:
                pass


async def _read_body(request: Request, limit: int) -> bytes:
    too_large = BodyTooLarge(f"The body is larger than {limit:,} bytes.")
    if is_too_large(request.headers, limit):
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large
    except ClientDisconnect as error:
        raise BadRequest("The connection was closed before the whole body arrived.") from error
    return bytes(body)
