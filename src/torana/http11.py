"""HTTP/1.1 parsing and connection limits for both listeners, and responses that need no framework."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import resource
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Any, cast
from urllib.parse import unquote
from uuid import uuid4

import h11
import uvicorn
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from torana.errors import BadRequest, Draining, GatewayError

#: The maximum size of a request line and headers together, in bytes.
HEAD_LIMIT = 64 * 1024

#: The maximum number of lines in a head, and of trailers.
HEAD_LINES = 256

#: The maximum number of parameters in a query. Parsing each takes a microsecond of the event loop.
QUERY_PARAMETERS = 256

#: A chunked body may have ``FREE_CHUNKS`` chunks, and one more for each ``BYTES_PER_CHUNK`` bytes. Each chunk
#: costs as much time as some hundred bytes.
FREE_CHUNKS = 256
BYTES_PER_CHUNK = 64

#: The seconds for which heads are parsed in a pass of the event loop. An ordinary one takes 0.04 ms.
_HEADS_SECONDS = 0.005

#: The number of connections that are accepted in a pass of the event loop.
_ACCEPTED = 8

#: Seconds within which the request line and headers must arrive.
HEAD_SECONDS = 30.0

#: Seconds after which a connection whose client does not read the response may be closed for a new one.
UNREAD_SECONDS = 30.0

#: Seconds after which a connection is closed if its client has read almost nothing of a long response.
STALLED_SECONDS = 60.0

#: The maximum number of bytes of a response that are passed on at once. The next bytes wait while more than
#: these wait for the client.
_PIECE = 16 * 1024

#: Seconds for which an incomplete head, or an incomplete body, does not count as slow.
YOUNG_HEAD = 1.0
YOUNG_BODY = 10.0

#: The maximum number of open files. Half of them may be connections, and each may hold a head in memory.
_FILES = 4_096

#: The minimum number of seconds between two log lines about the same connection limit.
_LOG_INTERVAL = 60.0

_PROBLEM = "application/problem+json"

#: A target in absolute form without its query. Userinfo in it is an error (RFC 9110, 4.2.4).
_ABSOLUTE = re.compile(rb"https?://([^/@]+)(/.*)?", re.IGNORECASE)

_END_OF_HEAD = re.compile(rb"\n\r?\n")

_BYTES = re.compile(r": (bytearray\(|b['\"]).*", re.DOTALL)

_log = logging.getLogger(__name__)


def raise_open_files() -> None:
    """Raise the limit of open files to the system's maximum, but not above 4,096. Each connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems report a higher limit than they allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> int:
    """Return the number of files that the process may have open, at most 4,096."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES if soft == resource.RLIM_INFINITY else min(soft, _FILES)


def duplicate(listener: socket.socket) -> list[socket.socket]:
    """Return a listening socket and its duplicates: uvloop accepts one connection of each in a pass."""
    return [listener, *(listener.dup() for _ in range(_ACCEPTED - 1))]


async def send_json(send: Any, body: Mapping[str, Any], *, status: HTTPStatus = HTTPStatus.OK) -> None:
    """Send a response over ASGI."""
    await _send(send, status, {"content-type": "application/json"}, body)


async def send_unavailable(send: Any, error: GatewayError) -> None:
    """Send a response with status 503 over ASGI."""
    headers = {"content-type": _PROBLEM, "retry-after": "2"}
    status = HTTPStatus.SERVICE_UNAVAILABLE
    await _send(send, status, headers, problem_body(error, status, "Unavailable"))


def problem_body(
    error: GatewayError, status: HTTPStatus, wording: str, *, request_id: str | None = None
) -> dict[str, Any]:
    """Return a problem (RFC 9457); without ``request_id`` it gets a new id."""
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


class Heads:
    """Parses heads for a few milliseconds in each pass of the event loop, in the order of their arrival.

    A request that is being answered takes many passes. Each would take as long as all heads that have arrived.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        #: The seconds that heads have taken in this pass; None before the first one.
        self._used: float | None = None

    def parse(self, head: Callable[[], None]) -> None:
        """Call ``head`` now, or in a later pass."""
        if self._waiting or (self._used is not None and self._used >= _HEADS_SECONDS):
            self._waiting.append(head)
        else:
            self._call(head)

    def _call(self, head: Callable[[], None]) -> None:
        if self._used is None:
            self._used = 0.0
            asyncio.get_running_loop().call_soon(self._begin_pass)
        begin = self._clock()
        head()
        self._used += self._clock() - begin

    def _begin_pass(self) -> None:
        self._used = None
        while self._waiting and (self._used or 0.0) < _HEADS_SECONDS:
            self._call(self._waiting.popleft())


