"""One short handler per endpoint: parse, call, render."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.responses import JSONResponse

from torana.api import wire
from torana.api.health import Health
from torana.api.negotiation import wants_events
from torana.api.openapi import COMMON, documented, message_answer, message_body, with_headers
from torana.api.problems import error_from
from torana.api.sse import EventStream
from torana.errors import (
    BadRequest,
    BodyTooLarge,
    Draining,
    GatewayError,
    ModelFailed,
    NotAcceptable,
    NotFound,
    RateLimited,
    RequestTimeout,
    TimedOut,
    UnsupportedMediaType,
    WaitExpired,
)
from torana.limits import MessageRates, headers
from torana.messages import Principal, Turn
from torana.turns import Turns

_NO_STORE = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the handlers call, and the seconds they allow."""

    turns: Turns
    rates: MessageRates
    health: Health
    #: Gives an entity tag and the records of the loaded skills.
    skills: Callable[[], tuple[str, Sequence[Mapping[str, Any]]]]
    #: How long a plain request waits for its answer.
    wait: float
    #: How long a body may take to arrive.
    body_timeout: float = 30.0
    #: How long an event stream may be silent.
    keep_alive: float = 15.0


def add_contract(router: APIRouter, services: Services) -> None:
    """The three endpoints that were given: frozen and unversioned."""

    @router.get(
        "/health",
        response_model=wire.HealthBody,
        response_description="It takes messages.",
        responses=documented(GatewayError)
        | {503: {"model": wire.HealthBody, "description": "It takes no messages now."}},
        summary="Whether the gateway works; never authenticated",
        openapi_extra={"security": []},
    )
    async def health() -> Response:
        takes_messages, body = await services.health.report()
        return JSONResponse(body, status_code=200 if takes_messages else 503, headers=_NO_STORE)

    @router.get(
        "/skills",
        response_model=list[wire.SkillBody],
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
        etag, records = services.skills()
        caching = {"ETag": etag, "Cache-Control": "private, no-cache"}
        if _names(if_none_match, etag):
            return Response(status_code=304, headers=caching)
        return JSONResponse(records, headers=caching)

    @router.post(
        "/message",
        response_model=wire.AnswerBody,
        response_description="The answer.",
        responses={200: message_answer()}
        | documented(
            *COMMON,
            BadRequest,
            NotAcceptable,
            RequestTimeout,
            BodyTooLarge,
            UnsupportedMediaType,
            RateLimited,
            ModelFailed,
            TimedOut,
        ),
        summary="Send a message and wait for the answer, or watch it come as server-sent events",
        description="With `Accept: text/event-stream` the answer comes as events: `turn.accepted`, "
        "`message.delta`, `tool.started`, `tool.finished`, and at last `turn.completed` with what a plain "
        "request would have got, or `turn.failed` with a problem. Leaving it does nothing to the turn.",
        openapi_extra={"requestBody": message_body()},
    )
    async def message(request: Request) -> Response:
        as_events = wants_events(", ".join(request.headers.getlist("accept")))
        principal: Principal = request.state.principal
        document = await wire.read_object(request, within=services.body_timeout)
        inbound = wire.parse_message(document, principal)
        services.turns.check_accepting()
        limits = headers(services.rates.take(inbound.user))
        turn = await services.turns.accept(inbound)
        if as_events:
            return EventStream(
                services.turns,
                turn,
                request_id=request.state.request_id,
                keep_alive=services.keep_alive,
                headers=limits,
            )
        ended = await _awaited(services, turn)
        return JSONResponse(wire.answer(ended), headers=limits | _NO_STORE)


def add_turns(router: APIRouter, services: Services) -> None:
    """Turns as resources."""

    @router.get(
        "/v1/turns/{turn_id}",
        response_model=wire.TurnBody,
        response_description="The turn as it stands.",
        responses=documented(*COMMON, NotFound),
        summary="A message and what became of it",
    )
    async def turn(request: Request, turn_id: Annotated[str, Path(max_length=100)]) -> Response:
        principal: Principal = request.state.principal
        found = await services.turns.get(principal.owner, turn_id)
        return JSONResponse(wire.turn_body(found), headers=_NO_STORE)


async def _awaited(services: Services, turn: Turn) -> Turn:
    """The completed turn. Raises what it failed with, or what ended the wait for it, naming the turn."""
    place = f"v1/turns/{turn.id}"
    try:
        ended = await asyncio.wait_for(services.turns.ended(turn), services.wait)
    except TimeoutError:
        raise WaitExpired(
            f"The answer was not there within {services.wait:g} s (TORANA_WAIT). The turn goes on: GET {place}",
            extra={"instance": place},
        ) from None
    except Draining as error:
        raise Draining(error.detail, extra={"instance": place}) from None
    if ended.failure is not None:
        raise error_from(ended.failure)
    return ended


def _names(if_none_match: str, etag: str) -> bool:
    """Whether the header names the entity tag, compared weakly (RFC 9110, 13.1.2)."""
    return if_none_match.strip() == "*" or etag in {
        tag.strip().removeprefix("W/") for tag in if_none_match.split(",")
    }
