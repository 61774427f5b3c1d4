"""The router of a module of handlers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from torana.api.dependencies import RequiredScopes
from torana.api.long_responses import hold_response_slot
from torana.api.responses import NoStoreResponse
from torana.messages import Scope as TokenScope


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


def require_scopes(*scopes: TokenScope, unbound: TokenScope | None = None) -> Any:
    """Return the dependency of a path that requires one of the scopes: see ``RequiredScopes``."""
    return Depends(RequiredScopes(*scopes, unbound=unbound))


def hold_slot() -> Any:
    """Return the dependency of a path whose responses may be long."""
    return Depends(hold_response_slot)
