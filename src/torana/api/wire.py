"""What travels: request bodies parsed once, and answers in the contract's shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeVar, cast, get_args

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

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
from torana.messages import CONTENT_LIMIT, ID_LIMIT, Inbound, OnBusy, Principal, Turn
from torana.paging import LARGEST_PAGE
from torana.store.approvals import Approval

#: So that 10,000 characters fit however they are escaped.
BODY_LIMIT = 256 * 1024

_ON_BUSY: tuple[OnBusy, ...] = get_args(OnBusy)

T = TypeVar("T", bound=str)


def answer(turn: Turn) -> dict[str, Any]:
    """The 200 body of a completed turn."""
    return {
        "reply": turn.reply or "",
        "id": turn.id,
        "channelId": turn.channel,
        "userId": turn.user,
        "sessionId": turn.session_id,
        "status": turn.state,
        "model": turn.model or "unknown",
        "usage": _usage(turn),
        "createdAt": turn.created_at.isoformat(),
    }


def turn_body(turn: Turn, approvals: Sequence[Approval] = ()) -> dict[str, Any]:
    """A turn as a resource, ended or not, with its open approvals."""
    return answer(turn) | {
        "reply": turn.reply,
        "model": turn.model,
        "error": turn.failure and {"code": turn.failure.code, "detail": turn.failure.detail},
        "approvals": [approval_body(approval) for approval in approvals],
        "mergedInto": turn.merged_into,
        "endedAt": turn.ended_at and turn.ended_at.isoformat(),
    }


def approval_body(approval: Approval) -> dict[str, Any]:
    """An approval as a resource."""
    return {
        "id": approval.id,
        "digest": approval.digest,
        "turnId": approval.turn_id,
        "callId": approval.call_id,
        "tool": approval.tool,
        "arguments": approval.arguments,
        "state": approval.state,
        "edited": approval.edited,
        "reason": approval.reason,
        "createdAt": approval.created_at.isoformat(),
        "expiresAt": approval.expires_at.isoformat(),
        "decidedAt": approval.decided_at and approval.decided_at.isoformat(),
    }


def page_size(limit: str) -> int:
    """How many items a page has: what was asked for, or the nearest there is. Raises ``InvalidField``."""
    if not limit.isascii() or not limit.isdecimal():
        raise InvalidField(f"`limit` must be a whole number from 1 to {LARGEST_PAGE}.")
    return max(1, min(int(limit), LARGEST_PAGE))


def _usage(turn: Turn) -> dict[str, Any]:
    return {
        "inputTokens": turn.usage.input_tokens,
        "outputTokens": turn.usage.output_tokens,
        "costUsd": turn.usage.cost_usd,
    }


async def read_object(request: Request, *, within: float) -> dict[str, Any]:
    """The request's JSON object, which may take ``within`` seconds to arrive.

    Raises ``UnsupportedMediaType``, ``BodyTooLarge`` (before reading all of it), ``RequestTimeout``,
    ``InvalidJson``, or ``InvalidText`` for a text that no UTF-8 can hold.
    """
    kind = media_type(request.headers)
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType
    document = _parsed(await read_bytes(request, limit=BODY_LIMIT, within=within))
    for name, value in document.items():
        if not all(map(_is_clean, _texts(value))):
            raise InvalidText(faults=[fault(name, "holds U+0000 or half of a surrogate pair")])
    return document


async def optional_object(request: Request, *, within: float) -> dict[str, Any]:
    """The same of a request that may have no body at all: then nothing is in it."""
    headers = request.headers
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return {}
    return await read_object(request, within=within)


async def read_bytes(request: Request, *, limit: int, within: float) -> bytes:
    """The request's body, whatever it is. Raises as ``read_object`` does."""
    try:
        async with asyncio.timeout(within):
            return await _read(request, limit)
    except TimeoutError:
        # The rest of the body is still to come: nothing else can be asked on this connection.
        raise RequestTimeout(headers={"Connection": "close"}) from None


