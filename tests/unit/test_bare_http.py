"""The HTTP server at its limits: connections, small chunks, heads, and responses that are not read."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import h11
import pytest
import uvicorn
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from torana import http11

GET = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKED = b"POST /%s HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
SMALL_CHUNK = b"1\r\nx\r\n"
CLOSED = b""
#: More than the buffers of a connection take.
LARGE = 32 << 20


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, raw: bytes) -> None:
        """Send bytes."""
        self._writer.write(raw)
        await self._writer.drain()

    async def read_until(self, end: bytes = b"\r\n\r\n") -> bytes:
        """Return all bytes up to ``end``; empty if the connection was closed."""
        try:
            async with asyncio.timeout(20):
                return await self._reader.readuntil(end)
        except (asyncio.IncompleteReadError, ConnectionError):
            return CLOSED

    async def read(self, count: int) -> None:
        """Read this number of bytes."""
        async with asyncio.timeout(20):
            await self._reader.readexactly(count)

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

    async def start_response(self, path: bytes) -> Client:
        """Connect and send a request that the server has started to answer."""
        client = await self.enter()
        await client.say(GET % path)
        await self._called.acquire()
        return client

    async def next_call(self) -> None:
        """Wait until the server has called the application for one more of the paths that wait."""
        async with asyncio.timeout(20):
            await self._called.acquire()

    def has_more_calls(self) -> bool:
        """Return whether the server has called the application again since the last ``next_call``."""
        return not self._called.locked()


@pytest.fixture
async def room() -> AsyncGenerator[Room]:
    """A server with these paths: ``/wait`` has no response, ``/stream`` an unfinished one, ``/flood`` an
    endless one, ``/large`` one of ``LARGE`` bytes; all others respond at once.
    """
    called = asyncio.Semaphore(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/body":
            while (await receive()).get("more_body"):
                pass
        if scope["path"] == "/wait":
            called.release()
            await asyncio.Event().wait()
        length = {"/": 0, "/body": 0, "/large": LARGE}.get(scope["path"], 1 << 30)
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
        await send({"type": "http.response.body", "body": bytes(LARGE) if scope["path"] == "/large" else b""})

    async with AsyncExitStack() as stack:
        yield Room(await stack.enter_async_context(_served(app)), stack, called)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def _served(app: Callable[..., Any], *, most: int = 3) -> AsyncGenerator[int]:
    server = _Server(http11.Config(app, most=most, lifespan="off", timeout_graceful_shutdown=0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await task


def test_several_connections_are_accepted_in_a_pass() -> None:
    """The time of a pass depends on all that the gateway does, so a burst must not take a pass for each."""
    accepted = Counter[int]()

    async def accept(connections: int) -> None:
        passes = 0

        class Counting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted[passes] += 1
                transport.close()

        with socket.create_server(("127.0.0.1", 0), backlog=connections) as listener, ExitStack() as clients:
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            servers = [await loop.create_server(Counting, sock=one) for one in http11.duplicate(listener)]
            for _ in range(connections):
                clients.enter_context(socket.create_connection(listener.getsockname()))
            while accepted.total() < connections:
                await asyncio.sleep(0)
                passes += 1
            for server in servers:
                server.close()

    uvloop.run(accept(64))

    assert len(accepted) <= 64 // 8


async def test_request_that_outlasts_the_shutdown_gets_a_response_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called = asyncio.Semaphore(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        called.release()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        async with _served(app) as port:
            client = await Room(port, stack, called).start_response(b"wait")
        assert (await client.read_until()).startswith(b"HTTP/1.1 503")

    assert "Exception in ASGI application" not in caplog.text


async def test_new_connection_replaces_the_slowest_one(room: Room) -> None:
    slow = [await room.enter() for _ in range(3)]
    for client in slow:
        await client.say(b"GET / HTTP/1.1\r\nX: ")

    newcomer = await room.enter()
    await newcomer.say(GET % b"")

    assert (await newcomer.read_until()).startswith(b"HTTP/1.1 200")
    assert await slow[0].read_until() == CLOSED
    await slow[1].say(b"x\r\nHost: h\r\n\r\n")
    assert (await slow[1].read_until()).startswith(b"HTTP/1.1 200")


async def test_slow_body_does_not_protect_a_connection(room: Room) -> None:
    slow = [await room.enter() for _ in range(3)]
    for client in slow:
        await client.say(b"POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1")
    await slow[0].say(b"2")

    newcomer = await room.enter()
    await newcomer.say(GET % b"")

    assert (await newcomer.read_until()).startswith(b"HTTP/1.1 200")
    assert await slow[0].read_until() == CLOSED


async def test_connection_with_a_recent_body_is_closed_after_silent_ones(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = await room.enter()
    await sending.say(b"POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1")
    silent = [await room.enter() for _ in range(4)]
    assert await silent[0].read_until() == CLOSED
    assert await silent[1].read_until() == CLOSED

    monkeypatch.setattr(http11, "YOUNG_BODY", 0)
    await room.enter()

    assert await sending.read_until() == CLOSED


async def test_idle_connections_are_closed_before_active_ones(room: Room) -> None:
    waiting, stream = await room.start_response(b"wait"), await room.start_response(b"stream")
    idle = await room.enter()
    await idle.say(GET % b"")
    await idle.read_until()

    for _ in range(3):
        newcomer = await room.enter()
        await newcomer.say(GET % b"")
        assert (await newcomer.read_until()).startswith(b"HTTP/1.1 200")

    assert await idle.read_until() == CLOSED
    assert (await stream.read_until(b"event")).startswith(b"HTTP/1.1 200")
    await waiting.say(b"x")  # still open


async def test_new_connection_is_closed_while_all_others_are_active(room: Room) -> None:
    for path in (b"wait", b"stream", b"wait"):
        await room.start_response(path)

    assert await (await room.enter()).read_until() == CLOSED


async def test_address_with_many_connections_loses_its_own(room: Room) -> None:
    honest = await room.enter("127.0.0.2")
    await honest.say(b"GET / HTTP/1.1\r\nX: ")

    for _ in range(10):
        greedy = await room.enter("127.0.0.3")
        await greedy.say(b"GET / HTTP/1.1\r\nX: ")

    await honest.say(b"x\r\nHost: h\r\n\r\n")
    assert (await honest.read_until()).startswith(b"HTTP/1.1 200")


async def test_connection_that_does_not_read_its_response_is_closed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await room.start_response(b"flood")
    assert await (await room.enter()).read_until() == CLOSED

    monkeypatch.setattr(http11, "UNREAD_SECONDS", 0)
    newcomer = await room.enter()
    await newcomer.say(GET % b"")

    assert (await newcomer.read_until()).startswith(b"HTTP/1.1 200")


async def test_connection_that_reads_nothing_for_long_is_closed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http11, "STALLED_SECONDS", 0)

    client = await room.start_response(b"flood")

    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.read(64 << 20)


@pytest.mark.parametrize("size", [0, 16_384, 16_385, 200_000])
async def test_body_is_passed_on_in_pieces(size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    sent: list[dict[str, Any]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def note(message: dict[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "headers": [], "raw_path": b"/"}
    await cast("Any", http11.Config(app, most=1).app)(scope, None, note)

    start, *pieces = sent
    assert start["type"] == "http.response.start"
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) <= 16_384
    assert [piece["more_body"] for piece in pieces] == [True] * (len(pieces) - 1) + [False]


async def test_body_that_a_client_does_not_read_is_not_copied() -> None:
    body = bytes(1_000_000)
    traced: list[int] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": body})

    async def note(_: dict[str, Any]) -> None:
        traced.append(tracemalloc.get_traced_memory()[0])

    scope: dict[str, Any] = {"type": "http", "headers": [], "raw_path": b"/"}
    tracemalloc.start()
    try:
        await cast("Any", http11.Config(app, most=1).app)(scope, None, note)
    finally:
        tracemalloc.stop()

    assert max(traced) - min(traced) < 100_000


async def test_body_in_many_small_chunks_is_refused(room: Room) -> None:
    client = await room.enter()
    await client.say(CHUNKED % b"body" + SMALL_CHUNK * 1_000)

    assert (await client.read_until()).startswith(b"HTTP/1.1 400 ")
    assert b"the chunks of the body are too small" in await client.read_until(b"}")
    assert await client.read_until() == CLOSED


async def test_body_in_some_small_chunks_is_accepted(room: Room) -> None:
    client = await room.enter()
    await client.say(CHUNKED % b"body" + SMALL_CHUNK * http11.FREE_CHUNKS + b"0\r\n\r\n")
    assert (await client.read_until()).startswith(b"HTTP/1.1 200 ")

    # The next request of the connection has its own bound.
    await client.say(CHUNKED % b"body" + SMALL_CHUNK * http11.FREE_CHUNKS + b"0\r\n\r\n")
    assert (await client.read_until()).startswith(b"HTTP/1.1 200 ")


async def test_small_chunks_after_the_response_close_the_connection(room: Room) -> None:
    client = await room.enter()
    await client.say(CHUNKED % b"")
    assert (await client.read_until()).startswith(b"HTTP/1.1 200 ")

    await client.say(SMALL_CHUNK * 1_000)

    assert await client.read_until() == CLOSED


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"a:\r\n" * 300 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"a:\n" * 300,
        CHUNKED % b"body" + b"0\r\n" + b"a:\r\n" * 300 + b"\r\n",
        CHUNKED % b"body" + b"0\r\na:\r\n" + b" \r\n" * 300 + b"\r\n",
        CHUNKED % b"body" + b"0\r\n" + b"a:\n" * 300,
    ],
    ids=["head", "unfinished head", "trailers", "folded trailer", "unfinished trailers"],
)
async def test_too_many_lines_are_refused(room: Room, raw: bytes) -> None:
    client = await room.enter()
    await client.say(raw)

    assert (await client.read_until()).startswith(b"HTTP/1.1 400 ")
    assert b"too many header or trailer lines" in await client.read_until(b"}")


def test_too_many_trailers_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(side_effect=AssertionError)
    connection = http11.BoundedConnection()
    connection.receive_data(CHUNKED % b"body")
    assert isinstance(connection.next_event(), h11.Request)
    monkeypatch.setattr("h11._readers._decode_header_lines", parse)
    connection.receive_data(b"0\r\n" + b"a:\n" * 20_000 + b"\n")

    with pytest.raises(h11.RemoteProtocolError, match="too many header or trailer lines"):
        connection.next_event()


def test_head_of_known_length_is_sent_with_the_body() -> None:
    connection = http11.BoundedConnection()
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    connection.next_event()
    head = h11.Response(status_code=200, headers=[("Content-Length", "5")])

    assert connection.send(head) == b""
    assert connection.send(h11.Data(data=b"hello")) == b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nhello"


def test_head_of_a_stream_is_sent_at_once() -> None:
    connection = http11.BoundedConnection()
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    connection.next_event()

    assert connection.send(h11.Response(status_code=200, headers=[])).startswith(b"HTTP/1.1 200")


def test_head_of_the_greatest_length_follows_a_chunked_body() -> None:
    connection = http11.BoundedConnection()
    head = b"GET / HTTP/1.1\r\n" + b"Host: h\r\n" + b"a: b\r\n" * (http11.HEAD_LINES - 3) + b"\r\n"
    connection.receive_data(CHUNKED % b"body" + b"0\r\nname: value\r\n\r\n" + head)
    assert isinstance(connection.next_event(), h11.Request)
    assert connection.next_event() == h11.EndOfMessage(headers=[("name", "value")])
    connection.send(h11.Response(status_code=204, headers=[]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()

    assert isinstance(connection.next_event(), h11.Request)


async def test_many_query_parameters_are_refused(room: Room) -> None:
    client = await room.enter()
    most = b"&".join([b"a=1"] * http11.QUERY_PARAMETERS)
    await client.say(b"GET /?" + most + b" HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.read_until()).startswith(b"HTTP/1.1 200 ")

    await client.say(b"GET /?" + most + b"& HTTP/1.1\r\nHost: h\r\n\r\n")

    assert (await client.read_until()).startswith(b"HTTP/1.1 400 ")
    assert b"the query has too many parameters" in await client.read_until(b"}")


@given(
    sizes=st.lists(st.one_of(st.integers(1, 3), st.integers(1, 300)), max_size=600),
    cut=st.integers(1, 5_000),
)
def test_cost_of_a_body_is_bounded_by_its_size(sizes: list[int], cut: int) -> None:
    body = b"".join(b"%x\r\n%s\r\n" % (size, bytes(size)) for size in sizes)
    raw = CHUNKED % b"" + body + b"0\r\n\r\n"
    parsed: list[int] = []
    connection = http11.BoundedConnection()
    too_small = any(
        count > http11.FREE_CHUNKS + sum(sizes[:count]) // http11.BYTES_PER_CHUNK
        for count in range(len(sizes) + 1)
    )
    try:
        for start in range(0, len(raw), cut):
            connection.receive_data(raw[start : start + cut])
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                parsed += [len(event.data)] if isinstance(event, h11.Data) and event.chunk_start else []
        refused = False
    except h11.RemoteProtocolError:
        refused = True

    assert len(parsed) <= http11.FREE_CHUNKS + sum(sizes) // http11.BYTES_PER_CHUNK
    # A chunk that arrives in parts counts from its first part.
    assert refused or not too_small
    if all(size >= http11.BYTES_PER_CHUNK for size in sizes):
        assert not refused


async def test_pipelined_request_waits_until_the_response_is_read(room: Room) -> None:
    client = await room.enter()
    await client.say(GET % b"large" + GET % b"wait")
    for _ in range(2):
        other = await room.enter()
        await other.say(GET % b"")
        await other.read_until()
    assert not room.has_more_calls()

    await client.read_until()
    await client.read(LARGE)

    await room.next_call()


class CountingConnection(http11.BoundedConnection):
    """Counts how often the head is read."""

    reads = 0

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        self.reads += 1
        return super().trailing_data


@pytest.mark.parametrize("more", [[b"x"] * 1_000, [b"x\n", *[b"x:y\n"] * (http11.HEAD_LINES - 4)]])
def test_head_is_not_read_again_for_each_piece(more: list[bytes]) -> None:
    connection = CountingConnection()
    for data in (b"GET / HTTP/1.1\r\nHost: h\r\nX: ", *more):
        connection.receive_data(data)
        assert connection.next_event() is h11.NEED_DATA
    connection.receive_data(b"\n\n" if more[-1] == b"x" else b"\n")

    assert isinstance(connection.next_event(), h11.Request)
    assert connection.reads == 0


def test_lines_of_a_head_are_counted_as_they_arrive() -> None:
    connection = http11.BoundedConnection()
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert isinstance(connection.next_event(), h11.Request)
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    connection.send(h11.Response(status_code=204, headers=[]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()

    connection.receive_data(b"GET / HTTP/1.1\r\n")
    for _ in range(http11.HEAD_LINES - 1):
        assert connection.next_event() is h11.NEED_DATA
        connection.receive_data(b"x: y\r\n")
    assert connection.next_event() is h11.NEED_DATA
    connection.receive_data(b"x: y\r\n")
    with pytest.raises(h11.RemoteProtocolError, match="too many header or trailer lines"):
        connection.next_event()


async def test_heads_are_parsed_for_a_short_time_in_each_pass_and_in_order() -> None:
    now, parsed = 0.0, list[int]()

    def head(number: int) -> None:
        nonlocal now
        now += 0.002
        parsed.append(number)

    heads = http11.Heads(clock=lambda: now)
    for number in range(8):
        heads.parse(partial(head, number))
    counts = [len(parsed)]
    for _ in range(3):
        await asyncio.sleep(0)
        counts.append(len(parsed))

    assert counts == [3, 6, 8, 8]
    assert parsed == list(range(8))
    heads.parse(partial(head, 8))
    assert parsed[-1] == 8


async def test_connections_whose_heads_wait_are_answered_or_forgotten() -> None:
    answered: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answered.append(scope["path"])
        await http11.send_json(send, {})

    async with _served(app, most=100) as port:
        clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(40)]
        for number, client in enumerate(clients):
            await client.say(GET % b"a%d" % number + GET % b"b%d" % number)
        await clients[7].close()
        for client in clients[:7] + clients[8:]:
            assert (await client.read_until(b"{}")).startswith(b"HTTP/1.1 200")
            assert (await client.read_until(b"{}")).startswith(b"HTTP/1.1 200")
            await client.close()

    assert set(answered) >= {f"/{name}{number}" for number in range(40) if number != 7 for name in "ab"}
