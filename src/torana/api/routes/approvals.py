"""Approvals of tool calls, and the tools with their permissions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request

from torana.api.dependencies import act, current_principal, services_of
from torana.api.long_responses import LONG, hold_response_slot
from torana.api.openapi import json_body, problem_responses
from torana.api.parameters import INVALID_PAGE, After, Id, Limit, page_size
from torana.api.request_body import read_body, wrong
from torana.api.routes.router import hold_slot, new_router, require_scopes
from torana.api.schemas.approvals import ApprovalBody, ApprovalsBody, DecisionRequest, ToolsBody
from torana.store.rows.approvals import size_of
from torana.turns.approvals import Choice

_CallId = Annotated[str, Path(max_length=500, description="The id of the call, from `approval.required`.")]
_Whose = Annotated[str, Query(max_length=256)]

_DECIDED = "The approval with its decision. The same decision again changes nothing."
_CONFLICT = (
    "The approval has another decision, has expired, or is withdrawn; or its call is not the call of `digest`."
)

router = new_router()


@router.get(
    "/v1/approvals",
    dependencies=[require_scopes("message", "read", unbound="read"), hold_slot()],
    response_description="A page of open approvals, the newest first.",
    responses=problem_responses({400: INVALID_PAGE}),
    summary="List the tool calls that wait for approval",
)
async def list_approvals(request: Request, limit: Limit = "50", after: After = "") -> ApprovalsBody:
    page = await services_of(request).turns.approvals.list_open(
        current_principal(request).view, limit=page_size(limit), after=after or None
    )
    return ApprovalsBody.model_validate(page)


@router.get(
    "/v1/approvals/{approval_id}",
    dependencies=[require_scopes("message", "read"), hold_slot()],
    response_description="The approval.",
    responses=problem_responses({404: "There is no such approval."}),
    summary="Get an approval, open or decided",
)
async def approval(request: Request, approval_id: Id) -> ApprovalBody:
    found = await services_of(request).turns.approvals.get(current_principal(request).view, approval_id)
    return ApprovalBody.model_validate(found)


@router.post(
    "/v1/approvals/{approval_id}",
    dependencies=[require_scopes("message")],
    response_description=_DECIDED,
    responses=problem_responses({404: "There is no such approval.", 409: _CONFLICT}, reads_body=True),
    summary="Approve exactly the reviewed call, optionally with other arguments, or deny it",
    openapi_extra={"requestBody": json_body(DecisionRequest)},
)
async def decide_by_id(request: Request, approval_id: Id) -> ApprovalBody:
    decision = await read_body(request, DecisionRequest)
    principal = current_principal(request)
    if decision.decision == "approve" and decision.digest is None:
        raise wrong("digest", "must be the `digest` of the reviewed call")
    decided = await services_of(request).turns.approvals.decide_by_id(
        principal.view, approval_id, _choice(decision), act(request)
    )
    if size_of(decided) > LONG:
        await hold_response_slot(request)
    return ApprovalBody.model_validate(decided)


@router.post(
    # Call ids of older databases can contain any character.
    "/v1/turns/{turn_id}/approvals/{call_id:path}",
    dependencies=[require_scopes("message")],
    response_description=_DECIDED,
    responses=problem_responses(
        {404: "There is no such turn, or it has no approval for this call.", 409: _CONFLICT},
        reads_body=True,
    ),
    summary="Approve a call of a turn, optionally with other arguments, or deny it",
    openapi_extra={"requestBody": json_body(DecisionRequest)},
)
async def decide_approval(request: Request, turn_id: Id, call_id: _CallId) -> ApprovalBody:
    decision = await read_body(request, DecisionRequest)
    principal = current_principal(request)
    decided = await services_of(request).turns.approvals.decide(
        principal.view, turn_id, call_id, _choice(decision), act(request)
    )
    if size_of(decided) > LONG:
        await hold_response_slot(request)
    return ApprovalBody.model_validate(decided)


@router.get(
    "/v1/tools",
    dependencies=[require_scopes("admin")],
    response_description="The tools, by name.",
    responses=problem_responses({400: "A parameter is too long."}),
    summary="List all tools with their permissions for a user, a token and a skill",
)
async def list_tools(request: Request, user: _Whose = "", token: _Whose = "", skill: _Whose = "") -> ToolsBody:
    services = services_of(request)
    root = await services.people.tokens.root(token) if token else None
    seen = await services.tools.overview(user=user or None, token=root, skill=skill or None)
    return ToolsBody.from_object(seen, next=None)


def _choice(decision: DecisionRequest) -> Choice:
    return Choice(
        approve=decision.decision == "approve",
        arguments=decision.arguments,
        reason=decision.reason or None,
        digest=decision.digest,
    )
