"""The stream of all events of the gateway."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from torana.api.activity_stream import ActivityStream
from torana.api.dependencies import current_principal, services_of
from torana.api.openapi import activity_answer, problem_responses
from torana.api.parameters import AfterEvent, LastEventId, bounded_number
from torana.api.routes.router import new_router, require_scopes

#: Maximum seconds of a stream; the client then continues with `Last-Event-ID`.
_LONGEST = 3_600

router = new_router()


@router.get(
    "/v1/events",
    dependencies=[require_scopes("message", "read", unbound="read")],
    status_code=200,
    response_class=ActivityStream,
    responses=problem_responses({400: "`seconds` is invalid."}) | {200: activity_answer()},
    summary="Stream the events of all turns, approvals and deliveries that the token may see",
    description="The events are `turn.accepted`, `turn.started`, `turn.ended`, `approval.required`, "
    "`approval.decided`, `delivery.ended` and, for the scope `admin`, `connector.changed`. Their data has ids "
    "and states; the resources have the rest. The first event is `reset` unless the stream continues after "
    "`Last-Event-ID` without a gap; it also comes if the client is too slow or events of another replica are "
    "missing. After a `reset`, load the lists again. The stream ends when the token expires or is revoked.",
)
async def events(
    request: Request,
    last_event_id: LastEventId = "",
    after: AfterEvent = "",
    seconds: Annotated[
        str,
        Query(
            description=f"The time after which the stream ends, at most {_LONGEST:,} seconds.",
            max_length=20,
            json_schema_extra={"pattern": "^[0-9]+$"},
        ),
    ] = str(_LONGEST),
) -> Response:
    limit = bounded_number("seconds", seconds, 0, _LONGEST)
    services, principal = services_of(request), current_principal(request)

    async def is_valid() -> bool:
        return await services.people.tokens.is_active(principal)

    return ActivityStream(
        services.turns.live.activity.follow(principal.view, after=last_event_id or after or None),
        is_valid=is_valid,
        keep_alive=services.keep_alive,
        seconds=limit,
    )
