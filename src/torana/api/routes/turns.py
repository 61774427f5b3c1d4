"""Turns and their event streams."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from torana.api.dependencies import current_principal, oversight, services_of, slot_of
from torana.api.long_responses import hold_slot_if_long
from torana.api.openapi import events_answer, problem_responses
from torana.api.parameters import (
    INVALID_PAGE,
    After,
    AfterEvent,
    Id,
    LastEventId,
    Limit,
    Since,
    Until,
    one_of_values,
    page_size,
    time_of,
)
from torana.api.request_body import one_of
from torana.api.routes.router import hold_slot, new_router, require_scopes
from torana.api.schemas.turns import CallBody, CallsBody, StepBody, StepsBody, TurnBody, TurnsBody
from torana.api.sse import EventStream, StreamClient
from torana.messages import ID_LIMIT, TURN_STATES
from torana.paging import NUMBER_KEY, cut, read_cursor
from torana.store.rows.reports.turn_lists import TurnFilter

_PROBLEMS = {404: "There is no such turn.", 410: "The turn was erased, with its session or its user."}

_State = Annotated[str, one_of_values("Only turns in this state.", TURN_STATES)]

router = new_router()


@router.get(
    "/v1/turns",
    dependencies=[require_scopes("read")],
    response_description="A page of turns, the newest first.",
    responses=problem_responses({400: "`state`, `since`, `until`, `limit` or `after` is invalid."}),
    summary="List the turns",
)
async def turns(
    request: Request,
    state: _State = "",
    session_id: Annotated[str, Query(alias="sessionId", max_length=100)] = "",
    channel_id: Annotated[str, Query(alias="channelId", max_length=ID_LIMIT)] = "",
    user_id: Annotated[str, Query(alias="userId", max_length=ID_LIMIT)] = "",
    account: Annotated[
        str, Query(description="Only messages that this account of a connector received.", max_length=ID_LIMIT)
    ] = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = "50",
    after: After = "",
) -> TurnsBody:
    which = TurnFilter(
        state=one_of("state", state, TURN_STATES) if state else None,
        session_id=session_id or None,
        channel=channel_id or None,
        user=user_id or None,
        account=account or None,
        since=time_of("since", since),
        until=time_of("until", until),
    )
    services, principal = services_of(request), current_principal(request)
    async with slot_of(request, services.lists):
        page = await services.turns.reader.list_turns(
            principal.view, which, limit=page_size(limit), after=after or None
        )
    return TurnsBody.model_validate(page)


@router.get(
    "/v1/turns/{turn_id}",
    dependencies=[require_scopes("message", "read")],
    response_description="The turn.",
    responses=problem_responses(_PROBLEMS),
    summary="Get a turn: a message and its processing",
)
async def turn(request: Request, turn_id: Id) -> TurnBody:
    services = services_of(request)
    view = current_principal(request).view
    found = await hold_slot_if_long(request, await services.turns.reader.get(view, turn_id))
    approvals = await services.turns.approvals.open_of(view, turn_id) if found.state == "waiting" else ()
    return TurnBody.from_turn(found, approvals)


@router.get(
    "/v1/turns/{turn_id}/steps",
    dependencies=[require_scopes("message", "read")],
    response_description="A page of steps, by their start.",
    responses=problem_responses(_PROBLEMS | {400: INVALID_PAGE}),
    summary="List the steps of a turn with their times",
    description="The waits, model requests and tool calls of each attempt, the approvals and the deliveries. "
    "A crash can lose the times of steps in progress.",
)
async def turn_steps(request: Request, turn_id: Id, limit: Limit = "50", after: After = "") -> StepsBody:
    place = read_cursor(after or None, NUMBER_KEY) or 0
    steps = await services_of(request).turns.reader.steps(current_principal(request).view, turn_id)
    behind = list(enumerate(steps))[place:]
    page = cut(behind, page_size(limit), lambda item: item[0] + 1, NUMBER_KEY)
    return StepsBody(items=[StepBody.from_step(step) for _, step in page.items], next=page.next)


@router.get(
    "/v1/turns/{turn_id}/calls",
    dependencies=[require_scopes("message", "read", unbound="read"), hold_slot()],
    response_description="A page of calls, in order.",
    responses=problem_responses(_PROBLEMS | {400: INVALID_PAGE}),
    summary="List the tool calls of a turn with their arguments, results and approvals",
    description="A cancelled turn keeps neither arguments nor results, except the arguments of calls that "
    "needed approval.",
)
async def turn_calls(request: Request, turn_id: Id, limit: Limit = "50", after: After = "") -> CallsBody:
    place = read_cursor(after or None, NUMBER_KEY) or 0
    services, principal = services_of(request), current_principal(request)
    async with slot_of(request, services.tool_calls):
        calls = await services.turns.reader.calls(principal.view, turn_id)
        behind = list(enumerate(calls))[place:]
        page = cut(
            behind, page_size(limit), lambda item: item[0] + 1, NUMBER_KEY, size=lambda item: item[1].size
        )
        return CallsBody(items=[CallBody.model_validate(call) for _, call in page.items], next=page.next)


@router.get(
    "/v1/turns/{turn_id}/events",
    dependencies=[require_scopes("message", "read")],
    status_code=200,
    response_class=EventStream,
    responses=problem_responses(_PROBLEMS) | {200: events_answer()},
    summary="Stream the events of a turn to its end, from its first event or after a given event",
)
async def turn_events(
    request: Request,
    turn_id: Id,
    last_event_id: LastEventId = "",
    after: AfterEvent = "",
) -> Response:
    services = services_of(request)
    principal = current_principal(request)
    async with slot_of(request, services.stream_starts):
        return EventStream(
            services.turns,
            await services.turns.reader.get(principal.view, turn_id),
            client=StreamClient.of(request),
            keep_alive=services.keep_alive,
            after=last_event_id or after or None,
        )


@router.post(
    "/v1/turns/{turn_id}/cancel",
    dependencies=[require_scopes("message")],
    response_description="The ended turn.",
    responses=problem_responses(_PROBLEMS),
    summary="Cancel a running, waiting or queued turn; an ended turn stays as it is",
)
async def cancel_turn(request: Request, turn_id: Id) -> TurnBody:
    view = current_principal(request).view
    turns = services_of(request).turns
    ended = await hold_slot_if_long(request, await turns.cancel(view, turn_id, act=oversight(request)))
    return TurnBody.from_turn(ended)


@router.post(
    "/v1/turns/{turn_id}/retry",
    dependencies=[require_scopes("message")],
    status_code=202,
    response_description="The turn, queued or running again.",
    responses=problem_responses(
        _PROBLEMS
        | {
            409: "The turn has not failed.",
            429: "A rate limit or a budget is used up, or too many messages wait.",
        }
    ),
    summary="Retry a failed turn; settled steps are not repeated",
    description="Counts as a message for the rate limits. The copy of a failed turn in a fork starts from the "
    "beginning, and also counts for the budgets of messages.",
)
async def retry_turn(request: Request, turn_id: Id) -> TurnBody:
    services = services_of(request)
    principal = current_principal(request)
    failed = await services.turns.reader.get(principal.view, turn_id)
    async with services.rates.count(failed.user, principal.token):
        again = await services.turns.retry(principal.view, turn_id, act=oversight(request))
    return TurnBody.from_turn(again)