def media_type(headers: Headers) -> str:
    """What the headers say that the body is, without its parameters; '' where they do not."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_too_large(headers: Headers, limit: int = BODY_LIMIT) -> bool:
    """Whether the headers announce a body over the limit."""
    length = headers.get("content-length", "")
    # Python converts no number of thousands of digits.
    return length.isdecimal() and (len(length) > 18 or int(length) > limit)


def parse_message(document: dict[str, Any], principal: Principal) -> Inbound:
    """The message of a request body, by the contract's rules.

    Raises ``WrongUser`` or ``ScopeMissing`` for a user whom the principal may not name.
    """
    on_busy = document.get("onBusy")
    return Inbound(
        owner=principal.owner,
        principal=principal.name,
        token=principal.token,
        content=_content(document.get("content")),
        channel=identifier(document, "channelId"),
        user=named_user(document, principal),
        on_busy="queue" if on_busy is None else one_of("onBusy", on_busy, _ON_BUSY),
    )


def _content(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidContent(faults=[fault("content", "must be a string")])
    if len(value) > CONTENT_LIMIT:
        raise ContentTooLong(
            f"`content` has {len(value):,} characters; at most {CONTENT_LIMIT:,} are taken. Split the message.",
            faults=[fault("content", f"has {len(value)} characters, more than {CONTENT_LIMIT}")],
        )
    if not value.strip():
        raise InvalidContent(faults=[fault("content", "must not be blank")])
    return value


def identifier(document: dict[str, Any], name: str) -> str | None:
    """A channel's or a user's id in a body; None where there is none. Raises ``InvalidField``."""
    value = document.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise wrong(name, "must be a string or an integer")
    text = str(value)
    if len(text) > ID_LIMIT:
        raise wrong(name, f"must have at most {ID_LIMIT} characters")
    return text


def named_user(document: dict[str, Any], principal: Principal) -> str | None:
    """The user that a body names, or that the principal speaks for.

    Raises ``WrongUser`` or ``ScopeMissing`` for one whom the principal may not name.
    """
    named = identifier(document, "userId")
    if named in (None, principal.user):
        return principal.user
    if principal.user is not None:
        raise WrongUser(faults=[fault("userId", "is not whom the token speaks for")])
    if "impersonate" not in principal.scopes:
        raise ScopeMissing("The token may not name a `userId`; it needs impersonate, or to be that user's own.")
    return named


def text(document: dict[str, Any], name: str, *, most: int | None = None) -> str | None:
    """A text in a body, of at most so many characters; None where there is none. Raises ``InvalidField``."""
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong(name, "must be a string")
    if value is not None and most is not None and len(value) > most:
        raise wrong(name, f"must have at most {most:,} characters")
    return value


def one_of(name: str, value: object, allowed: Sequence[T]) -> T:
    """The value, which must be one of these. Raises ``InvalidField``."""
    for one in allowed:
        if value == one:
            return one
    raise wrong(name, f"must be one of {', '.join(allowed)}")


def wrong(name: str, detail: str) -> InvalidField:
    """The error of a field that has a fault."""
    return InvalidField(f"`{name}` {detail}.", faults=[fault(name, detail)])


def fault(name: str, detail: str) -> FieldFault:
    """A fault of a field of the body's."""
    name = name.encode(errors="backslashreplace").decode()  # it may hold half of a surrogate pair itself
    return FieldFault("/" + name.replace("~", "~0").replace("/", "~1"), detail)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        document: object = json.loads(raw.decode(), parse_constant=_refuse_constant, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise InvalidJson from error
    if not isinstance(document, dict):
        raise InvalidJson
    return cast("dict[str, Any]", document)


def _integer(digits: str) -> int | Decimal:
    """An integer; as a decimal where it has more digits than Python reads as one, and than any id may have."""
    return int(digits) if len(digits) <= 1_000 else Decimal(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _texts(value: object) -> Iterator[str]:
    """Every text in a value, however deep; names of fields are no texts."""
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


def _is_clean(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


async def _read(request: Request, limit: int) -> bytes:
    too_large = BodyTooLarge(f"The body may hold at most {limit:,} bytes.")
    if is_too_large(request.headers, limit):
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large
    except ClientDisconnect as error:
        raise BadRequest("The connection was closed before the whole body had arrived.") from error
    return bytes(body)
