"""HTTP below the edges: what both listeners bound and demand, and answers where no framework is loaded."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import resource
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from torana.errors import BadRequest, GatewayError

#: Bytes that the first line and the headers of a request may have together.
HEAD_LIMIT = 64 * 1024

#: Seconds that these may take to arrive.
HEAD_SECONDS = 30.0

#: Seconds after which an answer that is not read may make room for another connection.
UNREAD_SECONDS = 30.0

#: Seconds for which a head, and a body, is taken to be on its way before it counts as slow.
YOUNG_HEAD = 1.0
YOUNG_BODY = 10.0

#: Files that the process lets itself open, half of them connections: each of those may hold a head in memory.
_FILES = 4_096

#: Seconds between two lines in the log about callers who were sent away.
_TOLD = 60.0

_PROBLEM = "application/problem+json"

#: A target in absolute form without its query. A user's name in it is an error (RFC 9110, 4.2.4).
_ABSOLUTE = re.compile(rb"https?://([^/@]+)(/.*)?", re.IGNORECASE)

_BYTES = re.compile(r": (bytearray\(|b['\"]).*", re.DOTALL)

_log = logging.getLogger(__name__)


def raise_open_files() -> None:
    """Let the process open as many files as the system lets it, or 4,096: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems have more limits than they tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> int:
    """How many files the process may have open, or 4,096 where those are more."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES if soft == resource.RLIM_INFINITY else min(soft, _FILES)


async def send_json(send: Any, body: Mapping[str, Any]) -> None:
    """Answer 200 over ASGI."""
    await _send(send, HTTPStatus.OK, {"content-type": "application/json"}, body)


async def send_unavailable(send: Any, error: GatewayError) -> None:
    """Answer 503 over ASGI."""
    headers = {"content-type": _PROBLEM, "retry-after": "2"}
    status = HTTPStatus.SERVICE_UNAVAILABLE
    await _send(send, status, headers, problem_body(error, status, "Unavailable"))


def problem_body(
    error: GatewayError, status: HTTPStatus, wording: str, *, request_id: str | None = None
) -> dict[str, Any]:
    """A problem (RFC 9457) with the members that each has; without a request's id it gets one of its own."""
    request_id = request_id or str(uuid4())
    return {
        "type": "about:blank",
        "title": status.phrase,
        "status": int(status),
        "detail": error.detail,
        "instance": f"urn:uuid:{request_id}",
        "error": wording,
        "code": error.code,
        "requestId": request_id,
    }


class Config(uvicorn.Config):
    """What both listeners have in common.

    Of more than ``most`` connections the one that has kept the listener waiting for longest is closed, or the
    newest where all are being answered.
    """

    def __init__(self, app: Any, *, most: int, **more: Any) -> None:
        super().__init__(
            _OriginServer(app),
            http=Protocol,
            h11_max_incomplete_event_size=HEAD_LIMIT,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            **more,
        )
        self.most = most
        self._told: dict[str, float] = {}

    def tell_full(self, event: str, now: float) -> None:
        """Log what is done for lack of room, unless that was told within the last minute."""
        if now - self._told.get(event, -math.inf) >= _TOLD:
            self._told[event] = now
            _log.warning(event, extra={"connections": self.most})


