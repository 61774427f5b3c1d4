"""The status and the metrics of the gateway. These endpoints require the scope ``admin``."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

from torana.api.dependencies import require_scopes, services_of
from torana.api.openapi import problem_responses
from torana.api.responses import NO_STORE
from torana.api.routes.metrics import MEDIA_TYPE
from torana.api.routes.router import new_router
from torana.api.schemas.connections import StatusBody
from torana.api.schemas.mcp import McpServerBody

router = new_router()


@router.get(
    "/v1/status",
    dependencies=[require_scopes("admin")],
    response_description="The status.",
    responses=problem_responses(),
    summary="Get the status of the gateway, its turns, connectors and MCP servers",
)
async def status(request: Request) -> StatusBody:
    services = services_of(request)
    _, health = await services.health.report()
    return StatusBody.model_validate(
        {
            "status": health.status,
            "version": health.version,
            "uptime": health.uptime,
            "model": services.models,
            "turns": services.turns.live.counts(),
            "connectors": await services.connections.status(),
            "mcp": [McpServerBody.from_supervisor(one) for one in services.mcp.supervisors.values()],
        }
    )


@router.get(
    "/metrics",
    dependencies=[require_scopes("admin")],
    response_class=PlainTextResponse,
    response_description="The metrics, in the text format of Prometheus.",
    responses=problem_responses(),
    summary="Get the metrics of turns, connectors, deliveries and the process",
)
async def metrics(request: Request) -> Response:
    return Response(await services_of(request).metrics.text(), media_type=MEDIA_TYPE, headers=NO_STORE)
