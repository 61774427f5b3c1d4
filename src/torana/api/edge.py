"""What every request passes on its way in and out, outermost first. Plain ASGI, one class per concern."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torana.api.problems import problem
from torana.api.wire import is_too_large
from torana.errors import Draining, GatewayError
from torana.telemetry import bind

_log = logging.getLogger(__name__)

#: How much of a refused body is still read.
_LINGER_BYTES = 1024 * 1024


class BrokenOff(Exception):
    """An answer that has begun cannot be brought to its end: its connection is broken, and no bug is meant."""


class RequestScope:
    """Gives a request its id, its log line, and an answer whatever happens inside."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; other scopes (lifespan) do not come here."""
        request_id = str(uuid.uuid4())
        with bind(request_id=request_id):
            await self._handle(scope, receive, send, request_id)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started = time.monotonic()
        request = Request(scope)
        request.state.request_id = request_id
        path = scope["path"]
        status = 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, reply)
        except GatewayError as error:
            await problem(error, request)(scope, receive, reply)
        except asyncio.CancelledError:
            # The server stops and waits no longer, as for a body that is still on its way.
            if status == 0:
                await problem(Draining(), request)(scope, receive, reply)
            raise
        except BrokenOff as reason:
            _log.info("an answer was broken off", extra={"reason": str(reason)})
        except Exception:  # noqa: BLE001 - whatever it is, its caller gets an answer
            _log.exception("a request failed on a bug")
            if status == 0:
                await problem(GatewayError(), request)(scope, receive, reply)
        finally:
            _log.log(
                logging.DEBUG if path.endswith("/health") else logging.INFO,
                "request",
                extra={
                    "method": scope["method"],
                    "path": path,
                    "status": status,
                    "ms": round((time.monotonic() - started) * 1000, 1),
                },
            )


class UnreadBody:
    """Ends a connection whose request body was refused, after its sender could read why.

    A body that is too large to be discarded in passing is not read to its end: the answer goes out, a little
    more is read for ``linger`` seconds (closing at once would destroy the answer on its way), and the
    connection is closed.
    """

    def __init__(self, app: ASGIApp, *, linger: float = 1.0) -> None:
        self._app = app
        self._linger = linger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch how far the body was read."""
        headers = Headers(scope=scope)
        # How large a chunked body is, only its end tells.
        unread = is_too_large(headers) or "transfer-encoding" in headers

        async def watched() -> Message:
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

        await self._app(scope, watched, reply)

    async def _read_on(self, receive: Receive) -> None:
        left = _LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):  # all was read, or its sender has left
                        return


class ApiPrefix:
    """Answers every path also under ``/api/``, for a proxy that publishes us there and strips nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one ``/api`` off the path."""
        path: str = scope["path"]
        if path.startswith("/api/"):
            scope = {**scope, "path": path.removeprefix("/api")}
        await self._app(scope, receive, send)


class Methods:
    """HEAD where it is allowed, and OPTIONS everywhere, which the router knows nothing of."""

    def __init__(self, app: ASGIApp, *, allowed: Callable[[str], list[str]]) -> None:
        """``allowed`` names the methods of a path, none for a path that is not there."""
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer OPTIONS, turn HEAD into GET without its body."""
        if scope["method"] not in ("OPTIONS", "HEAD"):
            await self._app(scope, receive, send)
            return
        allowed = self._allowed(scope["path"])
        if scope["method"] == "OPTIONS" and allowed:
            await Response(status_code=204, headers={"Allow": ", ".join(allowed)})(scope, receive, send)
        elif scope["method"] == "HEAD" and "HEAD" in allowed:
            await self._app({**scope, "method": "GET"}, receive, _without_body(send))
        else:
            await self._app(scope, receive, send)


def _without_body(send: Send) -> Send:
    async def head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return head
