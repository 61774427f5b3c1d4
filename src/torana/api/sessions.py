"""Sessions as resources."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes, wire
from torana.api.access import needs, oversight, who
from torana.api.export import ExportStream, export_answer
from torana.api.openapi import COMMON, OF_BODIES, documented, json_body
from torana.api.parameters import After, Id, Limit
from torana.api.services import NO_STORE, Services
from torana.errors import BadRequest, Conflict, NotFound, RateLimited
from torana.sessions.export import Format, record
from torana.sessions.listing import Session
from torana.store.deletion import Deleted

_FORK = {"turnId": "turn_0198", "channelId": "another-try"}


def add_sessions(router: APIRouter, services: Services) -> None:
    """``/v1/sessions``: what was said, by session."""
    _add_reading(router, services)
    _add_changing(router, services)


def _add_reading(router: APIRouter, services: Services) -> None:
    @router.get(
        "/v1/sessions",
        dependencies=[needs("read")],
        response_model=shapes.SessionsBody,
        response_description="A page of sessions, the newest first.",
        responses=documented(*COMMON, BadRequest),
        summary="The sessions",
    )
    async def sessions(
        request: Request,
        channel_id: Annotated[str, Query(alias="channelId", max_length=256)] = "",
        user_id: Annotated[str, Query(alias="userId", max_length=256)] = "",
        limit: Limit = "50",
        after: After = "",
    ) -> Response:
        page = await services.sessions.listed(
            who(request).view,
            channel=channel_id or None,
            user=user_id or None,
            limit=wire.page_size(limit),
            after=after or None,
        )
        items = [session_body(item) for item in page.items]
        return JSONResponse({"items": items, "next": page.next}, headers=NO_STORE)

    @router.get(
        "/v1/sessions/{session_id}",
        dependencies=[needs("read")],
        response_model=shapes.SessionBody,
        response_description="The session.",
        responses=documented(*COMMON, NotFound),
        summary="A session",
    )
    async def session(request: Request, session_id: Id) -> Response:
        found = await services.sessions.get(who(request).view, session_id)
        return JSONResponse(session_body(found), headers=NO_STORE)

    @router.get(
        "/v1/sessions/{session_id}/messages",
        dependencies=[needs("read")],
        response_model=shapes.MessagesBody,
        response_description="A page of messages, the oldest first.",
        responses=documented(*COMMON, BadRequest, NotFound),
        summary="What was said in a session",
    )
    async def session_messages(
        request: Request, session_id: Id, limit: Limit = "50", after: After = ""
    ) -> Response:
        page = await services.sessions.messages(
            who(request).view, session_id, limit=wire.page_size(limit), after=after or None
        )
        items = [record(item) for item in page.items]
        return JSONResponse({"items": items, "next": page.next}, headers=NO_STORE)

    @router.get(
        "/v1/sessions/{session_id}/export",
        dependencies=[needs("read")],
        status_code=200,
        response_class=ExportStream,
        responses=documented(*COMMON, BadRequest, NotFound) | {200: export_answer()},
        summary="All that was said in a session, to take away",
    )
    async def export_session(
        request: Request,
        session_id: Id,
        form: Annotated[
            Format,
            Query(alias="format", description="`jsonl`: a message object per line; `markdown`: to read."),
        ] = "jsonl",
    ) -> Response:
        found = await services.sessions.get(who(request).view, session_id)
        return ExportStream(found, form, services.sessions.pages(found.owner, found.id))


def _add_changing(router: APIRouter, services: Services) -> None:
    @router.post(
        "/v1/sessions/{session_id}/fork",
        dependencies=[needs("message", unbound="read")],
        status_code=201,
        response_model=shapes.SessionBody,
        response_description="The new session.",
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict, RateLimited),
        summary="A new session that begins as a copy of this one",
        description="The ended turns up to and with `turnId` (the last ended one) are copied under new ids; "
        "from there the two go on separately. The agent remembers in the copy what it did in the original. "
        "Counts as a message of its minute.",
        openapi_extra={"requestBody": json_body("ForkBody", _FORK, required=False)},
    )
    async def fork_session(request: Request, session_id: Id) -> Response:
        document = await wire.optional_object(request, within=services.body_timeout)
        turn_id, channel = wire.text(document, "turnId"), wire.identifier(document, "channelId")
        principal = who(request)
        with services.rates.counted(principal.user, principal.token):
            made = await services.changes.fork(
                principal.view, session_id, turn_id=turn_id, channel=channel, act=oversight(request)
            )
        return JSONResponse(session_body(made), status_code=201, headers=NO_STORE)

    @router.post(
        "/v1/sessions/{session_id}/reset",
        dependencies=[needs("message", unbound="read")],
        response_model=shapes.SessionBody,
        response_description="The session.",
        responses=documented(*COMMON, NotFound),
        summary="Show the agent nothing any more of what was said in a session so far; it stays written",
    )
    async def reset_session(request: Request, session_id: Id) -> Response:
        session = await services.changes.reset(who(request).view, session_id, act=oversight(request))
        return JSONResponse(session_body(session), headers=NO_STORE)

    @router.delete(
        "/v1/sessions/{session_id}",
        dependencies=[needs("message", unbound="read")],
        response_model=shapes.DeletedBody,
        response_description="What was deleted.",
        responses=documented(*COMMON, NotFound, Conflict),
        summary="Delete a session and all that was said in it",
        description="Turns that run or wait are cancelled first. `GET /v1/turns/{id}` answers 410 for its "
        "turns from then on; a message that comes later begins a new session in the channel.",
    )
    async def delete_session(request: Request, session_id: Id) -> Response:
        deleted = await services.changes.delete(who(request).view, session_id, act=oversight(request))
        return JSONResponse(_deleted_body(session_id, deleted), headers=NO_STORE)


def session_body(session: Session) -> dict[str, Any]:
    """A session as a resource."""
    return {
        "id": session.id,
        "owner": session.owner,
        "channelId": session.channel,
        "title": session.title,
        "turns": session.turns,
        "createdAt": session.created_at.isoformat(),
        "updatedAt": session.updated_at.isoformat(),
    }


def _deleted_body(session_id: str, deleted: Deleted) -> dict[str, Any]:
    """What was deleted of a session."""
    return {"id": session_id, "turns": len(deleted.turns), "idempotencyKeys": deleted.keys}
