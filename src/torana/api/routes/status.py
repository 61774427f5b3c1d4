"""The status, metrics, settings and log of the gateway. These endpoints require the scope ``admin``."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from fastapi import Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from torana.api.dependencies import services_of
from torana.api.openapi import problem_responses
from torana.api.parameters import Limit, one_of_values, page_size
from torana.api.request_body import one_of
from torana.api.routes.router import new_router
from torana.api.schemas.connections import StatusBody
from torana.api.schemas.mcp import McpServerBody
from torana.api.schemas.operation import LogBody, LogLineBody, SettingsBody
from torana.api.serving import endpoints
from torana.log_tail import LOG_LEVELS, read_tail

_Level = Annotated[str, one_of_values("Only lines of this level or a higher one.", LOG_LEVELS, optional=False)]

router = new_router(Depends(endpoints.ADMIN_SCOPES))


@router.get(
    "/v1/status",
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
    response_class=PlainTextResponse,
    response_description="The metrics, in the text format of Prometheus.",
    responses=problem_responses(),
    summary="Get the metrics of turns, connectors, deliveries and the process",
)
async def metrics(request: Request) -> Response:
    return await endpoints.get_metrics(request)


@router.get(
    "/v1/settings",
    response_description="The settings.",
    responses=problem_responses(),
    summary="List the settings with their values, defaults and origins",
    description="The settings with which the gateway was started, as `torana config show` prints them.",
)
async def settings(request: Request) -> SettingsBody:
    return SettingsBody.model_validate({"items": services_of(request).settings, "next": None})


@router.get(
    "/v1/logs",
    response_description="The newest lines of the log file. Without a log file there are none.",
    responses=problem_responses({400: "`level` or `limit` is invalid."}),
    summary="Read the end of the log",
)
async def logs(
    request: Request,
    level: _Level = "info",
    event: Annotated[str, Query(description="Only lines of this event.", max_length=200)] = "",
    limit: Limit = "50",
) -> LogBody:
    least = one_of("level", level, LOG_LEVELS)
    read = partial(read_tail, level=least, event=event or None, limit=page_size(limit))
    tail = await asyncio.to_thread(read)
    return LogBody(items=[LogLineBody.model_validate(line) for line in tail.lines], complete=tail.complete)