class _OriginServer:
    """Does what RFC 9112 demands of a server and uvicorn leaves, in front of an application.

    A target in absolute form becomes a path, and its authority the ``Host``, whatever that was (3.2.2). A
    request with two lengths, which may be an attempt to smuggle another one in, is the last of its connection
    (6.1).
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
                # As if its sender had asked for it, which uvicorn looks for in this very list.
                scope["headers"].append((b"connection", b"close"))
            if found := _ABSOLUTE.fullmatch(scope["raw_path"]):
                scope = {**scope, **_origin_form(scope, authority=found[1], path=found[2] or b"/")}
        await self._app(scope, receive, send)


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a problem for what is no request.

    By h11, because the faster parser drops the body of a request that offers an upgrade, as Java's client and
    ``curl --http2`` do, and knows no bound on a head. Measured, a message costs the same with either.
    """

    config: Config
    connections: set[Protocol]
    _watchdog: asyncio.TimerHandle | None = None
    _waiting_since = 0.0
    _unread_since: float | None = None
    #: Where the client is.
    network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Make room or send the caller away, and begin to count the seconds that a head may take."""
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        self.network = _network(self.client)
        if len(self.connections) <= self.config.most or self._evict_another():
            self._watch_head()
        else:
            self.config.tell_full("callers are sent away", self.loop.time())
            transport.close()

    def patience(self) -> tuple[int, float] | None:
        """How soon the connection makes room for another: by a rank, then by the time since which it waits.

        Connections come first that have waited for a head for a while, then for the rest of a body or for an
        answer to be read, then those that have just begun to. None while a request is being answered.
        """
        now = self.loop.time()
        if not getattr(self, "cycle", None) or self.cycle.response_complete:
            return (0 if now - self._waiting_since >= YOUNG_HEAD else 2), self._waiting_since
        if self.cycle.more_body and not self.cycle.response_started:
            return (1 if now - self._waiting_since >= YOUNG_BODY else 3), self._waiting_since
        if self._unread_since is not None and now - self._unread_since >= UNREAD_SECONDS:
            return 1, self._unread_since
        return None

    def _evict_another(self) -> bool:
        """Close the connection with the least patience left, of the network that has most that can be closed.

        So a single machine with many connections takes its own away, and behind a proxy, where all come from
        one address, only what they do counts.
        """
        others = ((other, other.patience()) for other in self.connections if other is not self)
        waiting = [(other, patience) for other, patience in others if patience is not None]
        if not waiting:
            return False
        counts = Counter(other.network for other, _ in waiting)
        victim, _ = min(waiting, key=lambda one: (-counts[one[0].network], one[1]))
        self.config.tell_full("slow_connections_evicted", self.loop.time())
        self.connections.discard(victim)
        victim.transport.abort()  # closing would wait until what was written is read
        return True

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._waiting_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Remember since when the client does not read."""
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        self._unread_since = None
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count no more."""
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A head that is whole ends the count; the first bytes of another one begin it again."""
        super().data_received(data)
        self._watch_head()

    def _watch_head(self) -> None:
        if getattr(self, "cycle", None) and not self.cycle.response_complete:
            self._rest()
        elif self._watchdog is None:
            self._watchdog = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _rest(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong, unless an answer is on its way already, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            # Behind the fault h11 shows the bytes as Python writes them.
            fault = _BYTES.sub("", str(sys.exception() or msg))
            error = BadRequest(f"This is not a valid HTTP/1.1 request: {fault}.")
            body = json.dumps(problem_body(error, HTTPStatus.BAD_REQUEST, "Bad request")).encode()
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: {_PROBLEM}\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """An offer may be declined in silence (RFC 9110, 7.8)."""


def _network(client: tuple[str, int] | None) -> str:
    """The client's address; of IPv6 the network of 64 bits, which one subscriber has whole."""
    if client is None:  # a Unix socket
        return ""
    address = ip_address(client[0].partition("%")[0])
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ip_network((address, 64), strict=False))


def _origin_form(scope: Any, *, authority: bytes, path: bytes) -> dict[str, Any]:
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {
        "raw_path": path,
        "path": unquote(path.decode("ascii")),
        "headers": [*headers, (b"host", authority)],
    }


async def _send(send: Any, status: HTTPStatus, headers: Mapping[str, str], body: Mapping[str, Any]) -> None:
    raw = json.dumps(body).encode()
    fields = {"cache-control": "no-store", "content-length": str(len(raw)), **headers}
    encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": int(status), "headers": encoded})
    await send({"type": "http.response.body", "body": raw})
