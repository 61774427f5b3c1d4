"""Calls that wait for somebody's yes, and which tools may run at all."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from torana.agent.overview import Offer
from torana.api import shapes, wire
from torana.api.access import act, needs, who
from torana.api.openapi import COMMON, OF_BODIES, documented, json_body
from torana.api.parameters import After, Id, Limit
from torana.api.services import NO_STORE, Services
from torana.errors import BadRequest, Conflict, NotFound
from torana.turns.approvals import Choice

_CallId = Annotated[str, Path(max_length=500, description="The call's id, as `approval.required` names it.")]
_Whose = Annotated[str, Query(max_length=256)]

_REASON_LIMIT = 500
_DIGEST_LIMIT = 100

_DECIDED = "The approval as it was decided; the same decision again changes nothing."


def add_approvals(router: APIRouter, services: Services) -> None:
    """``/v1/approvals``, and decisions about them."""

    @router.get(
        "/v1/approvals",
        dependencies=[needs("message", "read", unbound="read")],
        response_model=shapes.ApprovalsBody,
        response_description="A page of open approvals, the newest first.",
        responses=documented(*COMMON, BadRequest),
        summary="Calls of tools that wait for a yes",
    )
    async def list_approvals(request: Request, limit: Limit = "50", after: After = "") -> Response:
        page = await services.turns.approvals.listed(
            who(request).view, limit=wire.page_size(limit), after=after or None
        )
        items = [wire.approval_body(approval) for approval in page.items]
        return JSONResponse({"items": items, "next": page.next}, headers=NO_STORE)

    @router.get(
        "/v1/approvals/{approval_id}",
        dependencies=[needs("message", "read")],
        response_model=shapes.ApprovalBody,
        response_description="The approval as it stands.",
        responses=documented(*COMMON, NotFound),
        summary="A call of a tool that waits, or waited, for a yes",
    )
    async def approval(request: Request, approval_id: Id) -> Response:
        found = await services.turns.approvals.get(who(request).view, approval_id)
        return JSONResponse(wire.approval_body(found), headers=NO_STORE)

    @router.post(
        "/v1/approvals/{approval_id}",
        dependencies=[needs("message")],
        response_model=shapes.ApprovalBody,
        response_description=_DECIDED,
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict),
        summary="Approve exactly the call that was shown, perhaps with other arguments, or deny it",
        openapi_extra={
            "requestBody": json_body("DecisionRequest", {"decision": "approve", "digest": "sha256:9f86d081…"})
        },
    )
    async def decide_by_id(request: Request, approval_id: Id) -> Response:
        document = await wire.read_object(request, within=services.body_timeout)
        principal = who(request)
        choice = _choice(document)
        if choice.approve and choice.digest is None:
            raise wire.wrong("digest", "must be the `digest` of the call that was shown")
        approvals = services.turns.approvals
        decided = await approvals.decide_by_id(principal.view, approval_id, choice, act(request))
        return JSONResponse(wire.approval_body(decided), headers=NO_STORE)

    @router.post(
        # Ids from before they were plain hold anything.
        "/v1/turns/{turn_id}/approvals/{call_id:path}",
        dependencies=[needs("message")],
        response_model=shapes.ApprovalBody,
        response_description=_DECIDED,
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict),
        summary="Approve a call of a turn, perhaps with other arguments, or deny it",
        openapi_extra={"requestBody": json_body("DecisionRequest", {"decision": "approve"})},
    )
    async def decide_approval(request: Request, turn_id: Id, call_id: _CallId) -> Response:
        document = await wire.read_object(request, within=services.body_timeout)
        principal = who(request)
        choice = _choice(document)
        approvals = services.turns.approvals
        decided = await approvals.decide(principal.view, turn_id, call_id, choice, act(request))
        return JSONResponse(wire.approval_body(decided), headers=NO_STORE)


def add_tools(router: APIRouter, services: Services) -> None:
    """``/v1/tools``: what may run, and why."""

    @router.get(
        "/v1/tools",
        dependencies=[needs("admin")],
        response_model=shapes.ToolsBody,
        response_description="The tools, by name.",
        responses=documented(*COMMON, BadRequest),
        summary="All tools, and whether a user, a token and a skill may run them",
    )
    async def list_tools(user: _Whose = "", token: _Whose = "", skill: _Whose = "") -> Response:
        root = await services.people.tokens.root(token) if token else None
        seen = await services.tools.overview(user=user or None, token=root, skill=skill or None)
        items = [_tool_body(offer) for offer in seen.offers]
        return JSONResponse({"items": items, "next": None, "unknown": seen.strangers}, headers=NO_STORE)


def _tool_body(offer: Offer) -> dict[str, Any]:
    return {
        "name": offer.name,
        "description": offer.description,
        "idempotent": offer.idempotent,
        "permission": offer.verdict.permission,
        "why": offer.verdict.why,
    }


def _choice(document: dict[str, Any]) -> Choice:
    decision = wire.one_of("decision", document.get("decision"), ("approve", "deny"))
    reason = wire.text(document, "reason", most=_REASON_LIMIT)
    arguments = _arguments(document.get("arguments"))
    if arguments is not None and decision == "deny":
        raise wire.wrong("arguments", "can only be changed in a call that is approved")
    digest = wire.text(document, "digest", most=_DIGEST_LIMIT)
    return Choice(approve=decision == "approve", arguments=arguments, reason=reason or None, digest=digest)


def _arguments(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        plain: object = json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise wire.wrong("arguments", "holds a number or a depth that no tool takes") from error
    if not isinstance(plain, dict):
        raise wire.wrong("arguments", "must be an object")
    return {str(name): item for name, item in plain.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
