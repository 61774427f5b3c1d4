"""Search over messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from torana.api.dependencies import current_principal, require_scopes, services_of
from torana.api.openapi import problem_responses
from torana.api.parameters import After, Limit, page_size
from torana.api.routes.router import new_router
from torana.api.schemas.search import SearchBody

#: Maximum number of hits on a page; each needs its text.
_LARGEST = 50

router = new_router()


@router.get(
    "/v1/search",
    dependencies=[require_scopes("read")],
    response_description="A page of messages, the newest first.",
    responses=problem_responses({400: "`q` contains no word, or `limit` or `after` is invalid."}),
    summary="Search the messages and replies of ended turns",
    description="Finds the turns that contain all words of the query, in any order, and shows one message of "
    "each. Chinese, Japanese and Thai are searched by pairs of characters. "
    f"A page has at most {_LARGEST} items.",
)
async def search(
    request: Request,
    q: Annotated[str, Query(description="The words.", min_length=1, max_length=200)],
    session_id: Annotated[str, Query(alias="sessionId", max_length=100)] = "",
    limit: Limit = "20",
    after: After = "",
) -> SearchBody:
    found = await services_of(request).search.find(
        current_principal(request).view,
        q,
        session_id=session_id or None,
        limit=min(page_size(limit), _LARGEST),
        after=after or None,
    )
    return SearchBody.from_found(found)
