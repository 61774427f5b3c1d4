"""How everything stands, for people and for Prometheus. The operator's alone."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from torana.api import shapes
from torana.api.access import needs
from torana.api.metrics import MEDIA_TYPE
from torana.api.openapi import COMMON, documented
from torana.api.services import NO_STORE, Services


def add_status(router: APIRouter, services: Services) -> None:
    """``/v1/status``: how everything stands."""

    @router.get(
        "/v1/status",
        dependencies=[needs("admin")],
        response_model=shapes.StatusBody,
        response_description="How the gateway stands.",
        responses=documented(*COMMON),
        summary="The gateway, its turns, and each connector: also why one is not active",
    )
    async def status() -> Response:
        _, health = await services.health.report()
        body = {name: health[name] for name in ("status", "version", "uptime")} | {
            "model": list(services.models),
            "turns": services.turns.counts(),
            "connectors": await services.connections.status(),
            "mcp": services.mcp.status(),
        }
        return JSONResponse(body, headers=NO_STORE)


def add_metrics(router: APIRouter, services: Services) -> None:
    """``/metrics``, where Prometheus looks for them."""

    @router.get(
        "/metrics",
        dependencies=[needs("admin")],
        response_class=PlainTextResponse,
        response_description="The metrics, in Prometheus' text format.",
        responses=documented(*COMMON),
        summary="Turns, connectors, deliveries and the process itself, in numbers",
    )
    async def metrics() -> Response:
        return Response(await services.metrics.text(), media_type=MEDIA_TYPE, headers=NO_STORE)
