"""The router of a module of handlers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from torana.api.responses import NoStoreResponse


class NamedRoute(APIRoute):
    """Stores in a request's state the template of its path, and resources to hold until it is answered."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request of the route's path; the state outlives copies of the scope."""
        scope["state"]["route"] = self.path
        async with AsyncExitStack() as scope["state"]["held"]:
            await super().handle(scope, receive, send)


def new_router(*dependencies: Any) -> APIRouter:
    """Return an empty router with dependencies of all paths.

    The name of a handler is the id of its operation in the OpenAPI document.
    """
    return APIRouter(
        dependencies=dependencies,
        default_response_class=NoStoreResponse,
        generate_unique_id_function=lambda route: route.name,
        route_class=NamedRoute,
    )
