"""The HTTP server at its connection limit: which connection it closes for a new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from socket import create_server
from typing import Any

import pytest
import uvicorn

from torana import http11

GET = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n"
CLOSED = b""


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, raw: bytes) -> None:
        """Send bytes."""
        self._writer.write(raw)
        await self._writer.drain()

    async def hear(self, end: bytes = b"\r\n\r\n") -> bytes:
        """Return all bytes up to ``end``, or nothing where the connection was closed."""
        try:
            async with asyncio.timeout(20):
                return await self._reader.readuntil(end)
        except (asyncio.IncompleteReadError, ConnectionError):
            return CLOSED

    async def close(self) -> None:
        """End it."""
        self._writer.close()


class Room:
    """A server that allows three connections, and its clients."""

    def __init__(self, port: int, stack: AsyncExitStack, called: asyncio.Semaphore) -> None:
        self._port = port
        self._stack = stack
        self._called = called

    async def enter(self, address: str = "127.0.0.1") -> Client:
        """Connect from an address of this machine."""
        streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
        client = Client(*streams)
        self._stack.push_async_callback(client.close)
        return client

    async def answered(self, path: bytes) -> Client:
        """Connect and send a request that the server has started to answer."""
        client = await self.enter()
        await client.say(GET % path)
        await self._called.acquire()
        return client


@pytest.fixture
async def room() -> AsyncGenerator[Room]:
    """``/wait`` gets no answer, ``/stream`` an unfinished one, ``/flood`` a huge one, others one at once."""
    called = asyncio.Semaphore(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/body":
            while (await receive()).get("more_body"):
                pass
        if scope["path"] == "/wait":
            called.release()
            await asyncio.Event().wait()
        length = 0 if scope["path"] in ("/", "/body") else 1 << 30
        head = [(b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        if scope["path"] == "/flood":
            called.release()
            for _ in range(64):
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        if scope["path"] == "/stream":
            await send({"type": "http.response.body", "body": b"event", "more_body": True})
            called.release()
            await asyncio.Event().wait()
        await send({"type": "http.response.body", "body": b""})

    async with AsyncExitStack() as stack:
        yield Room(await stack.enter_async_context(_served(app)), stack, called)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def _served(app: Callable[..., Any]) -> AsyncGenerator[int]:
    server = _Server(http11.Config(app, most=3, lifespan="off", timeout_graceful_shutdown=0))
    with create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await task


async def test_new_connection_replaces_the_slowest_one(room: Room) -> None:
    slow = [await room.enter() for _ in range(3)]
    for client in slow:
        await client.say(b"GET / HTTP/1.1\r\nX: ")

    newcomer = await room.enter()
    await newcomer.say(GET % b"")

    assert (await newcomer.hear()).startswith(b"HTTP/1.1 200")
    assert await slow[0].hear() == CLOSED
    await slow[1].say(b"x\r\nHost: h\r\n\r\n")
    assert (await slow[1].hear()).startswith(b"HTTP/1.1 200")


async def test_slow_body_does_not_protect_a_connection(room: Room) -> None:
    slow = [await room.enter() for _ in range(3)]
    for client in slow:
        await client.say(b"POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1")
    await slow[0].say(b"2")

    newcomer = await room.enter()
    await newcomer.say(GET % b"")

    assert (await newcomer.hear()).startswith(b"HTTP/1.1 200")
    assert await slow[0].hear() == CLOSED


async def test_connection_with_a_recent_body_is_closed_after_silent_ones(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = await room.enter()
    await sending.say(b"POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1")
    silent = [await room.enter() for _ in range(4)]
    assert await silent[0].hear() == CLOSED
    assert await silent[1].hear() == CLOSED

    monkeypatch.setattr(http11, "YOUNG_BODY", 0)
    await room.enter()

    assert await sending.hear() == CLOSED


async def test_idle_connections_are_closed_before_active_ones(room: Room) -> None:
    waiting, stream = await room.answered(b"wait"), await room.answered(b"stream")
    idle = await room.enter()
    await idle.say(GET % b"")
    await idle.hear()

    for _ in range(3):
        newcomer = await room.enter()
        await newcomer.say(GET % b"")
        assert (await newcomer.hear()).startswith(b"HTTP/1.1 200")

    assert await idle.hear() == CLOSED
    assert (await stream.hear(b"event")).startswith(b"HTTP/1.1 200")
    await waiting.say(b"x")  # still open


async def test_new_connection_is_closed_while_all_others_are_active(room: Room) -> None:
    for path in (b"wait", b"stream", b"wait"):
        await room.answered(path)

    assert await (await room.enter()).hear() == CLOSED


async def test_address_with_many_connections_loses_its_own(room: Room) -> None:
    honest = await room.enter("127.0.0.2")
    await honest.say(b"GET / HTTP/1.1\r\nX: ")

    for _ in range(10):
        greedy = await room.enter("127.0.0.3")
        await greedy.say(b"GET / HTTP/1.1\r\nX: ")

    await honest.say(b"x\r\nHost: h\r\n\r\n")
    assert (await honest.hear()).startswith(b"HTTP/1.1 200")


async def test_connection_that_does_not_read_its_response_is_closed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await room.answered(b"flood")
    assert await (await room.enter()).hear() == CLOSED

    monkeypatch.setattr(http11, "UNREAD_SECONDS", 0)
    newcomer = await room.enter()
    await newcomer.say(GET % b"")

    assert (await newcomer.hear()).startswith(b"HTTP/1.1 200")
