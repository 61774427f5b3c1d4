"""Answer the frequent endpoints directly, and load the web framework with all others at their first request.

Many gateways only receive messages. The framework takes 11 MB and a part of the start, which these save.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from torana.api.dependencies import RequiredScopes
from torana.api.middleware.request_scope import without_body
from torana.api.problems import problem
from torana.api.services import Services
from torana.api.serving import endpoints
from torana.errors import GatewayError

_Handler = Callable[[Request], Awaitable[Response]]

#: The handlers by method and path, with the scopes that they require.
DIRECT: Mapping[tuple[str, str], tuple[_Handler, RequiredScopes | None]] = {
    ("GET", "/health"): (endpoints.get_health, None),
    ("GET", "/metrics"): (endpoints.get_metrics, endpoints.ADMIN_SCOPES),
    ("GET", "/skills"): (endpoints.get_skills, endpoints.SKILLS_SCOPES),
    ("POST", "/message"): (endpoints.post_message, endpoints.MESSAGE_SCOPES),
    ("POST", "/v1/messages"): (endpoints.post_message_with_files, endpoints.MESSAGE_SCOPES),
}


class Direct:
    """Answers the endpoints of ``DIRECT``, and passes all other requests on with the services."""

    def __init__(self, others: ASGIApp, *, services: Services) -> None:
        self._others = others
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that has a principal."""
        scope["state"]["services"] = self._services
        method, path = scope["method"], scope["path"]
        found = DIRECT.get(("GET" if method == "HEAD" else method, path))
        if found is None:
            await self._others(scope, receive, send)
            return
        scope["state"]["route"] = path
        # Resources that the request holds until it is answered.
        async with AsyncExitStack() as scope["state"]["held"]:
            response = await _answer(Request(scope, receive, send), *found)
            await response(scope, receive, without_body(send) if method == "HEAD" else send)


async def _answer(request: Request, handler: _Handler, scopes: RequiredScopes | None) -> Response:
    try:
        if scopes is not None:
            await scopes(request)
        return await handler(request)
    except GatewayError as error:
        return problem(error, request)


class DeferredApplication:
    """An application that is loaded in a thread at its first request. Requests wait for it together."""

    def __init__(self, load: Callable[[], ASGIApp]) -> None:
        self._load = load
        self._loading: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. If the application cannot be loaded, the next request tries again."""
        if self._loading is None or (self._loading.done() and not _succeeded(self._loading)):
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        # A client that disconnects does not stop it.
        app = await asyncio.shield(self._loading)
        await app(scope, receive, send)


def _succeeded(loading: asyncio.Future[ASGIApp]) -> bool:
    return not loading.cancelled() and loading.exception() is None
