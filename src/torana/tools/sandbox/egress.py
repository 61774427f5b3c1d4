"""The network access of a sandbox: an HTTP proxy that connects only to granted hosts.

It accepts ``CONNECT`` (RFC 9110, 9.3.6) and plain HTTP in absolute form (RFC 9112, 3.2.2) on a Unix socket that
only the sandbox of this run can use. A host is resolved once in a run, and the proxy connects to one of the
checked addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from torana.web import WebFault

#: Returns the allowed addresses of a host's name for a port, such as ``web.Guard.resolve``.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: The ports of a host that was granted without a port.
WEB_PORTS = (80, 443)
HEAD_LIMIT = 16 * 1024
CONNECTIONS = 32
#: The maximum number of bytes of a run in each direction. The gateway forwards them in its event loop.
TRAFFIC_LIMIT = 100 * 1024 * 1024
TRAFFIC_EXCEEDED = (
    f"A run may send {TRAFFIC_LIMIT >> 20} MiB and receive as much, and a connection counts as 16 KiB; all its "
    "connections are closed."
)

#: Bytes that a connection counts as having sent, because opening one takes the gateway time.
_CONNECTION_BYTES = 16 * 1024

_CONNECT_TIMEOUT = 10.0
_CHUNK = 64 * 1024
_REFUSED_LIMIT = 20
#: Headers between the script and the proxy only, or replaced by the proxy.
_DROPPED = ("connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "upgrade")


@dataclass(frozen=True, slots=True)
class _Request:
    host: str
    port: int
    #: The request to forward before the following bytes; empty for CONNECT.
    head: bytes
    tunnel: bool


@dataclass(slots=True)
class _Traffic:
    """The bytes that a run may still send or receive."""

    left: int

    def count(self, size: int) -> None:
        """Count transferred bytes. Raises ``OSError`` above the limit."""
        self.left -= size
        if self.left < 0:
            raise OSError(TRAFFIC_EXCEEDED)


class Egress:
    def __init__(self, *, hosts: Iterable[str], resolve: Resolve) -> None:
        self._granted = frozenset(place for host in hosts for place in _places(host))
        self._resolve = resolve
        self._addresses: dict[str, Sequence[str]] = {}
        #: One lookup at a time: each occupies a thread that all runs share.
        self._looking_up = asyncio.Lock()
        self._sent, self._received = _Traffic(TRAFFIC_LIMIT), _Traffic(TRAFFIC_LIMIT)
        self._refused: dict[str, None] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def refused_hosts(self) -> tuple[str, ...]:
        """Return the first 20 requested ``host:port`` that were not granted."""
        return tuple(self._refused)

    @property
    def exceeded_traffic(self) -> bool:
        """Return whether connections were closed because the run sent or received too much."""
        return min(self._sent.left, self._received.left) < 0

    async def open(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._accept, path, limit=HEAD_LIMIT)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this in a task
        self._open.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                with suppress(OSError):  # ``_serve`` refuses the connection
                    self._sent.count(_CONNECTION_BYTES)
                await self._serve(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.exceeded_traffic:
            if self._server is not None:
                self._server.close()  # further connections fail
            await _refuse(writer, 503, TRAFFIC_EXCEEDED)
            return
        if len(self._open) > CONNECTIONS:
            await _refuse(writer, 503, "Too many connections at once.")
            return
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _CONNECT_TIMEOUT)
            request = _parse(head)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            await _refuse(writer, 400, "This proxy understands CONNECT and http:// requests.")
            return
        if (request.host, request.port) not in self._granted:
            place = f"{request.host}:{request.port}"[:300]
            if len(self._refused) < _REFUSED_LIMIT:
                self._refused[place] = None
            await _refuse(writer, 403, f"The operator has not granted {place} to this skill.")
            return
        try:
            out_reader, out_writer = await self._connect(request.host, request.port)
        except (OSError, TimeoutError, WebFault) as error:
            await _refuse(writer, 502, f"{request.host} cannot be reached: {error}")
            return
        try:
            await self._join(request, (reader, writer), (out_reader, out_writer))
        finally:
            out_writer.close()

    async def _join(
        self,
        request: _Request,
        inside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        outside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        if request.tunnel:
            inside[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            outside[1].write(request.head)
        await asyncio.gather(
            _pump(inside[0], outside[1], self._sent), _pump(outside[0], inside[1], self._received)
        )

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # A granted IP address is used directly, even if it is not public.
        addresses = [host] if _is_address(host) else await self._look_up(host, port)
        failure = OSError("the host has no address")
        for address in addresses:
            try:
                return await asyncio.wait_for(asyncio.open_connection(address, port), _CONNECT_TIMEOUT)
            except OSError as error:
                failure = error
        raise failure

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        async with self._looking_up:
            if host not in self._addresses:
                self._addresses[host] = await self._resolve(host, port)
            return self._addresses[host]


def _places(host: str) -> list[tuple[str, int]]:
    parts = urlsplit(f"//{host}")
    name = _normal(parts.hostname or "")
    return [(name, port) for port in ([parts.port] if parts.port else WEB_PORTS)]


def _normal(host: str) -> str:
    host = host.lower().removesuffix(".")
    return str(ip_address(host)) if _is_address(host) else host


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ip_address(host)
        return True
    return False


def _parse(head: bytes) -> _Request:
    """Parse a request to a proxy. Raises ``ValueError`` for any other request."""
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _version = first.split(" ")
    tunnel = method == "CONNECT"
    url = urlsplit(f"//{target}" if tunnel else target)
    if url.hostname is None or url.username is not None or url.scheme != ("" if tunnel else "http"):
        raise ValueError(target)
    port = url.port or 80
    if tunnel:
        return _Request(_normal(url.hostname), port, b"", tunnel=True)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    kept = [line for line in lines if line.partition(":")[0].strip().lower() not in _DROPPED]
    # One request per connection, because further requests would not be checked.
    sent = [f"{method} {path} HTTP/1.1", f"Host: {url.netloc}", "Connection: close", *kept]
    return _Request(_normal(url.hostname), port, "\r\n".join([*sent, "", ""]).encode("latin-1"), tunnel=False)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, traffic: _Traffic) -> None:
    while chunk := await reader.read(_CHUNK):
        traffic.count(len(chunk))
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _refuse(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    await writer.drain()
