"""Write the OpenAPI 3.1 document: FastAPI's, with the request bodies, problems and headers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from torana.api.dependencies import RequiredScopes
from torana.api.negotiation import EVENTS
from torana.api.problems import MEDIA_TYPE, TABLE, body_of
from torana.api.schemas.base import CLEAN, RequestBody, Wire
from torana.api.schemas.contract import ProblemBody
from torana.api.schemas.descriptions import describe_fields
from torana.api.schemas.turns import TurnBody

_Body = TypeVar("_Body", bound=Wire)

_SCHEMA = "#/components/schemas/{model}"
_EXAMPLE_ID = "4e2f1c1e-8f0a-4c62-9a3b-6d1f0f3c2b71"

#: The headers of responses, with examples.
_HEADERS = {
    "Content-Disposition": ("The name of the file.", 'attachment; filename="ana.jsonl"'),
    "Idempotency-Replayed": ("`true` if the `Idempotency-Key` was known. No new turn was created.", "true"),
    "Location": ("The path of the resource, relative to the path of the request.", "v1/turns/turn_0198"),
    "Preference-Applied": ("The preferences of `Prefer` that were applied.", "respond-async"),
    "ETag": ("The version of the list, for `If-None-Match`.", '"9f86d081884c7d65"'),
    "RateLimit": (
        "The most used limit: the remaining quota (`r`), and the seconds until more is available (`t`).",
        '"user";r=19;t=42',
    ),
    "RateLimit-Policy": (
        "The limits that apply: the quota (`q`), in messages or in the unit `qu`, per `w` seconds.",
        '"user";q=20;w=60, "global";q=100;w=60',
    ),
    "Torana-Budget-Warning": (
        "The budgets of which at least half is used, with the used percentage (`used`).",
        '"user-usd-day";used=82',
    ),
    "Retry-After": ("Seconds to wait before the next attempt.", "5"),
    "WWW-Authenticate": ("The required authentication (RFC 6750).", 'Bearer realm="torana"'),
    "X-Request-Id": ("The id of the request, as in the log.", _EXAMPLE_ID),
}
_OF_PROBLEMS = {
    401: ("WWW-Authenticate",),
    429: ("Retry-After", "RateLimit", "RateLimit-Policy", "Torana-Budget-Warning"),
    503: ("Retry-After",),
}
#: The error of each status, for the examples. The first error with the status in the table counts.
_ERRORS = {int(status): kind for kind, (status, _) in reversed(TABLE.items())}
#: The problems of every endpoint but `/health`.
COMMON_PROBLEMS = {
    401: "The request has no valid token in `Authorization: Bearer <token>`.",
    403: "The token may not do this.",
    500: "The gateway has an internal error. Its log has the details under the request's id.",
    503: "The gateway cannot process the request now. `Retry-After` says when to try again.",
}
#: The further problems of every endpoint that reads a JSON body.
BODY_PROBLEMS = {
    400: "The body is not a JSON object, or a field is invalid. `errors` names the invalid fields.",
    408: "The body did not arrive in time.",
    413: "The body is larger than 262,144 bytes.",
    415: "The `Content-Type` of the body is not `application/json`.",
}
#: Resources whose paths are also below the paths of other resources.
_NESTED = frozenset(("approvals", "memories", "usage"))

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
_ACTIVITY_EXAMPLE = """\
event: reset
id: 9f86d081884c-7
data: {}

event: turn.accepted
id: 9f86d081884c-8
data: {"turnId":"turn_0198","sessionId":"ses_0198","channelId":"ana","state":"running"}

"""
#: A quoted string, or a string without quotation marks and spaces.
_KEY = r'^("([ !#-\[\]-~]|\\["\\]){1,255}"|[!#-~]{1,255})$'

#: The schema is the schema of one event.
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
    """Return the document of an application; ``guarded`` if requests need a token."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        license_info=app.license_info,
        routes=app.routes,
        # Relative to the document's own address, so that it is right under any prefix.
        servers=[{"url": ".", "description": "This gateway."}],
    )
    _complete(document["components"])
    document["security"] = [{"token": []}] if guarded else []
    scopes = {route.unique_id: _required_scopes(route) for route in app.routes if isinstance(route, APIRoute)}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["tags"] = [_resource(path)]
            operation["responses"] = _complete_responses(
                operation["responses"], missing_scope=scopes[operation["operationId"]]
            )
    return document


