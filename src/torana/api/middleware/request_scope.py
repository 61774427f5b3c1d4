"""ASGI middleware for every request, the outermost first."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torana.api.problems import problem
from torana.api.request_body import is_too_large
from torana.errors import Draining, GatewayError
from torana.measurements import OTHER, Measurements
from torana.telemetry import bind
from torana.tracing import SpanDetails, SpanPlace

_log = logging.getLogger(__name__)

#: The maximum number of bytes to read from a body after refusing it.
_LINGER_BYTES = 1024 * 1024

#: The length of a path in the log. Masking a longer one would take milliseconds of the event loop.
_PATH_LOGGED = 500

#: Paths that monitoring programs request repeatedly.
_UNTRACED = frozenset({"/health", "/metrics"})

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class ResponseAborted(Exception):
    """A response that has begun cannot be completed, so its connection is closed. This is not a bug."""


class RequestScope:
    """Assigns an id to each request, logs the request, and answers exceptions with a problem."""

    def __init__(self, app: ASGIApp, *, measurements: Measurements | None = None) -> None:
        self._app = app
        self._measurements = measurements or Measurements()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an HTTP request. Other scopes, such as lifespan, do not reach this class."""
        request_id = str(uuid.uuid4())
        with bind(request_id=request_id), self._trace(scope) as span:
            request = Request(scope)
            request.state.request_id = request_id
            status = await self._handle(request, receive, send)
            _describe(span, request, status)

    def _trace(self, scope: Scope) -> AbstractContextManager[SpanDetails]:
        """Record a span of the trace that the request's headers name. Paths of ``_UNTRACED`` have no span."""
        if scope["path"].removeprefix("/api") in _UNTRACED:
            return nullcontext(SpanDetails(""))
        place = SpanPlace(kind="server", headers=Headers(scope=scope))
        return self._measurements.tracer.span("HTTP", place)

    async def _handle(self, request: Request, receive: Receive, send: Send) -> int:
        """Answer a request, and return the status; 0 if the response has not begun."""
        started = time.monotonic()
        scope = request.scope
        path = scope["path"]
        status = 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request.state.request_id
            await send(message)

        try:
            await self._app(scope, receive, reply)
        except GatewayError as error:
            await problem(error, request)(scope, receive, reply)
        except asyncio.CancelledError:
            # The server stops and does not wait any longer, for example for a body.
            if status == 0:
                await problem(Draining(), request)(scope, receive, reply)
            raise
        except ResponseAborted as reason:
            _log.info("response_aborted", extra={"reason": str(reason)})
        except Exception:  # noqa: BLE001 - every request gets a response
            _log.exception("request_failed")
            if status == 0:
                await problem(GatewayError(), request)(scope, receive, reply)
        finally:
            seconds = time.monotonic() - started
            self._measure(request, status, seconds)
            _log.log(
                logging.DEBUG if path.endswith("/health") else logging.INFO,
                "request",
                extra={
                    "method": scope["method"],
                    "path": path if len(path) <= _PATH_LOGGED else f"{path[:_PATH_LOGGED]}…",
                    "status": status,
                    "ms": round(seconds * 1000, 1),
                },
            )
        return status

    def _measure(self, request: Request, status: int, seconds: float) -> None:
        self._measurements.add(
            "request", seconds, _method_of(request), _route_of(request), f"{status // 100}xx"
        )


def _method_of(request: Request) -> str:
    return request.method if request.method in _METHODS else OTHER


def _route_of(request: Request) -> str:
    """Return the template of the path, which contains no ids."""
    return getattr(request.state, "route", OTHER)


def _describe(span: SpanDetails, request: Request, status: int) -> None:
    """Name a span by the semantic conventions for HTTP."""
    method, route = _method_of(request), _route_of(request)
    span.name = f"{method} {route}"
    span.attributes |= {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
        "torana.request.id": request.state.request_id,
    }
    span.error = str(status) if status >= 500 else None


class UnreadBody:
    """Closes the connection after it refuses a body, but first gives the client time to read the response.

    A body that is too large is not read to its end. The response is sent, more of the body is read for up to
    ``linger`` seconds, and the connection is closed. An immediate close could destroy the response in transit.
    """

    def __init__(self, app: ASGIApp, *, linger: float = 1.0) -> None:
        self._app = app
        self._linger = linger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and note whether its body was read to the end."""
        headers = Headers(scope=scope)
        # The size of a chunked body is known only at its end.
        unread = is_too_large(headers) or "transfer-encoding" in headers

        async def receive_and_note_end() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def reply(message: Message) -> None:
            if not unread:
                await send(message)
            elif message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
                await send(message)
            elif message.get("more_body", False):
                await send(message)
            else:
                await send({**message, "more_body": True})
                await self._read_on(receive)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._app(scope, receive_and_note_end, reply)

    async def _read_on(self, receive: Receive) -> None:
        left = _LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):  # all was read, or the client has disconnected
                        return


class ApiPrefix:
    """Answers every path also under ``/api/``, for proxies that do not strip the prefix."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Remove one ``/api`` from the path."""
        path: str = scope["path"]
        if path.startswith("/api/"):
            scope = {**scope, "path": path.removeprefix("/api")}
        await self._app(scope, receive, send)


class Methods:
    """Answers OPTIONS for every path, and HEAD for the paths that allow it."""

    def __init__(self, app: ASGIApp, *, allowed: Callable[[str], list[str]]) -> None:
        """``allowed`` returns the methods of a path; none for a path that does not exist."""
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer OPTIONS, and turn HEAD into GET without a body."""
        if scope["method"] not in ("OPTIONS", "HEAD"):
            await self._app(scope, receive, send)
            return
        allowed = self._allowed(scope["path"])
        if scope["method"] == "OPTIONS" and allowed:
            await Response(status_code=204, headers={"Allow": ", ".join(allowed)})(scope, receive, send)
        elif scope["method"] == "HEAD" and "HEAD" in allowed:
            await self._app({**scope, "method": "GET"}, receive, without_body(send))
        else:
            await self._app(scope, receive, send)


def without_body(send: Send) -> Send:
    """Return a ``send`` that sends the head of a response without its body."""

    async def head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return head
