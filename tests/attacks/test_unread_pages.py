"""A user requests long pages and event streams on many connections, and does not read them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event

import httpx2
from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

from torana.testing.openai_server import ChatRequest, OpenAIStandIn, Reply

_TOKEN = "0123456789abcdef0123456789"
_MIB = 1024 * 1024
#: Requests that a user may have open at once.
_REQUESTS = 128
#: The memory that they may take: a page has at most 260,000 characters, here of four bytes.
_ROOM = 256 * _MIB
_RECEIVED = 4_096


def test_unread_pages_take_little_memory(new_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = new_gateway(gateway_token=_TOKEN)
    gateway.start()
    with gateway.client(token=_TOKEN) as operator, ExitStack() as stack:
        token = operator.post("/v1/tokens", json={"user": "mallory"}).json()["token"]
        session = _fill_session(gateway, token)
        before = gateway.process.memory_info().rss
        request = (
            f"GET /v1/sessions/{session}/messages?limit=200 HTTP/1.1\r\nHost: h\r\n"
            f"Authorization: Bearer {token}\r\n\r\n"
        )
        taken: list[int] = []
        for _ in range(_REQUESTS):
            connection = stack.enter_context(_connect(gateway))
            connection.sendall(request.encode())
            eventually(lambda: connection.recv(1, socket.MSG_PEEK))  # noqa: B023 - called in this round
            taken.append(gateway.process.memory_info().rss)
        assert operator.get("/health").json()["status"] == "ok"

    assert max(taken) - before < _ROOM


def test_unread_streams_of_a_long_reply_take_little_memory(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    def reply(_request: ChatRequest) -> str:
        return "x" * 1_040_000 + "\U0001f600"

    model = new_model(reply=reply)
    settings = {"model": "openai-chat:stand-in", "model_api_key": "none", "model_base_url": model.url}
    gateway = new_gateway(gateway_token=_TOKEN, **settings)
    gateway.start()
    with gateway.client(token=_TOKEN) as operator, ExitStack() as stack:
        token = operator.post("/v1/tokens", json={"user": "mallory"}).json()["token"]
        with gateway.client(token=token) as client:
            client.post("/message", json={"content": "hi"}).raise_for_status()
            (turn,) = client.get("/v1/turns").json()["items"]
        grown = _measure_unread_streams(gateway, operator, stack, turn=turn["id"], token=token)

    assert grown < _ROOM


def test_unread_streams_of_a_running_turn_take_little_memory(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    is_sent, is_over = Event(), Event()

    def reply(_request: ChatRequest) -> Reply:
        return Reply(pieces=pieces())

    def pieces() -> Iterator[str]:
        # The gateway keeps fewer events of a turn, so each stream begins with the whole text.
        yield "\U0001f600"
        yield from ["x" * 100] * 10_000
        is_sent.set()
        is_over.wait()

    model = new_model(reply=reply)
    settings = {"model": "openai-chat:stand-in", "model_api_key": "none", "model_base_url": model.url}
    gateway = new_gateway(gateway_token=_TOKEN, **settings)
    gateway.start()
    with gateway.client(token=_TOKEN) as operator, ExitStack() as stack:
        stack.callback(is_over.set)
        token = operator.post("/v1/tokens", json={"user": "mallory"}).json()["token"]
        with gateway.client(token=token) as client:
            headers = {"Prefer": "respond-async"}
            turn = client.post("/message", json={"content": "hi"}, headers=headers).json()
        assert is_sent.wait(60)
        grown = _measure_unread_streams(gateway, operator, stack, turn=turn["id"], token=token)

    assert grown < _ROOM


def _measure_unread_streams(
    gateway: GatewayProcess, operator: httpx2.Client, stack: ExitStack, *, turn: str, token: str
) -> int:
    """Open event streams of a turn and do not read them. Return the bytes by which the memory grew."""
    before = gateway.process.memory_info().rss
    request = f"GET /v1/turns/{turn}/events HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n"
    connections = [stack.enter_context(_connect(gateway)) for _ in range(_REQUESTS)]
    for connection in connections:
        connection.sendall(request.encode())
    taken: list[int] = []
    for connection in connections:
        assert connection.recv(12) == b"HTTP/1.1 200"
        taken.append(gateway.process.memory_info().rss)
    for _ in range(20):
        assert operator.get("/health").json()["status"] == "ok"
        taken.append(gateway.process.memory_info().rss)
    return max(taken) - before


def _fill_session(gateway: GatewayProcess, token: str) -> str:
    """Fill a session with long messages, and return its id."""
    with gateway.client(token=token) as client:
        for _ in range(100):
            message = {"content": "uppercase:\n" + "\U0001f600" * 9_980, "channelId": "long"}
            client.post("/message", json=message).raise_for_status()
        (session,) = client.get("/v1/sessions").json()["items"]
    return str(session["id"])


def _connect(gateway: GatewayProcess) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED)
    return connection


def test_unread_visits_without_a_token_take_little_memory(new_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = new_gateway(gateway_token=_TOKEN)
    gateway.start()
    visits = b"GET / HTTP/1.1\r\nHost: h\r\nAccept: text/html\r\n\r\n" * 30
    with gateway.client(token=_TOKEN) as operator, ExitStack() as stack:
        stack.enter_context(_connect_narrowly(gateway)).sendall(visits)
        before = gateway.process.memory_info().rss
        connections = [stack.enter_context(_connect_narrowly(gateway)) for _ in range(400)]
        for connection in connections:
            connection.sendall(visits)
        for connection in connections:
            assert connection.recv(12) == b"HTTP/1.1 401"
        assert operator.get("/health").json()["status"] == "ok"
        grown = gateway.process.memory_info().rss - before

    assert grown < 60 * _MIB  # the page is longer than 300,000 bytes


def _connect_narrowly(gateway: GatewayProcess) -> socket.socket:
    """Connect so that the kernel takes little of what the gateway sends."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    connection.connect(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
    return connection