class Config(uvicorn.Config):
    """The configuration that both listeners share.

    At more than ``most`` connections, the protocol closes the connection that has kept the listener waiting for
    longest, or the new connection if all others are being answered.
    """

    def __init__(self, app: Any, *, most: int, **more: Any) -> None:
        super().__init__(
            _OriginServer(app),
            http=Protocol,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            **more,
        )
        self.most = most
        self.heads = Heads()
        self._told: dict[str, float] = {}

    def log_full(self, event: str, now: float) -> None:
        """Log that the limit of connections is reached, at most once a minute for each event."""
        if now - self._told.get(event, -math.inf) >= _LOG_INTERVAL:
            self._told[event] = now
            _log.warning(event, extra={"connections": self.most})


class _OriginServer:
    """Wraps an application with the rules of RFC 9112 that uvicorn does not enforce; sends bodies in pieces.

    A target in absolute form becomes a path, and its authority replaces ``Host`` (3.2.2). A request with two
    lengths may be request smuggling, so its connection is closed after the response (6.1).
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
                # uvicorn looks for this header in this list, as if the client had sent it.
                scope["headers"].append((b"connection", b"close"))
            if found := _ABSOLUTE.fullmatch(scope["raw_path"]):
                scope = {**scope, **_origin_form(scope, authority=found[1], path=found[2] or b"/")}
            send = partial(_send_in_pieces, send)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # only the server cancels requests, when its time to stop is over
            with suppress(RuntimeError):  # the response has started
                await send_unavailable(send, Draining())


class BoundedConnection(h11.Connection):
    """A parser that refuses many header lines, query parameters, small chunks, and trailers.

    Such a request costs much more time than its size. A connection also parses the body of a request that was
    refused without reading it. The head of a response of known length is sent together with the body: each
    packet takes the time of a system call here, and wakes the client.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_LIMIT)
        self._chunks = 0
        self._bytes = 0
        #: The number of lines of the unfinished head or trailers, or more.
        self._lines = 0
        #: The head of a response whose body follows at once.
        self._head = b""

    def send(self, event: Any) -> Any:
        """Return the bytes to send for an event; those of a head with ``Content-Length`` come with the body."""
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head = super().send(event) or b""
            return b""
        if not self._head:
            return super().send(event)
        head, self._head = self._head, b""
        return head + super().send(event)

    def receive_data(self, data: bytes) -> None:
        """Add data to the buffer."""
        self._lines += data.count(b"\n")
        super().receive_data(data)

    def next_event(self) -> Any:
        """Return the next event. Raises ``h11.RemoteProtocolError``, also at the bounds."""
        if self.their_state is h11.IDLE:
            self._check_lines()
        event = super().next_event()
        if isinstance(event, h11.Request | h11.EndOfMessage):
            self._lines = HEAD_LINES + 1  # the next head or trailers may have arrived, and are counted later
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            reader = cast("object", self._reader)
            if isinstance(reader, ChunkedReader):
                self._reader = _BoundedChunkedReader(self._check_lines)
            if event.target.count(b"&") >= QUERY_PARAMETERS:
                raise h11.RemoteProtocolError("the query has too many parameters")
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > FREE_CHUNKS + self._bytes // BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event

    def _check_lines(self) -> None:
        """Raise ``h11.RemoteProtocolError`` for too many lines. Parsing them takes much longer."""
        if self._lines <= HEAD_LINES:
            return
        received, _ = self.trailing_data
        if received.startswith((b"\n", b"\r\n")):
            return
        end = _END_OF_HEAD.search(received)
        self._lines = received.count(b"\n", 0, end.end() if end else None)
        if self._lines > HEAD_LINES:
            raise h11.RemoteProtocolError("too many header or trailer lines")


