"""MCP servers and the approval of their tools. These endpoints require the scope ``admin``."""

from __future__ import annotations

from fastapi import Request

from torana.api.dependencies import act, services_of
from torana.api.openapi import json_body, problem_responses
from torana.api.parameters import Id
from torana.api.request_body import read_body
from torana.api.routes.router import new_router, require_scopes
from torana.api.schemas.mcp import ApprovalOfTools, McpDetailsBody, McpServersBody

router = new_router(require_scopes("admin"))


@router.get(
    "/v1/mcp",
    response_description="The servers, in the order of the settings.",
    responses=problem_responses(),
    summary="List the MCP servers with their tools, and the reasons for withheld tools",
)
async def list_servers(request: Request) -> McpServersBody:
    supervisors = services_of(request).mcp.supervisors.values()
    return McpServersBody(items=[McpDetailsBody.from_supervisor(one) for one in supervisors])


@router.post(
    "/v1/mcp/{server}/approve",
    response_description="The server. The agent gets the approved tools.",
    responses=problem_responses(
        {404: "There is no such MCP server.", 409: "`held` does not match the tools that wait for approval."},
        reads_body=True,
    ),
    summary="Approve the new and changed tools of a server as they were reviewed",
    openapi_extra={"requestBody": json_body(ApprovalOfTools)},
)
async def approve_tools(request: Request, server: Id) -> McpDetailsBody:
    services = services_of(request)
    held = (await read_body(request, ApprovalOfTools)).held
    services.mcp.check_held(server, held)
    await services.people.audit.add(act(request), "mcp.approve", server, held=held)
    return McpDetailsBody.from_supervisor(await services.mcp.approve(server, held))
