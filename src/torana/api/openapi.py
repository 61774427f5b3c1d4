"""The OpenAPI 3.1 document, with what FastAPI cannot know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from torana.api.negotiation import EVENTS
from torana.api.problems import MEDIA_TYPE, body_of, status_of
from torana.api.shapes import (
    ApprovalOfTools,
    DecisionRequest,
    DenialRequest,
    ForkBody,
    MemoryChange,
    MemoryRequest,
    MessageBody,
    PairingRequest,
    ProblemBody,
    RotationRequest,
    ScheduleRequest,
    SkillApproval,
    SkillRequest,
    TokenRequest,
)
from torana.errors import (
    BadRequest,
    BodyTooLarge,
    Forbidden,
    GatewayError,
    RequestTimeout,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)

#: Bodies that FastAPI does not know because it does not parse them.
_REQUESTS = (
    MessageBody,
    ForkBody,
    MemoryRequest,
    MemoryChange,
    TokenRequest,
    RotationRequest,
    PairingRequest,
    DenialRequest,
    ApprovalOfTools,
    SkillRequest,
    SkillApproval,
    ScheduleRequest,
    DecisionRequest,
)

_SCHEMA = "#/components/schemas/{model}"
_EXAMPLE_ID = "4e2f1c1e-8f0a-4c62-9a3b-6d1f0f3c2b71"

#: Every header of an answer that a caller may rely on, with an example.
_HEADERS = {
    "Content-Disposition": ("The name of the file.", 'attachment; filename="ana.jsonl"'),
    "Idempotency-Replayed": ("`true` where the key was known: nothing new was made.", "true"),
    "Location": ("Where it is found, relative to this path.", "v1/turns/turn_0198"),
    "Preference-Applied": ("What of `Prefer` was followed.", "respond-async"),
    "ETag": ("The version of what was sent, for `If-None-Match`.", '"9f86d081884c7d65"'),
    "RateLimit": (
        "The limit nearest to its end: what is left of it, and in how many seconds it is whole again.",
        '"user";r=19;t=42',
    ),
    "RateLimit-Policy": (
        "The limits that apply: messages, or what `qu` says, (`q`) in seconds (`w`); absent where none does.",
        '"user";q=20;w=60, "global";q=100;w=60',
    ),
    "Torana-Budget-Warning": (
        "Budgets that are half spent or more, each with the percent that are (`used`).",
        '"user-usd-day";used=82',
    ),
    "Retry-After": ("Seconds after which to try again.", "5"),
    "WWW-Authenticate": ("What to send (RFC 6750).", 'Bearer realm="torana"'),
    "X-Request-Id": ("The request's id, by which the log knows it.", _EXAMPLE_ID),
}
_OF_PROBLEMS = {
    401: ("WWW-Authenticate",),
    429: ("Retry-After", "RateLimit", "RateLimit-Policy", "Torana-Budget-Warning"),
    503: ("Retry-After",),
}
#: What every endpoint but `/health` may answer.
COMMON = (Unauthorized, Forbidden, GatewayError, Unavailable)
#: What every endpoint that reads a body may answer besides.
OF_BODIES = (BadRequest, RequestTimeout, BodyTooLarge, UnsupportedMediaType)

_EVENTS_EXAMPLE = """\
event: turn.accepted
id: 1-1
data: {"id":"turn_0198","channelId":"ana"}

event: message.delta
id: 1-2
data: {"text":"Hello"}

event: turn.completed
id: 1-3
data: {"reply":"Hello","id":"turn_0198"}

"""
#: A text in quotation marks, or a bare one without any.
_KEY = r'^("([ !#-\[\]-~]|\\["\\]){1,255}"|[!#-~]{1,255})$'

#: The schema is that of one event, as tools read it.
_EVENTS: dict[str, Any] = {
    EVENTS: {
        "schema": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("event", "id", "data")},
            "required": ["event", "id", "data"],
        },
        "example": _EVENTS_EXAMPLE,
    }
}


def openapi_document(app: FastAPI, *, guarded: bool) -> dict[str, Any]:
    """The document of an application that has a token or has none; made once, then kept by it."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app, guarded=guarded)
    return app.openapi_schema


