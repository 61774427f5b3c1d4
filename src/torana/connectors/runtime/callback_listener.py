"""The HTTP listener for platforms that call the gateway: ``/hooks/{account}`` only."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote

import uvicorn

from torana import http11
from torana.connectors.base import HookRequest, HookResponse
from torana.errors import OperatorError

#: Maximum size of a request in bytes, and its timeout in seconds.
_LIMIT = 2 * 1024 * 1024
_SECONDS = 30.0

#: Bytes that each request may have, and the bytes beyond that of all larger requests together: callers without
#: credentials must not fill the memory. To make room, the oldest incomplete request is ended if it began some
#: seconds ago.
_SMALL = 64 * 1024
_LARGE_BYTES = 32 * 1024 * 1024
_PATIENCE = 2.0

#: Maximum number of concurrent connections, and their share (1/n) of the open-file limit.
_CONNECTIONS = 256
_SHARE = 8

_NOT_FOUND = HookResponse(status=404)
_METHODS = ("GET", "HEAD", "POST")

_log = logging.getLogger(__name__)


class HooksListener:
    """A separate HTTP server for unauthenticated callers; each connector checks the signatures."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        exists: Callable[[str], bool],
        answer: Callable[[str, HookRequest], Awaitable[HookResponse]],
    ) -> None:
        """``exists`` takes the name of an account, ``answer`` the name and the request."""
        self._host = host
        self._port = port
        self._exists = exists
        self._answer = answer
        self._bodies = _Bodies()
        self._turnstile = asyncio.Lock()
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Start listening. Raises ``OperatorError`` if the address cannot be used."""
        listener = self._listen()
        self._port = listener.getsockname()[1]
        config = http11.Config(
            self,
            most=min(_CONNECTIONS, http11.open_files() // _SHARE),
            lifespan="off",
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=http11.duplicate(listener)), name="hooks")
        _log.info("hooks_listening", extra={"port": self._port})

    async def stop(self) -> None:
        """Stop; requests in progress get five seconds."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        response = await self._response(scope, receive)
        headers = [
            (b"content-type", response.media_type.encode()),
            (b"content-length", str(len(response.body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    async def _response(self, scope: Any, receive: Any) -> HookResponse:
        account = scope["path"].removeprefix("/hooks/")
        if account == scope["path"] or not account or "/" in account:
            return _NOT_FOUND
        account = unquote(account)
        if not self._exists(account):
            return _NOT_FOUND
        if scope["method"] not in _METHODS:
            return HookResponse(status=405)
        try:
            async with asyncio.timeout(_SECONDS):
                async with self._bodies.read(receive) as body:
                    request = _request(scope, body)
                    # A signature of a large body takes milliseconds: other work runs between two of them.
                    async with self._turnstile:
                        await asyncio.sleep(0)
                    return await self._answer(account, request)
        except _TooLargeError:
            return HookResponse(status=413)
        except (TimeoutError, _ClientDisconnectedError, _NoRoomError):
            return HookResponse(status=503)
        except Exception as error:  # noqa: BLE001 - the platform must call again
            _log.warning("hook_failed", extra={"account": account, "reason": type(error).__name__})
            return HookResponse(status=503)

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
            listener.listen(512)
        except OSError as error:
            listener.close()
            reason = error.strerror or error
            raise OperatorError(
                f"cannot listen for hooks on {self._host}:{self._port}: {reason}; choose another "
                "TORANA_HOOKS_PORT"
            ) from error
        return listener


class _Bodies:
    """Reads the bodies of requests, within the limit of each and of all large ones together."""

    def __init__(self) -> None:
        self._large_bytes = 0
        #: When the large requests began that are incomplete, by their time limits.
        self._incomplete: dict[asyncio.Timeout, float] = {}

    @asynccontextmanager
    async def read(self, receive: Any) -> AsyncGenerator[bytes]:
        """Read a body; its bytes count until the block ends.

        Raises ``TimeoutError`` if it gives way to another, and the errors of this module.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(None) as limit:
                try:
                    while await self._receive(receive, body):
                        self._bound(body, limit)
                finally:
                    self._incomplete.pop(limit, None)
            yield bytes(body)
        finally:
            self._large_bytes -= _large(body)

    async def _receive(self, receive: Any, body: bytearray) -> bool:
        """Add the next piece of a body; return whether there is more."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientDisconnectedError
        before = _large(body)
        body += message.get("body", b"")
        self._large_bytes += _large(body) - before
        if len(body) > _LIMIT:
            raise _TooLargeError
        return message.get("more_body", False)

    def _bound(self, body: bytearray, limit: asyncio.Timeout) -> None:
        if not _large(body):
            return
        now = asyncio.get_running_loop().time()
        self._incomplete.setdefault(limit, now)
        if self._large_bytes > _LARGE_BYTES:
            oldest = min(self._incomplete, key=self._incomplete.__getitem__)
            if now - self._incomplete[oldest] < _PATIENCE:
                raise _NoRoomError
            del self._incomplete[oldest]
            oldest.reschedule(now)


def _large(body: bytearray) -> int:
    return max(0, len(body) - _SMALL)


class _ClientDisconnectedError(Exception):
    """The connection ended before the request was complete."""


class _TooLargeError(Exception):
    """The body exceeds the limit of one request."""


class _NoRoomError(Exception):
    """The body exceeds the limit of all large requests."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _request(scope: Any, body: bytes) -> HookRequest:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    return HookRequest(method=scope["method"], headers=headers, query=query, body=body)
