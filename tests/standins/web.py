"""A small internet on loopback: host names with public addresses, and one server for every host."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import httpx2

from torana.web import Guard, GuardedClient
from torana.web.guard import Interfaces

#: A public address of a host that no test reaches: connections to it are redirected to loopback.
PUBLIC = "93.184.215.14"
#: The default DNS answer of the test host names.
SITE = "site.test"

Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Seen(NamedTuple):
    """A request that the server received."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Internet:
    """The responses of the servers, and the received requests.

    ``names`` contains the DNS answers of each name, one for each lookup; the last one repeats.
    """

    def __init__(self) -> None:
        self.names: dict[str, list[list[str]]] = {SITE: [[PUBLIC]]}
        self.seen: list[Seen] = []
        #: The addresses and ports of the connections.
        self.dialled: list[tuple[str, int | None]] = []
        #: Addresses without a listener, with the ports.
        self.dead: dict[str, int] = {}
        self._pages: dict[str, Handler] = {}
        #: The server's own port.
        self.port = 0

    def page(
        self,
        path: str,
        body: bytes | str = b"",
        *,
        type: str = "text/html; charset=utf-8",  # noqa: A002
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer requests for ``path``."""
        data = body.encode() if isinstance(body, str) else body
        head = {"Content-Type": type, "Content-Length": str(len(data))} | dict(headers or {})
        lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in head.items()), "", ""]

        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write("\r\n".join(lines).encode() + data)

        self._pages[path] = answer

    def moved(self, path: str, location: str, *, status: int = 302) -> None:
        """Redirect requests for ``path``."""
        self.page(path, status=status, headers={"Location": location})

    def play(self, path: str, handler: Handler) -> None:
        """Answer requests for ``path`` byte by byte."""
        self._pages[path] = handler

    async def resolve(self, name: str, port: int) -> Sequence[str]:
        """Look a name up, as a ``Resolver``."""
        answers = self.names.get(name)
        if answers is None:
            raise OSError(f"no such name: {name}")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def client(
        self,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        interfaces: Callable[[], Interfaces] = Interfaces,
    ) -> GuardedClient:
        """Return a client whose guard knows only these names, and whose connections end at this server."""
        guard = Guard(allow=allow, deny=deny, resolver=self.resolve, interfaces=interfaces)
        return GuardedClient(guard=guard, transport=_Led(self, tls))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection with one request."""
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.seen.append(Seen(method, path, headers, body))
            handler = self._pages.get(path.partition("?")[0])
            if handler is None:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            else:
                await handler(writer)
            await writer.drain()
        with suppress(ConnectionError, ssl.SSLError):
            writer.close()
            await writer.wait_closed()


class _Led(httpx2.AsyncBaseTransport):
    """Redirects every connection to the one server, and records its address."""

    def __init__(self, internet: Internet, tls: ssl.SSLContext | None) -> None:
        self._internet = internet
        self._inner = httpx2.AsyncHTTPTransport(
            verify=tls or True, limits=httpx2.Limits(max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._internet.dialled.append((request.url.host, request.url.port))
        port = self._internet.dead.get(request.url.host, self._internet.port)
        request.url = request.url.copy_with(host="127.0.0.1", port=port)
        return await self._inner.handle_async_request(request)


@asynccontextmanager
async def internet(tls: ssl.SSLContext | None = None) -> AsyncGenerator[Internet]:
    """Run an internet, with ``tls`` over https; open connections are closed at the end."""
    play = Internet()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await play.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    play.port = server.sockets[0].getsockname()[1]
    try:
        yield play
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
