"""What is remembered about a user, as resources."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes, wire
from torana.api.access import needs, oversight, who
from torana.api.openapi import COMMON, OF_BODIES, documented, json_body, with_headers
from torana.api.parameters import After, Id, Limit
from torana.api.services import NO_STORE, Services
from torana.api.user_ids import UserInPath
from torana.errors import BadRequest, Conflict, InvalidField, MemoryTooLong, NotFound, RateLimited
from torana.memory import SUBJECT_LIMIT, TEXT_LIMIT, Memory, Remembered
from torana.messages import CONTENT_LIMIT
from torana.paging import TIME_KEY, cut, read_cursor

_PLACE = "/v1/users/{user_id}/memories"
_COUNTS = "Counts as a message of its minute."
_EXAMPLE = {"text": "My sister is called Ana", "subject": "my sister's name"}

_Query = Annotated[
    str, Query(description="Words that it shares, the best fits first.", max_length=CONTENT_LIMIT)
]
_Subject = Annotated[str, Query(description="What it is about.", max_length=CONTENT_LIMIT)]
_Doomed = Annotated[
    str,
    Query(
        description="Words that it holds all of; “sister's name” is not among what “name” alone names.",
        max_length=CONTENT_LIMIT,
        json_schema_extra={"pattern": r"\S"},
    ),
]


def add_memories(router: APIRouter, services: Services) -> None:
    """``/v1/users/{user_id}/memories``: a user's memories."""
    _add_reading(router, services)
    _add_changing(router, services)


def _add_reading(router: APIRouter, services: Services) -> None:
    @router.get(
        _PLACE,
        dependencies=[needs("memory")],
        response_model=shapes.MemoriesBody,
        response_description="A page of what stands: the newest first, or the best fits.",
        responses=documented(*COMMON, BadRequest, NotFound, RateLimited),
        summary="What is remembered about a user",
        description="With `query` it counts as a message of its minute.",
    )
    async def memories(
        request: Request,
        user: UserInPath,
        query: _Query = "",
        subject: _Subject = "",
        limit: Limit = "50",
        after: After = "",
    ) -> Response:
        size = wire.page_size(limit)
        if not query.strip():
            return JSONResponse(await _page(services.memory, user, subject, size, after), headers=NO_STORE)
        if after:
            raise InvalidField(
                "`after` goes with a list, not with `query`: its answer has one page; raise `limit`."
            )
        with _counted(services, request):
            found = await _search(services.memory, user, query, subject, size)
        return JSONResponse(found, headers=NO_STORE)


def _add_changing(router: APIRouter, services: Services) -> None:
    @router.post(
        _PLACE,
        dependencies=[needs("memory")],
        status_code=201,
        response_model=shapes.MemoryBody,
        response_description="It is remembered.",
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict, RateLimited)
        | {
            200: {"model": shapes.MemoryBody, "description": "It stood already, word for word."},
            201: {"headers": with_headers("Location")},
        },
        summary="Remember something about a user; what stood under its subject is superseded",
        description=_COUNTS,
        openapi_extra={"requestBody": json_body("MemoryRequest", _EXAMPLE)},
    )
    async def remember(request: Request, user: UserInPath) -> Response:
        text, subject = _parse_memory(await wire.read_object(request, within=services.body_timeout))
        with _counted(services, request):
            kept = await services.memory.remember(
                user, text, subject=subject, turn_id=None, act=oversight(request)
            )
        place = {"Location": f"memories/{kept.memory.id}"} if kept.new else {}
        status = 201 if kept.new else 200
        return JSONResponse(_memory_body(kept.memory), status_code=status, headers=place | NO_STORE)

    @router.delete(
        _PLACE,
        dependencies=[needs("memory")],
        response_model=shapes.ForgottenBody,
        response_description="What was forgotten.",
        responses=documented(*COMMON, BadRequest, NotFound, RateLimited),
        summary="Forget what a query names, with all that it superseded; never everything",
        description=_COUNTS,
    )
    async def forget_memories(request: Request, user: UserInPath, query: _Doomed) -> Response:
        if not query.strip():
            raise InvalidField("`query` must name what is to be forgotten; it is blank.")
        with _counted(services, request):
            gone = await services.memory.forget(user, query, act=oversight(request))
        return JSONResponse({"items": [_memory_body(item) for item in gone]}, headers=NO_STORE)


