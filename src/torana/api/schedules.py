"""Reminders and scheduled tasks as resources."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes, wire
from torana.api.access import needs, oversight, who
from torana.api.openapi import COMMON, OF_BODIES, documented, json_body, with_headers
from torana.api.parameters import After, Id, Limit
from torana.api.services import NO_STORE, Services
from torana.errors import BadRequest, Conflict, NotFound
from torana.messages import ID_LIMIT, Principal
from torana.schedules import NewSchedule
from torana.store.schedules import MISSED_POLICIES, SCHEDULE_KINDS, SCHEDULE_STATES, Schedule

_PLACE = "/v1/schedules"
_EXAMPLE = {"text": "call Ana", "at": "tomorrow at 9", "channelId": "ana"}

_State = Annotated[
    str,
    Query(
        description="Only those in this state.",
        max_length=20,
        json_schema_extra={"enum": ["", *SCHEDULE_STATES]},
    ),
]
_User = Annotated[str, Query(alias="userId", description="Only those of this user.", max_length=ID_LIMIT)]


def add_schedules(router: APIRouter, services: Services) -> None:
    """``/v1/schedules``: all of an owner's."""

    @router.get(
        _PLACE,
        dependencies=[needs("message", "read", unbound="read")],
        response_model=shapes.SchedulesBody,
        response_description="A page of schedules, the newest first.",
        responses=documented(*COMMON, BadRequest),
        summary="Reminders and scheduled tasks: yours, or everybody's for the operator",
    )
    async def schedules(
        request: Request, state: _State = "", user_id: _User = "", limit: Limit = "50", after: After = ""
    ) -> Response:
        page = await services.schedules.listed(
            who(request).view,
            state=wire.one_of("state", state, SCHEDULE_STATES) if state else None,
            user=user_id or None,
            limit=wire.page_size(limit),
            after=after or None,
        )
        items = [schedule_body(schedule) for schedule in page.items]
        return JSONResponse({"items": items, "next": page.next}, headers=NO_STORE)

    @router.post(
        _PLACE,
        dependencies=[needs("message")],
        status_code=201,
        response_model=shapes.ScheduleBody,
        response_description="It is scheduled.",
        responses=documented(*COMMON, *OF_BODIES, Conflict) | {201: {"headers": with_headers("Location")}},
        summary="Say something at a time, or have the agent do it, once or by a rule",
        openapi_extra={"requestBody": json_body("ScheduleRequest", _EXAMPLE)},
    )
    async def schedule_new(request: Request) -> Response:
        document = await wire.read_object(request, within=services.body_timeout)
        made = await services.schedules.make(_parse(document, who(request)), act=oversight(request))
        place = {"Location": f"schedules/{made.id}"}
        return JSONResponse(schedule_body(made), status_code=201, headers=place | NO_STORE)


def add_schedule(router: APIRouter, services: Services) -> None:
    """``/v1/schedules/{schedule_id}``: one of them."""

    @router.get(
        f"{_PLACE}/{{schedule_id}}",
        dependencies=[needs("message", "read", unbound="read")],
        response_model=shapes.ScheduleBody,
        response_description="The schedule as it stands.",
        responses=documented(*COMMON, NotFound),
        summary="A reminder or scheduled task, and when it comes next",
    )
    async def schedule(request: Request, schedule_id: Id) -> Response:
        found = await services.schedules.get(who(request).view, schedule_id)
        return JSONResponse(schedule_body(found), headers=NO_STORE)

    @router.delete(
        f"{_PLACE}/{{schedule_id}}",
        dependencies=[needs("message", unbound="read")],
        response_model=shapes.ScheduleBody,
        response_description="What was removed.",
        responses=documented(*COMMON, NotFound),
        summary="Remove a schedule; what it has begun goes on",
    )
    async def remove_schedule(request: Request, schedule_id: Id) -> Response:
        gone = await services.schedules.remove(who(request).view, schedule_id, act=oversight(request))
        return JSONResponse(schedule_body(gone), headers=NO_STORE)

    @router.post(
        f"{_PLACE}/{{schedule_id}}/pause",
        dependencies=[needs("message", unbound="read")],
        response_model=shapes.ScheduleBody,
        response_description="It rests.",
        responses=documented(*COMMON, NotFound, Conflict),
        summary="Let a schedule rest until it is resumed",
    )
    async def pause_schedule(request: Request, schedule_id: Id) -> Response:
        paused = await services.schedules.pause(who(request).view, schedule_id, act=oversight(request))
        return JSONResponse(schedule_body(paused), headers=NO_STORE)

    @router.post(
        f"{_PLACE}/{{schedule_id}}/resume",
        dependencies=[needs("message", unbound="read")],
        response_model=shapes.ScheduleBody,
        response_description="It goes on.",
        responses=documented(*COMMON, NotFound, Conflict),
        summary="Let a schedule go on with its next time; what was due once meanwhile comes now",
    )
    async def resume_schedule(request: Request, schedule_id: Id) -> Response:
        resumed = await services.schedules.resume(who(request).view, schedule_id, act=oversight(request))
        return JSONResponse(schedule_body(resumed), headers=NO_STORE)


def schedule_body(schedule: Schedule) -> dict[str, Any]:
    """A schedule as a resource."""
    return {
        "id": schedule.id,
        "kind": schedule.kind,
        "text": schedule.text,
        "rule": schedule.cron,
        "timezone": schedule.timezone,
        "missed": schedule.missed,
        "state": schedule.state,
        "dueAt": schedule.due_at and schedule.due_at.isoformat(),
        "reason": schedule.reason,
        "failures": schedule.failures,
        "channelId": schedule.channel,
        "userId": schedule.user,
        "account": schedule.account,
        "lastDueAt": schedule.dealt_with and schedule.dealt_with.isoformat(),
        "turnId": schedule.turn_id,
        "createdAt": schedule.created_at.isoformat(),
    }


def _parse(document: dict[str, Any], principal: Principal) -> NewSchedule:
    """What is to be scheduled. Raises ``InvalidField``, and ``WrongUser`` or ``ScopeMissing`` as a message."""
    text = wire.text(document, "text")
    if text is None:
        raise wire.wrong("text", "must be a string")
    return NewSchedule(
        owner=principal.owner,
        user=wire.named_user(document, principal),
        token=principal.token,
        channel=wire.identifier(document, "channelId"),
        text=text,
        kind=wire.one_of("kind", document.get("kind") or "remind", SCHEDULE_KINDS),
        at=wire.text(document, "at"),
        rule=wire.text(document, "rule"),
        timezone=wire.text(document, "timezone"),
        missed=wire.one_of("missed", document.get("missed") or "run_once", MISSED_POLICIES),
    )
