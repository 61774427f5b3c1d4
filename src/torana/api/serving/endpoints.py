"""The endpoints that programs, chat clients and monitoring call all the time. They need no web framework."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from torana.api.dependencies import RequiredScopes, services_of
from torana.api.responses import NO_STORE, NoStoreResponse
from torana.api.routes.message import answer_message
from torana.api.routes.metrics import MEDIA_TYPE
from torana.api.schemas.contract import SkillBody

#: The scopes of the endpoints. The paths in the OpenAPI document require the same objects.
MESSAGE_SCOPES = RequiredScopes("message")
ADMIN_SCOPES = RequiredScopes("admin")
SKILLS_SCOPES = RequiredScopes("message", "read", "skills")


async def get_health(request: Request) -> Response:
    """Return the health; 503 if the gateway accepts no messages."""
    takes_messages, body = await services_of(request).health.report()
    return NoStoreResponse(body.model_dump(mode="json"), status_code=200 if takes_messages else 503)


async def get_metrics(request: Request) -> Response:
    """Return the metrics in the text format of Prometheus."""
    return Response(await services_of(request).metrics.text(), media_type=MEDIA_TYPE, headers=NO_STORE)


async def get_skills(request: Request) -> Response:
    """Return the skills; 304 if the client has the same list."""
    library = services_of(request).skills.library
    catalogue = library.catalogue()
    etag = f'"{catalogue.etag}"'
    caching = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if _matches(request.headers.get("if-none-match", ""), etag):
        return Response(status_code=304, headers=caching)
    skills = [SkillBody.from_skill(skill, library.missing(skill)) for skill in catalogue.loaded]
    return JSONResponse([body.model_dump(mode="json") for body in skills], headers=caching)


async def post_message(request: Request) -> Response:
    """Accept a message, and answer it."""
    return await answer_message(request, services_of(request))


async def post_message_with_files(request: Request) -> Response:
    """Accept a message with files, and answer it."""
    return await answer_message(request, services_of(request), with_files=True)


def _matches(if_none_match: str, etag: str) -> bool:
    """Return whether the header contains the entity tag, by weak comparison (RFC 9110, 13.1.2).

    ``etag`` includes its quotation marks, which no other tag contains.
    """
    return if_none_match.strip() == "*" or etag in if_none_match