def add_memory(router: APIRouter, services: Services) -> None:
    """``/v1/users/{user_id}/memories/{memory_id}``: one of them."""

    @router.get(
        f"{_PLACE}/{{memory_id}}",
        dependencies=[needs("memory")],
        response_model=shapes.MemoryWithHistory,
        response_description="The memory, which may be superseded.",
        responses=documented(*COMMON, NotFound),
        summary="A memory and what it superseded",
    )
    async def memory(user: UserInPath, memory_id: Id) -> Response:
        found = await services.memory.get(user, memory_id)
        history = await services.memory.history(user, memory_id)
        told = {"history": [_memory_body(item) for item in history]}
        return JSONResponse(_memory_body(found) | told, headers=NO_STORE)

    @router.patch(
        f"{_PLACE}/{{memory_id}}",
        dependencies=[needs("memory")],
        response_model=shapes.MemoryBody,
        response_description="What stands now: a new memory, unless nothing was changed.",
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict, RateLimited),
        summary="Change a memory: what is so instead supersedes it",
        description=_COUNTS,
        openapi_extra={"requestBody": json_body("MemoryChange", {"text": _EXAMPLE["text"]})},
    )
    async def change_memory(request: Request, user: UserInPath, memory_id: Id) -> Response:
        text, subject = _parse_change(await wire.read_object(request, within=services.body_timeout))
        with _counted(services, request):
            now = await services.memory.edit(
                user, memory_id, text=text, subject=subject, turn_id=None, act=oversight(request)
            )
        return JSONResponse(_memory_body(now), headers=NO_STORE)

    @router.delete(
        f"{_PLACE}/{{memory_id}}",
        dependencies=[needs("memory")],
        response_model=shapes.MemoryBody,
        response_description="What was forgotten.",
        responses=documented(*COMMON, NotFound, RateLimited),
        summary="Forget a memory, with all that it superseded",
        description=_COUNTS,
    )
    async def forget_memory(request: Request, user: UserInPath, memory_id: Id) -> Response:
        with _counted(services, request):
            gone = await services.memory.forget_one(user, memory_id, act=oversight(request))
        return JSONResponse(_memory_body(gone), headers=NO_STORE)


def _counted(services: Services, request: Request) -> AbstractContextManager[object]:
    """Count the request like a message: a provider may be asked for vectors, or the search take long."""
    principal = who(request)
    return services.rates.counted(principal.user, principal.token)


async def _page(memory: Memory, user: str, subject: str, size: int, after: str) -> dict[str, Any]:
    """What stands, newest first."""
    found = await memory.listed(
        user, subject=subject or None, before=read_cursor(after or None, TIME_KEY), limit=size + 1
    )
    page = cut(found, size, lambda item: (item.created_at, item.id), TIME_KEY)
    return {"items": [_memory_body(item) | {"score": None} for item in page.items], "next": page.next}


async def _search(memory: Memory, user: str, query: str, subject: str, size: int) -> dict[str, Any]:
    """The best fits; those behind them fit worse than anybody reads on for."""
    fits = await memory.recall(user, query, limit=size, subject=subject or None)
    items = [_memory_body(fit.memory) | {"score": round(fit.score, 4)} for fit in fits]
    return {"items": items, "next": None}


def _memory_body(memory: Remembered) -> dict[str, Any]:
    """A memory as a resource."""
    return {
        "id": memory.id,
        "text": memory.text,
        "subject": memory.subject or None,
        "turnId": memory.turn_id,
        "createdAt": memory.created_at.isoformat(),
        "supersededAt": memory.superseded_at and memory.superseded_at.isoformat(),
        "supersededBy": memory.superseded_by,
    }


def _parse_memory(document: dict[str, Any]) -> tuple[str, str]:
    """The text and the subject of what is to be remembered; '' is no subject. Raises ``InvalidField``."""
    return _memory_text(document), _subject(document)


def _parse_change(document: dict[str, Any]) -> tuple[str | None, str | None]:
    """The text and the subject that a memory is to have; None leaves it as it is. Raises ``InvalidField``."""
    if "text" not in document and "subject" not in document:
        raise InvalidField("Nothing is to be changed: send `text`, `subject` or both.")
    text = _memory_text(document) if "text" in document else None
    return text, _subject(document) if "subject" in document else None


def _memory_text(document: dict[str, Any]) -> str:
    value = wire.text(document, "text") or ""
    if len(value) > TEXT_LIMIT:
        raise MemoryTooLong(faults=[wire.fault("text", f"has {len(value)} characters, more than {TEXT_LIMIT}")])
    if not value.strip():
        raise wire.wrong("text", "must be a string that is not blank")
    return value.strip()


def _subject(document: dict[str, Any]) -> str:
    return wire.text(document, "subject", most=SUBJECT_LIMIT) or ""
