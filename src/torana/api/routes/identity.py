"""The identity of a request."""

from __future__ import annotations

from fastapi import Request

from torana.api.dependencies import current_principal, services_of
from torana.api.openapi import problem_responses
from torana.api.routes.router import new_router
from torana.api.schemas.identity import MeBody

router = new_router()


@router.get(
    "/v1/me",
    response_description="The identity.",
    responses=problem_responses(),
    summary="Get the identity and the scopes of the request's token; no scope is required",
)
async def me(request: Request) -> MeBody:
    principal = current_principal(request)
    return MeBody.from_principal(principal, await services_of(request).people.tokens.token_of(principal))
