"""Turns as resources."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes, wire
from torana.api.access import needs, oversight, who
from torana.api.openapi import COMMON, documented, events_answer
from torana.api.parameters import Id
from torana.api.services import NO_STORE, Services
from torana.api.sse import EventStream
from torana.errors import Conflict, Erased, NotFound, RateLimited


def add_turns(router: APIRouter, services: Services) -> None:
    """``/v1/turns/{id}`` and what can be done to a turn."""

    @router.get(
        "/v1/turns/{turn_id}",
        dependencies=[needs("message", "read")],
        response_model=shapes.TurnBody,
        response_description="The turn as it stands.",
        responses=documented(*COMMON, NotFound, Erased),
        summary="A message and what became of it",
    )
    async def turn(request: Request, turn_id: Id) -> Response:
        view = who(request).view
        found = await services.turns.get(view, turn_id)
        asked = await services.turns.approvals.open_of(view, turn_id) if found.state == "waiting" else ()
        return JSONResponse(wire.turn_body(found, asked), headers=NO_STORE)

    @router.get(
        "/v1/turns/{turn_id}/events",
        dependencies=[needs("message", "read")],
        status_code=200,
        response_class=EventStream,
        responses=documented(*COMMON, NotFound, Erased) | {200: events_answer()},
        summary="What happens in a turn, from its beginning or behind an event that was seen, to its end",
    )
    async def turn_events(
        request: Request,
        turn_id: Id,
        last_event_id: Annotated[str, Header(alias="Last-Event-ID", description="The last one seen.")] = "",
        after: Annotated[str, Query(description="The same, where no header can be sent.")] = "",
    ) -> Response:
        found = await services.turns.get(who(request).view, turn_id)
        return EventStream(
            services.turns,
            found,
            request_id=request.state.request_id,
            keep_alive=services.keep_alive,
            after=last_event_id or after or None,
        )

    @router.post(
        "/v1/turns/{turn_id}/cancel",
        dependencies=[needs("message")],
        response_model=shapes.TurnBody,
        response_description="The turn as it ended.",
        responses=documented(*COMMON, NotFound, Erased),
        summary="Stop a turn, whether it runs or waits; one that has ended is left as it is",
    )
    async def cancel_turn(request: Request, turn_id: Id) -> Response:
        ended = await services.turns.cancel(who(request).view, turn_id, act=oversight(request))
        return JSONResponse(wire.turn_body(ended), headers=NO_STORE)

    @router.post(
        "/v1/turns/{turn_id}/retry",
        dependencies=[needs("message")],
        status_code=202,
        response_model=shapes.TurnBody,
        response_description="The turn, queued or running again.",
        responses=documented(*COMMON, NotFound, Erased, Conflict, RateLimited),
        summary="Run a failed turn again; what it had settled is not repeated",
        description="Counts as a message of its minute.",
    )
    async def retry_turn(request: Request, turn_id: Id) -> Response:
        principal = who(request)
        failed = await services.turns.get(principal.view, turn_id)
        with services.rates.counted(failed.user, principal.token):
            again = await services.turns.retry(principal.view, turn_id, act=oversight(request))
        return JSONResponse(wire.turn_body(again), status_code=202, headers=NO_STORE)
