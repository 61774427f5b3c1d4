"""MCP servers: how they stand, what they offer, and what is let in. The operator's alone."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes, wire
from torana.api.access import act, needs
from torana.api.openapi import COMMON, OF_BODIES, documented, json_body
from torana.api.parameters import Id
from torana.api.services import NO_STORE, Services
from torana.errors import Conflict, NotFound


def add_mcp(router: APIRouter, services: Services) -> None:
    """``/v1/mcp``: the servers, and the operator's word on tools that changed."""

    @router.get(
        "/v1/mcp",
        dependencies=[needs("admin")],
        response_model=shapes.McpServersBody,
        response_description="The servers, in the order of the settings.",
        responses=documented(*COMMON),
        summary="The MCP servers, what of their tools is offered, and why others are not",
    )
    async def list_servers() -> Response:
        return JSONResponse({"items": services.mcp.listed()}, headers=NO_STORE)

    @router.post(
        "/v1/mcp/{server}/approve",
        dependencies=[needs("admin")],
        response_model=shapes.McpDetailsBody,
        response_description="The server, whose tools are offered as they are now.",
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict),
        summary="Offer those tools of a server that are new, or changed, as they were seen",
        openapi_extra={"requestBody": json_body("ApprovalOfTools", {"held": "0f1e2d3c4b5a6978"})},
    )
    async def approve_tools(request: Request, server: Id) -> Response:
        document = await wire.read_object(request, within=services.body_timeout)
        held = _held(document)
        services.mcp.check_held(server, held)
        await services.people.audit.add(act(request), "mcp.approve", server, held=held)
        return JSONResponse(services.mcp.approve(server, held), headers=NO_STORE)


def _held(document: dict[str, Any]) -> str:
    held = document.get("held")
    if not isinstance(held, str) or not 1 <= len(held) <= 64:
        raise wire.wrong("held", "must be what `GET /v1/mcp` named")
    return held
