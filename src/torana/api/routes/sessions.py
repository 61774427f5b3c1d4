"""Sessions, their messages, and the search over messages."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Query, Request, Response

from torana.api.dependencies import check_token, current_principal, oversight, services_of, slot_of
from torana.api.export_stream import ExportStream, export_answer
from torana.api.openapi import json_body, problem_responses
from torana.api.parameters import RATE_LIMITED, After, Id, Limit, page_size
from torana.api.request_body import one_of, read_body, read_optional_body
from torana.api.routes.router import hold_slot, new_router, require_scopes
from torana.api.schemas.search import SearchBody
from torana.api.schemas.turns import (
    DeletedBody,
    ForkBody,
    MessagesBody,
    SessionBody,
    SessionChange,
    SessionsBody,
)
from torana.messages import ExportFormat
from torana.paging import ORDERS
from torana.turns.session_changes import UNCHANGED, SessionValues

_MISSING = "There is no such session."

#: Maximum number of hits on a page of the search; each needs its text.
_HITS = 50

_Archived = Annotated[
    str,
    Query(
        description="`true`: only archived sessions; `false`: only others. Without it, both.",
        max_length=5,
        json_schema_extra={"enum": ["", "true", "false"]},
    ),
]

_Order = Annotated[
    str,
    Query(
        description="`oldest` begins with the oldest message, `newest` with the newest one. A `next` is valid "
        "only in the order of its page.",
        max_length=6,
        json_schema_extra={"enum": list(ORDERS)},
    ),
]

router = new_router()


@router.get(
    "/v1/sessions",
    dependencies=[require_scopes("read")],
    response_description="A page of sessions, the most recently used first.",
    responses=problem_responses({400: "`archived`, `limit` or `after` is invalid."}),
    summary="List the sessions",
)
async def sessions(
    request: Request,
    channel_id: Annotated[str, Query(alias="channelId", max_length=256)] = "",
    user_id: Annotated[str, Query(alias="userId", max_length=256)] = "",
    archived: _Archived = "",
    limit: Limit = "50",
    after: After = "",
) -> SessionsBody:
    services, principal = services_of(request), current_principal(request)
    async with slot_of(request, services.lists):
        page = await services.sessions.list_sessions(
            principal.view,
            channel=channel_id or None,
            user=user_id or None,
            archived=one_of("archived", archived, ("true", "false")) == "true" if archived else None,
            limit=page_size(limit),
            after=after or None,
        )
    return SessionsBody.model_validate(page)


@router.get(
    "/v1/sessions/{session_id}",
    dependencies=[require_scopes("read")],
    response_description="The session.",
    responses=problem_responses({404: _MISSING}),
    summary="Get a session",
)
async def session(request: Request, session_id: Id) -> SessionBody:
    found = await services_of(request).sessions.get(current_principal(request).view, session_id)
    return SessionBody.model_validate(found)


@router.patch(
    "/v1/sessions/{session_id}",
    dependencies=[require_scopes("message", unbound="read")],
    response_description="The session.",
    responses=problem_responses({404: _MISSING}, reads_body=True),
    summary="Change the title of a session, archive it, or take it out of the archive",
    openapi_extra={"requestBody": json_body(SessionChange)},
)
async def change_session(request: Request, session_id: Id) -> SessionBody:
    change = await read_body(request, SessionChange)
    values = SessionValues(
        title=change.title if "title" in change.model_fields_set else UNCHANGED, archived=change.archived
    )
    view = current_principal(request).view
    changed = await services_of(request).changes.change(view, session_id, values=values, act=oversight(request))
    return SessionBody.model_validate(changed)


@router.get(
    "/v1/sessions/{session_id}/messages",
    dependencies=[require_scopes("read"), hold_slot()],
    response_description="A page of messages in this order.",
    responses=problem_responses({400: "`order`, `limit` or `after` is invalid.", 404: _MISSING}),
    summary="List the messages and replies of a session",
)
async def session_messages(
    request: Request, session_id: Id, order: _Order = "oldest", limit: Limit = "50", after: After = ""
) -> MessagesBody:
    page = await services_of(request).sessions.messages(
        current_principal(request).view,
        session_id,
        order=one_of("order", order, ORDERS),
        limit=page_size(limit),
        after=after or None,
    )
    return MessagesBody.model_validate(page)


@router.get(
    "/v1/sessions/{session_id}/export",
    dependencies=[require_scopes("read"), hold_slot()],
    status_code=200,
    response_class=ExportStream,
    responses=problem_responses({400: "`format` is invalid.", 404: _MISSING}) | {200: export_answer()},
    summary="Export all messages of a session",
)
async def export_session(
    request: Request,
    session_id: Id,
    form: Annotated[
        ExportFormat,
        Query(alias="format", description="`jsonl`: a JSON object per message and line. `markdown`: Markdown."),
    ] = "jsonl",
) -> Response:
    services = services_of(request)
    found = await services.sessions.get(current_principal(request).view, session_id)
    pages = services.sessions.pages(found.owner, found.id)
    return ExportStream(found, form, pages, check=partial(check_token, request))


@router.post(
    "/v1/sessions/{session_id}/fork",
    dependencies=[require_scopes("message", unbound="read")],
    status_code=201,
    response_description="The new session.",
    responses=problem_responses(
        {
            404: "There is no such session, or `turnId` is not one of its turns.",
            409: "The turn has not ended, or `channelId` has a session already.",
            429: RATE_LIMITED,
        },
        reads_body=True,
    ),
    summary="Create a session as a copy of this one",
    description="Copies the ended turns up to and including `turnId` under new ids. The two sessions are "
    "independent afterwards. In the copy the agent knows its actions in the original. Counts as a message "
    "for the rate limits.",
    openapi_extra={"requestBody": json_body(ForkBody, required=False)},
)
async def fork_session(request: Request, session_id: Id) -> SessionBody:
    services = services_of(request)
    body = await read_optional_body(request, ForkBody)
    principal = current_principal(request)
    async with (
        slot_of(request, services.copies),
        services.rates.count(principal.user, principal.token),
    ):
        made = await services.changes.fork(
            principal.view,
            session_id,
            turn_id=body.turn_id,
            channel=body.channel_id or None,
            act=oversight(request),
        )
    return SessionBody.model_validate(made)


@router.post(
    "/v1/sessions/{session_id}/reset",
    dependencies=[require_scopes("message", unbound="read")],
    response_description="The session.",
    responses=problem_responses({404: _MISSING}),
    summary="Hide the earlier messages of a session from the agent; they stay stored",
)
async def reset_session(request: Request, session_id: Id) -> SessionBody:
    view = current_principal(request).view
    session = await services_of(request).changes.reset(view, session_id, act=oversight(request))
    return SessionBody.model_validate(session)


@router.delete(
    "/v1/sessions/{session_id}",
    dependencies=[require_scopes("message", unbound="read")],
    response_description="The numbers of deleted turns and idempotency keys.",
    responses=problem_responses(
        {
            404: _MISSING,
            409: "Messages keep arriving in the session. Nothing was deleted, or only the oldest of more than "
            "200 messages.",
        }
    ),
    summary="Delete a session and all its messages",
    description="Its running and waiting turns are cancelled first. `GET /v1/turns/{id}` then answers 410 "
    "for its turns. A later message in the channel starts a new session.",
)
async def delete_session(request: Request, session_id: Id) -> DeletedBody:
    services, principal = services_of(request), current_principal(request)
    async with slot_of(request, services.deletions):
        deleted = await services.changes.delete(principal.view, session_id, act=oversight(request))
    return DeletedBody(id=session_id, turns=len(deleted.turns), idempotency_keys=deleted.keys)


@router.get(
    "/v1/search",
    dependencies=[require_scopes("read")],
    response_description="A page of messages, the newest first.",
    responses=problem_responses({400: "`q` contains no word, or `limit` or `after` is invalid."}),
    summary="Search the messages and replies of ended turns",
    description="Finds the turns that contain all words of the query, in any order, and shows one message of "
    "each. Chinese, Japanese and Thai are searched by pairs of characters. "
    f"A page has at most {_HITS} items.",
)
async def search(
    request: Request,
    q: Annotated[str, Query(description="The words.", min_length=1, max_length=200)],
    session_id: Annotated[str, Query(alias="sessionId", max_length=100)] = "",
    limit: Limit = "20",
    after: After = "",
) -> SearchBody:
    services, principal = services_of(request), current_principal(request)
    async with slot_of(request, services.searches):
        found = await services.search.find(
            principal.view,
            q,
            session_id=session_id or None,
            limit=min(page_size(limit), _HITS),
            after=after or None,
        )
    return SearchBody.from_found(found)
