"""Tokens and the audit record as resources: the operator's alone."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes, wire
from torana.api.access import act, needs
from torana.api.openapi import COMMON, OF_BODIES, documented, json_body
from torana.api.parameters import After, Id, Limit
from torana.api.services import NO_STORE, Services
from torana.errors import BadRequest, Conflict, NotFound
from torana.messages import SCOPES, Scope, utc_now
from torana.people.tokens import DEFAULT_OVERLAP, DEFAULT_SCOPES, Issued, NewToken
from torana.store.audit import Entry
from torana.store.tokens import Token

#: Seconds beyond which no time is reckoned; what is too long for its field is so long before that.
_LONGEST = 10**12


def add_tokens(router: APIRouter, services: Services) -> None:
    """``/v1/tokens``: who else may reach the gateway, and what they may do."""

    @router.get(
        "/v1/tokens",
        dependencies=[needs("admin")],
        response_model=shapes.TokensBody,
        response_description="A page of tokens, the newest first.",
        responses=documented(*COMMON, BadRequest),
        summary="The tokens that were made, also those that have ended; never their secrets",
    )
    async def tokens(limit: Limit = "50", after: After = "") -> Response:
        page = await services.people.tokens.listed(limit=wire.page_size(limit), after=after or None)
        items = [token_body(token, utc_now()) for token in page.items]
        return JSONResponse({"items": items, "next": page.next}, headers=NO_STORE)

    @router.post(
        "/v1/tokens",
        dependencies=[needs("admin")],
        status_code=201,
        response_model=shapes.IssuedTokenBody,
        response_description="The token, with its secret: it is shown this once.",
        responses=documented(*COMMON, *OF_BODIES),
        summary="Make a token",
        openapi_extra={
            "requestBody": json_body("TokenRequest", {"user": "alice", "scopes": ["message", "read"]})
        },
    )
    async def create_token(request: Request) -> Response:
        document = await wire.read_object(request, within=services.body_timeout)
        issued = await services.people.tokens.create(_new_token(document), act=act(request))
        return JSONResponse(issued_body(issued, utc_now()), status_code=201, headers=NO_STORE)

    @router.post(
        "/v1/tokens/{token_id}/rotate",
        dependencies=[needs("admin")],
        status_code=201,
        response_model=shapes.IssuedTokenBody,
        response_description="The new token, with its secret: it is shown this once.",
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict),
        summary="Make a token in the place of another one; for a while both are taken",
        openapi_extra={"requestBody": json_body("RotationRequest", {"overlap": 3600}, required=False)},
    )
    async def rotate_token(request: Request, token_id: Id) -> Response:
        document = await wire.optional_object(request, within=services.body_timeout)
        issued = await services.people.tokens.rotate(token_id, overlap=_overlap(document), act=act(request))
        return JSONResponse(issued_body(issued, utc_now()), status_code=201, headers=NO_STORE)

    @router.delete(
        "/v1/tokens/{token_id}",
        dependencies=[needs("admin")],
        response_model=shapes.TokenBody,
        response_description="The token, which is revoked.",
        responses=documented(*COMMON, NotFound),
        summary="Revoke a token: from the next request on it is not taken. It stays in the list",
    )
    async def revoke_token(request: Request, token_id: Id) -> Response:
        revoked = await services.people.tokens.revoke(token_id, act=act(request))
        return JSONResponse(token_body(revoked, utc_now()), headers=NO_STORE)


def add_audit(router: APIRouter, services: Services) -> None:
    """``/v1/audit``: what operators did."""

    @router.get(
        "/v1/audit",
        dependencies=[needs("admin")],
        response_model=shapes.AuditBody,
        response_description="A page of acts, the newest first.",
        responses=documented(*COMMON, BadRequest),
        summary="Every administrative act: who did what to what, when, and from where",
    )
    async def audit(limit: Limit = "50", after: After = "") -> Response:
        page = await services.people.audit.listed(limit=wire.page_size(limit), after=after or None)
        items = [audit_item(entry) for entry in page.items]
        return JSONResponse({"items": items, "next": page.next}, headers=NO_STORE)


def token_body(token: Token, now: datetime) -> dict[str, Any]:
    """A token as a resource."""
    return {
        "id": token.id,
        "user": token.user,
        "label": token.label,
        "scopes": sorted(token.scopes),
        "createdAt": token.created_at.isoformat(),
        "expiresAt": token.expires_at and token.expires_at.isoformat(),
        "revokedAt": token.revoked_at and token.revoked_at.isoformat(),
        "usedAt": token.used_at and token.used_at.isoformat(),
        "replaces": token.replaces,
        "status": token.status(now),
    }


def issued_body(issued: Issued, now: datetime) -> dict[str, Any]:
    """A new token with its secret."""
    return token_body(issued.token, now) | {"token": issued.secret}


def audit_item(entry: Entry) -> dict[str, Any]:
    """An act in a list."""
    return {
        "id": entry.id,
        "at": entry.act.at.isoformat(),
        "principal": entry.act.principal,
        "source": entry.act.source,
        "action": entry.action,
        "target": entry.target,
        "detail": dict(entry.detail),
    }


def _new_token(document: dict[str, Any]) -> NewToken:
    """The token that a body asks for; whether it can be is the tokens' to say."""
    seconds = document.get("expiresIn")
    return NewToken(
        user=_user(document.get("user")),
        scopes=_scopes(document.get("scopes")),
        label=wire.text(document, "label") or "",
        lifetime=None if seconds is None else _seconds("expiresIn", seconds),
    )


def _user(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise wire.wrong("user", "must be a string or an integer")
    return str(value)


def _scopes(value: object) -> frozenset[Scope]:
    if value is None:
        return DEFAULT_SCOPES
    known = sorted(SCOPES)
    if not isinstance(value, list) or not all(name in known for name in cast("list[object]", value)):
        raise wire.wrong("scopes", f"must be a list of some of {', '.join(known)}")
    return frozenset(cast("list[Scope]", value))


def _overlap(document: dict[str, Any]) -> timedelta:
    value = document.get("overlap")
    return DEFAULT_OVERLAP if value is None else _seconds("overlap", value)


def _seconds(name: str, value: object) -> timedelta:
    # 60.0 is an integer too (JSON Schema, 6.1.1).
    is_whole = isinstance(value, int | Decimal) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole:
        raise wire.wrong(name, "must be a whole number of seconds")
    return timedelta(seconds=int(max(-_LONGEST, min(cast("int", value), _LONGEST))))
