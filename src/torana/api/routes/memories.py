"""The memories of a user."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated

from fastapi import Query, Request, Response

from torana.api.dependencies import check_token, current_principal, oversight, services_of
from torana.api.openapi import json_body, problem_responses, with_headers
from torana.api.parameters import COUNTS_AS_MESSAGE, RATE_LIMITED, After, Id, Limit, UserInPath, page_size
from torana.api.request_body import read_body
from torana.api.routes.router import hold_slot, new_router, require_scopes
from torana.api.schemas.memories import (
    ForgottenBody,
    MemoriesBody,
    MemoryBody,
    MemoryChange,
    MemoryFound,
    MemoryRequest,
    MemoryWithHistory,
)
from torana.api.services import Services
from torana.errors import InvalidField
from torana.memory import Memory
from torana.messages import CONTENT_LIMIT
from torana.paging import TIME_KEY, cut, read_cursor

_PLACE = "/v1/users/{user_id}/memories"
_NO_USER = "The token may not read this user, or the id is invalid."
_NO_MEMORY = "The user has no such memory."
_TOO_LONG = "`text` has more than 2,000 characters, or the body is larger than 262,144 bytes."

_Query = Annotated[
    str, Query(description="Words to search for. The best matches come first.", max_length=CONTENT_LIMIT)
]
_Subject = Annotated[str, Query(description="Only memories of this subject.", max_length=CONTENT_LIMIT)]
_Doomed = Annotated[
    str,
    Query(
        description="A memory that contains all words of the query is forgotten. Exception: `name` means the "
        "user's own name. To match “my sister's name”, the query must also contain `sister`.",
        max_length=CONTENT_LIMIT,
        json_schema_extra={"pattern": r"\S"},
    ),
]

router = new_router()


@router.get(
    _PLACE,
    dependencies=[require_scopes("memory"), hold_slot()],
    response_description="A page of current memories: the newest first, or the best matches first.",
    responses=problem_responses(
        {
            400: "`limit` or `after` is invalid, or `after` is used with `query`.",
            404: _NO_USER,
            429: RATE_LIMITED,
        }
    ),
    summary="List or search the memories of a user",
    description="With `query` it counts as a message for the rate limits.",
)
async def memories(
    request: Request,
    user: UserInPath,
    query: _Query = "",
    subject: _Subject = "",
    limit: Limit = "50",
    after: After = "",
) -> MemoriesBody:
    services = services_of(request)
    size = page_size(limit)
    if not query.strip():
        return await _page(services.memory, user, subject, size, after)
    if after:
        raise InvalidField("`after` cannot be used with `query`: a search has one page. Raise `limit` instead.")
    async with _count_request(services, request):
        return await _search(services.memory, user, query, subject, size)


@router.post(
    _PLACE,
    dependencies=[require_scopes("memory")],
    status_code=201,
    response_description="The new memory.",
    responses=problem_responses(
        {404: _NO_USER, 409: "The user has the maximum number of memories.", 413: _TOO_LONG, 429: RATE_LIMITED},
        reads_body=True,
    )
    | {
        200: {"model": MemoryBody, "description": "An equal memory exists. Nothing was changed."},
        201: {"headers": with_headers("Location")},
    },
    summary="Store a memory about a user; it supersedes the memory of the same subject",
    description=COUNTS_AS_MESSAGE,
    openapi_extra={"requestBody": json_body(MemoryRequest)},
)
async def remember(request: Request, response: Response, user: UserInPath) -> MemoryBody:
    services = services_of(request)
    body = await read_body(request, MemoryRequest)
    async with _count_request(services, request):
        kept = await services.memory.remember(
            user,
            body.text,
            subject=body.subject or "",
            turn_id=None,
            act=oversight(request),
            check=partial(check_token, request),
        )
    if kept.new:
        response.headers["Location"] = f"memories/{kept.memory.id}"
    else:
        response.status_code = 200
    return MemoryBody.model_validate(kept.memory)


@router.delete(
    _PLACE,
    dependencies=[require_scopes("memory")],
    response_description="The forgotten memories.",
    responses=problem_responses({400: "`query` is missing or blank.", 404: _NO_USER, 429: RATE_LIMITED}),
    summary="Forget the memories that match a query, with the memories that they superseded",
    description=COUNTS_AS_MESSAGE,
)
async def forget_memories(request: Request, user: UserInPath, query: _Doomed) -> ForgottenBody:
    services = services_of(request)
    if not query.strip():
        raise InvalidField("`query` is blank; it must name the memories to forget.")
    async with _count_request(services, request):
        gone = await services.memory.forget(user, query, act=oversight(request))
    return ForgottenBody.model_validate({"items": gone})


@router.get(
    f"{_PLACE}/{{memory_id}}",
    dependencies=[require_scopes("memory")],
    response_description="The memory, current or superseded.",
    responses=problem_responses({404: _NO_MEMORY}),
    summary="Get a memory with the memories that it superseded",
)
async def memory(request: Request, user: UserInPath, memory_id: Id) -> MemoryWithHistory:
    services = services_of(request)
    found = await services.memory.get(user, memory_id)
    history = await services.memory.history(user, memory_id)
    return MemoryWithHistory.from_object(found, history=history)


@router.patch(
    f"{_PLACE}/{{memory_id}}",
    dependencies=[require_scopes("memory")],
    response_description="The current memory: a new one, or the same one if nothing changed.",
    responses=problem_responses(
        {
            404: _NO_MEMORY,
            409: "A newer memory superseded this one, or the user has the maximum number of memories.",
            413: _TOO_LONG,
            429: RATE_LIMITED,
        },
        reads_body=True,
    ),
    summary="Change a memory: store a new one that supersedes it",
    description=COUNTS_AS_MESSAGE,
    openapi_extra={"requestBody": json_body(MemoryChange)},
)
async def change_memory(request: Request, user: UserInPath, memory_id: Id) -> MemoryBody:
    services = services_of(request)
    change = await read_body(request, MemoryChange)
    text = change.text if "text" in change.model_fields_set else None
    subject = change.subject or "" if "subject" in change.model_fields_set else None
    async with _count_request(services, request):
        now = await services.memory.edit(
            user, memory_id, text=text, subject=subject, turn_id=None, act=oversight(request)
        )
    return MemoryBody.model_validate(now)


@router.delete(
    f"{_PLACE}/{{memory_id}}",
    dependencies=[require_scopes("memory")],
    response_description="The forgotten memory.",
    responses=problem_responses({404: _NO_MEMORY, 429: RATE_LIMITED}),
    summary="Forget a memory, with the memories that it superseded",
    description=COUNTS_AS_MESSAGE,
)
async def forget_memory(request: Request, user: UserInPath, memory_id: Id) -> MemoryBody:
    services = services_of(request)
    async with _count_request(services, request):
        gone = await services.memory.forget_one(user, memory_id, act=oversight(request))
    return MemoryBody.model_validate(gone)


def _count_request(services: Services, request: Request) -> AbstractAsyncContextManager[object]:
    """Count the request like a message: it may ask a provider for vectors, and a search may take long."""
    principal = current_principal(request)
    return services.rates.count(principal.user, principal.token)


async def _page(memory: Memory, user: str, subject: str, size: int, after: str) -> MemoriesBody:
    """Return a page of current memories, the newest first."""
    found = await memory.list_memories(
        user, subject=subject or None, before=read_cursor(after or None, TIME_KEY), limit=size + 1
    )
    page = cut(found, size, lambda item: (item.created_at, item.id), TIME_KEY)
    items = [MemoryFound.from_object(memory, score=None) for memory in page.items]
    return MemoriesBody(items=items, next=page.next)


async def _search(memory: Memory, user: str, query: str, subject: str, size: int) -> MemoriesBody:
    """Return the best matches, on one page."""
    fits = await memory.recall(user, query, limit=size, subject=subject or None)
    items = [MemoryFound.from_object(fit.memory, score=round(fit.score, 4)) for fit in fits]
    return MemoriesBody(items=items, next=None)
