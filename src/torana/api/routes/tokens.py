"""Tokens and the audit record. These endpoints require the scope ``admin``."""

from __future__ import annotations

from datetime import timedelta

from fastapi import Request

from torana.api.dependencies import act, services_of
from torana.api.openapi import json_body, problem_responses
from torana.api.parameters import INVALID_PAGE, After, Id, Limit, page_size
from torana.api.request_body import read_body, read_optional_body
from torana.api.routes.router import new_router, require_scopes
from torana.api.schemas.people import (
    AuditBody,
    IssuedTokenBody,
    RotationRequest,
    TokenBody,
    TokenRequest,
    TokensBody,
)
from torana.messages import DEFAULT_SCOPES
from torana.people.tokens import DEFAULT_OVERLAP, NewToken

_MISSING = "There is no such token."

router = new_router(require_scopes("admin"))


@router.get(
    "/v1/tokens",
    response_description="A page of tokens, the newest first.",
    responses=problem_responses({400: INVALID_PAGE}),
    summary="List the tokens, including expired and revoked ones, without their secrets",
)
async def tokens(request: Request, limit: Limit = "50", after: After = "") -> TokensBody:
    page = await services_of(request).people.tokens.list_tokens(limit=page_size(limit), after=after or None)
    items = [TokenBody.from_token(token) for token in page.items]
    return TokensBody(items=items, next=page.next)


@router.post(
    "/v1/tokens",
    status_code=201,
    response_description="The new token with its secret. The secret is not shown again.",
    responses=problem_responses(reads_body=True),
    summary="Create a token",
    openapi_extra={"requestBody": json_body(TokenRequest)},
)
async def create_token(request: Request) -> IssuedTokenBody:
    body = await read_body(request, TokenRequest)
    new = NewToken(
        user=body.user,
        scopes=DEFAULT_SCOPES if body.scopes is None else frozenset(body.scopes),
        label=body.label or "",
        lifetime=None if body.expires_in is None else timedelta(seconds=body.expires_in),
    )
    issued = await services_of(request).people.tokens.create(new, act=act(request))
    return IssuedTokenBody.from_token(issued.token, token=issued.secret)


@router.post(
    "/v1/tokens/{token_id}/rotate",
    status_code=201,
    response_description="The new token with its secret. The secret is not shown again.",
    responses=problem_responses(
        {404: _MISSING, 409: "The token has expired, was revoked, or was rotated before."}, reads_body=True
    ),
    summary="Replace a token by a new one; both are valid for a while",
    openapi_extra={"requestBody": json_body(RotationRequest, required=False)},
)
async def rotate_token(request: Request, token_id: Id) -> IssuedTokenBody:
    body = await read_optional_body(request, RotationRequest)
    overlap = DEFAULT_OVERLAP if body.overlap is None else timedelta(seconds=body.overlap)
    issued = await services_of(request).people.tokens.rotate(token_id, overlap=overlap, act=act(request))
    return IssuedTokenBody.from_token(issued.token, token=issued.secret)


@router.delete(
    "/v1/tokens/{token_id}",
    response_description="The revoked token.",
    responses=problem_responses({404: _MISSING}),
    summary="Revoke a token; the next request with it is refused, and it stays in the list",
)
async def revoke_token(request: Request, token_id: Id) -> TokenBody:
    revoked = await services_of(request).people.tokens.revoke(token_id, act=act(request))
    return TokenBody.from_token(revoked)


@router.get(
    "/v1/audit",
    response_description="A page of actions, the newest first.",
    responses=problem_responses({400: INVALID_PAGE}),
    summary="List the administrative actions with their time, author, source and object",
)
async def audit(request: Request, limit: Limit = "50", after: After = "") -> AuditBody:
    page = await services_of(request).people.audit.list_entries(limit=page_size(limit), after=after or None)
    return AuditBody.model_validate(page)