def documented(*kinds: type[GatewayError]) -> dict[int | str, dict[str, Any]]:
    """The responses of an endpoint that answers with these problems."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        status = int(status_of(kind()))
        example = body_of(kind(), request_id=_EXAMPLE_ID)
        schema = {"$ref": _SCHEMA.format(model="ProblemBody")}
        responses[status] = {
            "description": kind().detail,
            "headers": with_headers(*_OF_PROBLEMS.get(status, ())),
            "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
        }
    return responses


def with_headers(*names: str) -> dict[str, Any]:
    """The headers of a response, by reference."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def message_body() -> dict[str, Any]:
    """The body of ``POST /message``, which FastAPI does not know because it does not parse it."""
    return json_body("MessageBody", {"content": "what is 17 % of 2,340", "channelId": "ana"})


def json_body(model: str, example: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """A request body that a handler parses itself; its model is one of ``_REQUESTS``."""
    schema = {"$ref": _SCHEMA.format(model=model)}
    return {"required": required, "content": {"application/json": {"schema": schema, "example": example}}}


def archive_body(model: str | None, example: Mapping[str, Any], *, archives: Iterable[str]) -> dict[str, Any]:
    """A request body that is an archive, or else JSON where there is a model for it."""
    packed = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in archives}
    if model is None:
        return {"required": False, "content": packed}
    body = json_body(model, example)
    return body | {"content": body["content"] | packed}


def message_answer() -> dict[str, Any]:
    """What is more to say of the answer to a message: its other form, and where its turn is found."""
    turn = {"operationId": "turn", "parameters": {"turn_id": "$response.body#/id"}}
    return {
        "headers": with_headers(
            "RateLimit", "RateLimit-Policy", "Torana-Budget-Warning", "Idempotency-Replayed"
        ),
        "content": _EVENTS,
        "links": {"turn": turn | {"description": "The turn that the message made."}},
    }


def events_answer() -> dict[str, Any]:
    """A stream of a turn's events."""
    return {"description": "The events.", "content": _EVENTS}


def message_later() -> dict[str, Any]:
    """The answer to a message that shall be fetched later."""
    schema = {"$ref": _SCHEMA.format(model="TurnBody")}
    return {
        "description": "With `Prefer: respond-async`: it is accepted, and its turn is found at `Location`.",
        "headers": with_headers(
            "Location",
            "Preference-Applied",
            "RateLimit",
            "RateLimit-Policy",
            "Torana-Budget-Warning",
            "Retry-After",
        ),
        "content": {"application/json": {"schema": schema}},
    }


def message_headers() -> list[dict[str, Any]]:
    """The request headers that say how a message is to be answered."""
    told = {
        "Prefer": (
            "`respond-async`: 202 and the turn; `wait=N`: for at most N seconds; `cancel-on-disconnect`.",
            {"type": "string"},
        ),
        "Idempotency-Key": (
            "Your name for the message, 1 to 255 characters: sent again, it is the same turn.",
            {"type": "string", "pattern": _KEY},
        ),
    }
    return [
        {"name": name, "in": "header", "required": False, "schema": schema, "description": text}
        for name, (text, schema) in told.items()
    ]


def _document(app: FastAPI, *, guarded: bool) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        license_info=app.license_info,
        routes=app.routes,
        # Relative to where the document was found, so that it holds under any prefix.
        servers=[{"url": ".", "description": "This gateway."}],
    )
    _complete(document["components"])
    document["security"] = [{"token": []}] if guarded else []
    for operations in document["paths"].values():
        for operation in operations.values():
            if MEDIA_TYPE not in operation["responses"].get("422", {}).get("content", {}):
                operation["responses"].pop("422", None)  # a faulty body is 400 here, a faulty path 404
            operation["responses"] = dict(sorted(operation["responses"].items()))
            for response in operation["responses"].values():
                response.setdefault("headers", {}).update(with_headers("X-Request-Id"))
    return document


def _complete(components: dict[str, Any]) -> None:
    _, ours = models_json_schema(
        [(model, "validation") for model in (*_REQUESTS, ProblemBody)],
        by_alias=True,
        ref_template=_SCHEMA,
    )
    components["schemas"] |= ours["$defs"]
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    components["headers"] = {
        name: {"description": description, "schema": {"type": "string"}, "example": example}
        for name, (description, example) in _HEADERS.items()
    }
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "TORANA_GATEWAY_TOKEN, where it is set, or a token that `POST /v1/tokens` made. "
            "`GET /health` never needs one.",
        }
    }
