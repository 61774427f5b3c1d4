"""What travels: request bodies parsed once, and answers in the contract's shape."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Annotated, Any, Literal, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
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
    UnsupportedMediaType,
)
from torana.messages import CONTENT_LIMIT, ID_LIMIT, Inbound, Principal, Turn, TurnState

#: So that 10,000 characters fit however they are escaped.
BODY_LIMIT = 256 * 1024

#: No U+0000; and besides that something that is not blank.
_CLEAN = r"^[^\u0000]*$"
_TEXT = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"

Id = Annotated[str, Field(max_length=ID_LIMIT, pattern=_CLEAN)] | int | None


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class MessageBody(_Wire):
    """A message to the agent. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": _CLEAN}})

    content: Annotated[
        str, Field(description="The message.", min_length=1, max_length=CONTENT_LIMIT, pattern=_TEXT)
    ]
    channel_id: Annotated[
        Id,
        Field(
            description="The session that the message continues; without it the message starts one of its own. "
            "An integer is its decimal string.",
        ),
    ] = None
    user_id: Annotated[
        Id,
        Field(description="Who speaks: enables limits and memory per user. An integer is its decimal string."),
    ] = None


class UsageBody(_Wire):
    """What a turn consumed; the cost is 0 where the model's price is not known."""

    input_tokens: int
    output_tokens: int
    cost_usd: float


class AnswerBody(_Wire):
    """The agent's answer to a message."""

    reply: str
    id: str
    channel_id: str
    user_id: str | None
    session_id: str
    status: Literal["completed"]
    model: str
    usage: UsageBody
    created_at: AwareDatetime


class FailureBody(_Wire):
    """Why a turn failed."""

    code: str
    detail: str


class TurnBody(_Wire):
    """A message and what became of it so far."""

    id: str
    channel_id: str
    user_id: str | None
    session_id: str
    status: TurnState
    reply: str | None
    model: str | None
    usage: UsageBody
    error: FailureBody | None
    created_at: AwareDatetime
    ended_at: AwareDatetime | None


class ProblemFault(_Wire):
    """A field at fault: a JSON pointer and what is wrong there."""

    pointer: str
    detail: str


class ProblemBody(_Wire):
    """An error (RFC 9457): ``error`` is a short wording, ``code`` is stable."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    error: str
    code: str
    request_id: str
    errors: list[ProblemFault] | None = None
    retry_after_ms: int | None = None
    violated_policies: list[str] | None = None


class SkillCounts(BaseModel):
    """How many skills are loaded, by source."""

    core: int
    user: int


class HealthBody(BaseModel):
    """Whether the gateway works."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["ok", "starting", "degraded", "draining"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    uptime: Annotated[int, Field(ge=0, description="Whole seconds since start.")]
    memory: Annotated[str, Field(pattern=r"^\d+MB$", description="Resident memory.")]
    skills: SkillCounts
    connectors: Annotated[list[str], Field(description="The active ones, by name.")]


class Missing(_Wire):
    """What a skill needs and has not got: environment variables and programs."""

    env: list[str]
    bins: list[str]


class SkillBody(_Wire):
    """A loaded skill."""

    slug: str
    title: str
    source: Literal["core", "user"]
    description: str
    requires_auth: Annotated[bool, Field(description="Whether it declares credentials it needs.")]
    version: str | None
    license: str | None
    eligible: Annotated[bool, Field(description="Whether all that it needs is there.")]
    missing: Missing
    tags: list[str]
    digest: str


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


def turn_body(turn: Turn) -> dict[str, Any]:
    """A turn as a resource, ended or not."""
    return answer(turn) | {
        "reply": turn.reply,
        "model": turn.model,
        "error": turn.failure and {"code": turn.failure.code, "detail": turn.failure.detail},
        "endedAt": turn.ended_at and turn.ended_at.isoformat(),
    }


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
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType
    try:
        async with asyncio.timeout(within):
            raw = await _read(request)
    except TimeoutError:
        # The rest of the body is still to come: nothing else can be asked on this connection.
        raise RequestTimeout(headers={"Connection": "close"}) from None
    document = _parsed(raw)
    for name, value in document.items():
        if isinstance(value, str) and not _is_clean(value):
            raise InvalidText(faults=[_fault(name, "holds U+0000 or half of a surrogate pair")])
    return document


def is_too_large(headers: Headers) -> bool:
    """Whether the headers announce a body over the limit."""
    length = headers.get("content-length", "")
    # Python converts no number of thousands of digits.
    return length.isdecimal() and (len(length) > 18 or int(length) > BODY_LIMIT)


def parse_message(document: dict[str, Any], principal: Principal) -> Inbound:
    """The message of a request body, by the contract's rules."""
    return Inbound(
        owner=principal.owner,
        principal=principal.name,
        content=_content(document.get("content")),
        channel=_identifier(document, "channelId"),
        user=_identifier(document, "userId"),
    )


def _content(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidContent(faults=[_fault("content", "must be a string")])
    if len(value) > CONTENT_LIMIT:
        raise ContentTooLong(
            f"`content` has {len(value):,} characters; at most {CONTENT_LIMIT:,} are taken. Split the message.",
            faults=[_fault("content", f"has {len(value)} characters, more than {CONTENT_LIMIT}")],
        )
    if not value.strip():
        raise InvalidContent(faults=[_fault("content", "must not be blank")])
    return value


def _identifier(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise InvalidField(faults=[_fault(name, "must be a string or an integer")])
    text = str(value)
    if len(text) > ID_LIMIT:
        raise InvalidField(faults=[_fault(name, f"must have at most {ID_LIMIT} characters")])
    return text


def _fault(name: str, detail: str) -> FieldFault:
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


def _is_clean(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


async def _read(request: Request) -> bytes:
    if is_too_large(request.headers):
        raise BodyTooLarge
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_LIMIT:
                raise BodyTooLarge
    except ClientDisconnect as error:
        raise BadRequest("The connection was closed before the whole body had arrived.") from error
    return bytes(body)