def problem_responses(
    described: Mapping[int, str] | None = None, *, reads_body: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Return the problems of an endpoint: ``described`` by status, and the common ones."""
    return describe_problems(COMMON_PROBLEMS | (BODY_PROBLEMS if reads_body else {}) | dict(described or {}))


def describe_problems(described: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of problems, by status."""
    return {
        status: {
            "description": description,
            "headers": with_headers(*_OF_PROBLEMS.get(status, ())),
            "content": {
                MEDIA_TYPE: {
                    "schema": _reference(ProblemBody),
                    "example": body_of(_ERRORS[status](), request_id=_EXAMPLE_ID),
                }
            },
        }
        for status, description in described.items()
    }


def with_headers(*names: str) -> dict[str, Any]:
    """Return the OpenAPI headers of a response, by reference."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def json_body(model: type[RequestBody], *, required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI request body of a handler that reads its body itself."""
    return {"required": required, "content": {"application/json": {"schema": _reference(model)}}}


def archive_body(model: type[RequestBody] | None, *, archives: Iterable[str]) -> dict[str, Any]:
    """Return the OpenAPI request body of a handler that takes an archive, or the JSON of ``model``."""
    packed = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in archives}
    if model is None:
        return {"required": False, "content": packed}
    body = json_body(model)
    return body | {"content": body["content"] | packed}


def message_answer() -> dict[str, Any]:
    """Return the OpenAPI description of the message response: its event-stream form and its headers."""
    turn = {"operationId": "turn", "parameters": {"turn_id": "$response.body#/id"}}
    return {
        "headers": with_headers(
            "RateLimit", "RateLimit-Policy", "Torana-Budget-Warning", "Idempotency-Replayed"
        ),
        "content": _EVENTS,
        "links": {"turn": turn | {"description": "The turn of the message."}},
    }


def events_answer() -> dict[str, Any]:
    """Return the OpenAPI description of a turn's event stream."""
    return {"description": "The event stream.", "content": _EVENTS}


def activity_answer() -> dict[str, Any]:
    """Return the OpenAPI description of the stream of all events."""
    content = {EVENTS: _EVENTS[EVENTS] | {"example": _ACTIVITY_EXAMPLE}}
    return {"description": "The event stream.", "content": content}


def deferred_message_answer() -> dict[str, Any]:
    """Return the OpenAPI description of the response to `respond-async`."""
    return {
        "description": "With `Prefer: respond-async`: the message is accepted; `Location` is its turn.",
        "headers": with_headers(
            "Location",
            "Preference-Applied",
            "RateLimit",
            "RateLimit-Policy",
            "Torana-Budget-Warning",
            "Retry-After",
        ),
        "content": {"application/json": {"schema": _reference(TurnBody)}},
    }


def message_headers() -> list[dict[str, Any]]:
    """Return the OpenAPI parameters of the message request's headers."""
    headers = {
        "Prefer": (
            (
                "`respond-async`: answer 202 with the turn. `wait=N`: wait for at most N seconds. "
                "`cancel-on-disconnect`: cancel the turn if the client disconnects. "
                "`decide-by-id`: a yes in words approves no call, because the client decides by approval id."
            ),
            {"type": "string"},
        ),
        "Idempotency-Key": (
            "The client's id for the message, 1 to 255 characters. A known key returns the known turn.",
            {"type": "string", "pattern": _KEY},
        ),
    }
    return [
        {"name": name, "in": "header", "required": False, "schema": schema, "description": text}
        for name, (text, schema) in headers.items()
    ]


def _complete_responses(responses: dict[str, Any], *, missing_scope: str) -> dict[str, Any]:
    if MEDIA_TYPE not in responses.get("422", {}).get("content", {}):
        responses.pop("422", None)  # the gateway answers 400 to an invalid body, and 404 to an invalid path
    if missing_scope and responses["403"]["description"] == COMMON_PROBLEMS[403]:
        responses["403"]["description"] = missing_scope
    for response in responses.values():
        response.setdefault("headers", {}).update(with_headers("X-Request-Id"))
    return dict(sorted(responses.items()))


def _required_scopes(route: APIRoute) -> str:
    """Return the description of a missing scope; empty for a path without required scopes."""
    return " ".join(
        dependency.dependency.missing
        for dependency in route.dependencies
        if isinstance(dependency.dependency, RequiredScopes)
    )


def _resource(path: str) -> str:
    """Return the name of the resource that a path belongs to; operations are grouped by it."""
    parts = path.removeprefix("/v1").split("/")[1:]
    return next((part for part in parts if part in _NESTED), parts[0])


def _reference(model: type[Wire]) -> dict[str, str]:
    return {"$ref": _SCHEMA.format(model=model.__name__)}


def _subclasses(model: type[_Body]) -> list[type[_Body]]:
    return [found for one in model.__subclasses__() for found in (one, *_subclasses(one))]


def _complete(components: dict[str, Any]) -> None:
    requests = _subclasses(RequestBody)
    _, ours = models_json_schema(
        [(model, "validation") for model in (*requests, ProblemBody)], by_alias=True, ref_template=_SCHEMA
    )
    for model in requests:
        ours["$defs"][model.__name__]["additionalProperties"] = {"pattern": CLEAN}
    components["schemas"] |= ours["$defs"]
    describe_fields(components["schemas"], _subclasses(Wire))
    for name, example in json.loads(
        files("torana.api.schemas").joinpath("examples.json").read_text("utf-8")
    ).items():
        components["schemas"][name]["examples"] = [example]
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
            "description": "The value of TORANA_GATEWAY_TOKEN, or a token from `POST /v1/tokens`. "
            "`GET /health` needs no token.",
        }
    }
