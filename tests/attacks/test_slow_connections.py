"""Clients that connect and then send almost nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.waiting import PATIENCE

NewGateway = Callable[..., GatewayProcess]

TOKEN = "0123456789abcdef0123456789"
HEADS = {
    "nothing": b"",
    "head": b"POST /hooks/a HTTP/1.1\r\nHost: h\r\nX: ",
    "body": b"POST /hooks/a HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1",
}

#: The number of files that the gateway may open; half of them are for the listener, an eighth for the hooks.
FILES = 400


@pytest.fixture
def hooks_port() -> int:
    """A free port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port: int = free.getsockname()[1]
    return port


def hold(stack: ExitStack, port: int, raw: bytes, count: int) -> None:
    """Open this number of connections, and send the same bytes on each."""
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        with suppress(OSError):  # closed by the server
            connection.sendall(raw)


def test_slow_connections_do_not_block_other_clients(new_gateway: NewGateway, hooks_port: int) -> None:
    gateway = new_gateway(hooks_port=str(hooks_port), gateway_token=TOKEN)
    gateway.start(prefix=("prlimit", f"--nofile={FILES}"))
    main_port = int(gateway.url.rpartition(":")[2])
    # An event stream that existed before keeps its connection.
    with gateway.client(token=TOKEN) as client, ExitStack() as stack:
        stream = stack.enter_context(
            client.stream(
                "POST",
                "/message",
                json={"content": "what is 2+2", "channelId": "a"},
                headers={"Accept": "text/event-stream"},
            )
        )
        for raw in HEADS.values():
            hold(stack, hooks_port, raw, FILES // 4)
            answer = httpx2.post(f"http://127.0.0.1:{hooks_port}/hooks/a", trust_env=False, timeout=PATIENCE)
            assert answer.status_code == 404  # there is no such account, but the call was processed
            hold(stack, main_port, raw.replace(b"/hooks/a", b"/message"), FILES // 2)
            assert (
                httpx2.get(f"{gateway.url}/health", trust_env=False, timeout=PATIENCE).json()["status"] == "ok"
            )
            with gateway.client(token=TOKEN) as another:
                assert another.post("/message", json={"content": "what is 2+2"}).status_code == 200
        assert "turn.completed" in "".join(stream.iter_text())
    assert "slow_connections_evicted" in gateway.output