class _BoundedChunkedReader(ChunkedReader):
    """Reads chunks, and checks the trailers before it parses them."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self._check = check

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        if self._reading_trailer:
            self._check()
        return super().__call__(buf)


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with connection limits, and a problem as the response to an invalid request.

    It uses h11. The faster parser drops the body of a request that offers an upgrade, as Java's client and
    ``curl --http2`` do, and has no limit for a head. A message costs the same with both (measured).
    """

    config: Config
    connections: set[Protocol]
    _watchdog: asyncio.TimerHandle | None = None
    _waiting_since = 0.0
    _unread_since: float | None = None
    _stalled: asyncio.TimerHandle | None = None
    #: The client's address or network, as ``_network`` returns it.
    network = ""
    #: True if the next request waits until the client has read the last response.
    _next_waits = False
    #: True if a head that has arrived waits for its turn.
    _head_waits = False

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.conn = BoundedConnection()

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accept the connection if there is room, and start the time limit for its first head."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_PIECE)
        self._waiting_since = self.loop.time()
        self.network = _network(self.client)
        if len(self.connections) <= self.config.most or self._evict_another():
            self._watch_head()
        else:
            self.config.log_full("too_many_connections", self.loop.time())
            transport.close()

    def patience(self) -> tuple[int, float] | None:
        """Return the order in which connections are closed for new ones: a rank, then the start of the wait.

        Rank 0: has waited long for a head, or its refusal is delayed. Rank 1: has waited long for a body, or
        for the client to read. Ranks 2 and 3: has just begun to wait for a head or a body. None: a request is
        being answered.
        """
        now = self.loop.time()
        if not getattr(self, "cycle", None) or self.cycle.response_complete:
            return (0 if now - self._waiting_since >= YOUNG_HEAD else 2), self._waiting_since
        if self.cycle.more_body and not self.cycle.response_started:
            return (1 if now - self._waiting_since >= YOUNG_BODY else 3), self._waiting_since
        if self._unread_since is not None and now - self._unread_since >= UNREAD_SECONDS:
            return 1, self._unread_since
        return (0, self._waiting_since) if self.scope.get("state", {}).get("is_slowed_down") else None

    def _evict_another(self) -> bool:
        """Close the connection with the lowest patience in the network that has most connections to close.

        A single machine with many connections thus loses only its own connections. Behind a proxy all
        connections have one address, and only their patience counts.
        """
        others = ((other, other.patience()) for other in self.connections if other is not self)
        waiting = [(other, patience) for other, patience in others if patience is not None]
        if not waiting:
            return False
        counts = Counter(other.network for other, _ in waiting)
        victim, _ = min(waiting, key=lambda one: (-counts[one[0].network], one[1]))
        self.config.log_full("slow_connections_evicted", self.loop.time())
        self.connections.discard(victim)
        victim.transport.abort()  # close() would wait until the client has read the response
        return True

    def on_response_complete(self) -> None:
        """Start to wait for the next request. A pipelined one waits until the client reads the response."""
        self._waiting_since = self.loop.time()
        self._next_waits = self.flow.write_paused
        if not self._next_waits:
            super().on_response_complete()

    def pause_writing(self) -> None:
        """Record that the client does not read, and close the connection if that lasts."""
        self._unread_since = self.loop.time()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Record that the client reads again, and continue with its next request."""
        self._end_stall()
        super().resume_writing()
        if self._next_waits and self.cycle.response_complete:
            self._next_waits = False
            super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limits."""
        self._rest()
        self._end_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data. A complete head stops the time limit; the next head starts it again."""
        super().data_received(data)
        self._watch_head()

    def handle_events(self) -> None:
        """Parse what has arrived; a head, when it is its turn."""
        if getattr(self, "cycle", None) and not self.cycle.response_complete:
            super().handle_events()
        elif not self._head_waits:
            self._head_waits = True
            self.config.heads.parse(self._parse_head)
            if self._head_waits:
                self.flow.pause_reading()

    def _parse_head(self) -> None:
        self._head_waits = False
        if not self.transport.is_closing():
            self.flow.resume_reading()
            super().handle_events()
            self._watch_head()

    def _watch_head(self) -> None:
        if getattr(self, "cycle", None) and not self.cycle.response_complete:
            self._rest()
        elif self._watchdog is None:
            self._watchdog = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _end_stall(self) -> None:
        self._unread_since = None
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _rest(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def send_400_response(self, msg: str) -> None:
        """Send the reason with status 400, unless a response has already started, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            # h11 appends the bytes as a Python literal; they are not sent back.
            fault = _BYTES.sub("", str(sys.exception() or msg))
            error = BadRequest(f"This is not a valid HTTP/1.1 request: {fault}.")
            body = json.dumps(problem_body(error, HTTPStatus.BAD_REQUEST, "Bad request")).encode()
            head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: {_PROBLEM}\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: an offer of an upgrade may be ignored (RFC 9110, 7.8)."""


async def _send_in_pieces(send: Any, message: Mapping[str, Any]) -> None:
    """Send a message of ASGI; the server waits between the pieces of a body until the client has read them."""
    body: bytes = message.get("body", b"")
    start = 0
    while len(body) - start > _PIECE:
        await send({**message, "body": body[start : start + _PIECE], "more_body": True})
        start += _PIECE
    # The rest is not copied before: a client that does not read would keep the copy in memory.
    await send({**message, "body": body[start:]} if "body" in message else message)


def _network(client: tuple[str, int] | None) -> str:
    """Return the client's IPv4 address, or its IPv6 network of 64 bits, which belongs to one subscriber."""
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
