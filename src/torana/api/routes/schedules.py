"""Schedules: reminders and tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Query, Request, Response

from torana.api.dependencies import current_principal, oversight, services_of
from torana.api.openapi import json_body, problem_responses, with_headers
from torana.api.parameters import COUNTS_AS_MESSAGE, RATE_LIMITED, After, Id, Limit, one_of_values, page_size
from torana.api.request_body import named_user, one_of, read_body
from torana.api.routes.router import hold_slot, new_router, require_scopes
from torana.api.schemas.schedules import ScheduleBody, ScheduleRequest, SchedulesBody
from torana.messages import ID_LIMIT, SCHEDULE_STATES, Principal
from torana.schedules import NewSchedule
from torana.store.rows.schedules import Schedule

_PLACE = "/v1/schedules"
_MISSING = "There is no such schedule."
_ENDED = "The schedule has ended."
_NOT_ACTIVE = "The schedule has ended or is paused."

_State = Annotated[str, one_of_values("Only schedules in this state.", SCHEDULE_STATES)]
_User = Annotated[str, Query(alias="userId", description="Only schedules of this user.", max_length=ID_LIMIT)]

router = new_router()


@router.get(
    _PLACE,
    dependencies=[require_scopes("message", "read", unbound="read"), hold_slot()],
    response_description="A page of schedules, the newest first.",
    responses=problem_responses({400: "`state`, `limit` or `after` is invalid."}),
    summary="List your schedules; the operator sees the schedules of all users",
)
async def schedules(
    request: Request, state: _State = "", user_id: _User = "", limit: Limit = "50", after: After = ""
) -> SchedulesBody:
    page = await services_of(request).schedules.list_schedules(
        current_principal(request).view,
        state=one_of("state", state, SCHEDULE_STATES) if state else None,
        user=user_id or None,
        limit=page_size(limit),
        after=after or None,
    )
    return SchedulesBody.model_validate(page)


@router.post(
    _PLACE,
    dependencies=[require_scopes("message")],
    status_code=201,
    response_description="The new schedule.",
    responses=problem_responses(
        {
            400: "A field is invalid, or (`schedule_invalid`) the time or the rule cannot be scheduled.",
            403: "The token lacks the scope `message`, or may not name this `userId`.",
            409: "The user has the maximum number of schedules.",
            429: RATE_LIMITED,
        },
        reads_body=True,
    )
    | {201: {"headers": with_headers("Location")}},
    summary="Schedule a reminder or a task for the agent, once or by a rule",
    description=f"{COUNTS_AS_MESSAGE} A refused schedule counts, too: reading its time can take long.",
    openapi_extra={"requestBody": json_body(ScheduleRequest)},
)
async def schedule_new(request: Request, response: Response) -> ScheduleBody:
    body = await read_body(request, ScheduleRequest)
    services, principal = services_of(request), current_principal(request)
    new = _new_schedule(body, principal)
    await services.rates.take(principal.user, principal.token)
    made = await services.schedules.make(new, act=oversight(request))
    response.headers["Location"] = f"schedules/{made.id}"
    return ScheduleBody.model_validate(made)


@router.get(
    f"{_PLACE}/{{schedule_id}}",
    dependencies=[require_scopes("message", "read", unbound="read")],
    response_description="The schedule.",
    responses=problem_responses({404: _MISSING}),
    summary="Get a schedule with its next time",
)
async def schedule(request: Request, schedule_id: Id) -> ScheduleBody:
    found = await services_of(request).schedules.get(current_principal(request).view, schedule_id)
    return ScheduleBody.model_validate(found)


@router.delete(
    f"{_PLACE}/{{schedule_id}}",
    dependencies=[require_scopes("message", unbound="read")],
    response_description="The removed schedule.",
    responses=problem_responses({404: _MISSING}),
    summary="Remove a schedule; a turn that it has already started continues",
)
async def remove_schedule(request: Request, schedule_id: Id) -> ScheduleBody:
    return await _changed(request, services_of(request).schedules.remove, schedule_id)


@router.post(
    f"{_PLACE}/{{schedule_id}}/pause",
    dependencies=[require_scopes("message", unbound="read")],
    response_description="The paused schedule.",
    responses=problem_responses({404: _MISSING, 409: _ENDED}),
    summary="Pause a schedule until it is resumed",
)
async def pause_schedule(request: Request, schedule_id: Id) -> ScheduleBody:
    return await _changed(request, services_of(request).schedules.pause, schedule_id)


@router.post(
    f"{_PLACE}/{{schedule_id}}/resume",
    dependencies=[require_scopes("message", unbound="read")],
    response_description="The active schedule.",
    responses=problem_responses({404: _MISSING, 409: _ENDED}),
    summary="Resume a schedule with its next time; a one-off schedule that was missed runs now",
)
async def resume_schedule(request: Request, schedule_id: Id) -> ScheduleBody:
    return await _changed(request, services_of(request).schedules.resume, schedule_id)


@router.post(
    f"{_PLACE}/{{schedule_id}}/run",
    dependencies=[require_scopes("message", unbound="read")],
    response_description="The schedule, which is due now.",
    responses=problem_responses({404: _MISSING, 409: _NOT_ACTIVE, 429: RATE_LIMITED}),
    summary="Run an active schedule now; a repeating schedule continues, and a one-off schedule ends",
    description=COUNTS_AS_MESSAGE,
)
async def run_schedule(request: Request, schedule_id: Id) -> ScheduleBody:
    services, principal = services_of(request), current_principal(request)
    async with services.rates.count(principal.user, principal.token):
        return await _changed(request, services.schedules.run_now, schedule_id)


async def _changed(
    request: Request, change: Callable[..., Awaitable[Schedule]], schedule_id: str
) -> ScheduleBody:
    """Return the schedule after the change."""
    changed = await change(current_principal(request).view, schedule_id, act=oversight(request))
    return ScheduleBody.model_validate(changed)


def _new_schedule(body: ScheduleRequest, principal: Principal) -> NewSchedule:
    """Return the schedule to make. Raises ``WrongUser`` or ``ScopeMissing`` for its user."""
    return NewSchedule(
        owner=principal.owner,
        user=named_user(body.user_id or None, principal),
        token=principal.token,
        channel=body.channel_id or None,
        text=body.text,
        kind=body.kind or "remind",
        at=body.at,
        rule=body.rule,
        timezone=body.timezone,
        missed=body.missed or "run_once",
    )
