"""One short handler per endpoint: parse, call, render."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes
from torana.api.access import needs
from torana.api.message import answer_message
from torana.api.openapi import (
    COMMON,
    OF_BODIES,
    documented,
    message_answer,
    message_body,
    message_headers,
    message_later,
    with_headers,
)
from torana.api.services import NO_STORE, Services
from torana.errors import (
    Conflict,
    Erased,
    GatewayError,
    KeyReused,
    ModelFailed,
    NotAcceptable,
    RateLimited,
    TimedOut,
)


def add_contract(router: APIRouter, services: Services) -> None:
    """The three endpoints that were given: frozen and unversioned."""
    _add_health(router, services)
    _add_skills(router, services)
    _add_message(router, services)


def _add_health(router: APIRouter, services: Services) -> None:
    @router.get(
        "/health",
        response_model=shapes.HealthBody,
        response_description="It takes messages.",
        responses=documented(GatewayError)
        | {503: {"model": shapes.HealthBody, "description": "It takes no messages now."}},
        summary="Whether the gateway works; never authenticated",
        openapi_extra={"security": []},
    )
    async def health() -> Response:
        takes_messages, body = await services.health.report()
        return JSONResponse(body, status_code=200 if takes_messages else 503, headers=NO_STORE)


def _add_skills(router: APIRouter, services: Services) -> None:
    @router.get(
        "/skills",
        dependencies=[needs("message", "read", "skills")],
        response_model=list[shapes.SkillBody],
        response_description="The skills, by source and name.",
        responses=documented(*COMMON)
        | {
            200: {"headers": with_headers("ETag")},
            304: {"description": "Nothing changed since that `ETag`.", "headers": with_headers("ETag")},
        },
        summary="The loaded skills",
    )
    async def skills(
        if_none_match: Annotated[
            str, Header(alias="If-None-Match", description="An `ETag` that was sent earlier.")
        ] = "",
    ) -> Response:
        etag, records = services.skills.loaded()
        caching = {"ETag": etag, "Cache-Control": "private, no-cache"}
        if _names(if_none_match, etag):
            return Response(status_code=304, headers=caching)
        return JSONResponse(records, headers=caching)


def _add_message(router: APIRouter, services: Services) -> None:
    @router.post(
        "/message",
        dependencies=[needs("message")],
        response_model=shapes.AnswerBody,
        response_description="The answer.",
        responses={200: message_answer(), 202: message_later()}
        | documented(
            *COMMON,
            *OF_BODIES,
            NotAcceptable,
            Conflict,
            KeyReused,
            Erased,
            RateLimited,
            ModelFailed,
            TimedOut,
        ),
        summary="Send a message and wait for the answer, or watch it come as server-sent events",
        description="With `Accept: text/event-stream` the answer comes as events: `turn.accepted`, "
        "`message.delta`, `tool.started`, `approval.required`, `tool.finished`, and at last `turn.completed` "
        "with what a plain request would have got, or `turn.failed` with a problem. Leaving it does nothing to "
        "the turn, and `GET /v1/turns/{id}/events` goes on where it was left.",
        openapi_extra={"requestBody": message_body(), "parameters": message_headers()},
    )
    async def message(request: Request) -> Response:
        return await answer_message(request, services)


def _names(if_none_match: str, etag: str) -> bool:
    """Whether the header names the entity tag, compared weakly (RFC 9110, 13.1.2)."""
    return if_none_match.strip() == "*" or etag in {
        tag.strip().removeprefix("W/") for tag in if_none_match.split(",")
    }
