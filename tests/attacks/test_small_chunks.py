"""Clients without a token send bodies in chunks of one byte."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest
from tests.attacks.conftest import GatewayProcess

TOKEN = "0123456789abcdef0123456789"
HEAD = b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
#: 100,000 chunks took a second of processor time.
CHUNKS = b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n"
#: After this request the gateway closes the connection, unless it did so before.
END = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
CONNECTIONS = 20
SECONDS = 5


@pytest.mark.parametrize("token", [TOKEN, None], ids=["refused", "read"])
def test_bodies_in_tiny_chunks_cost_little(
    new_gateway: Callable[..., GatewayProcess], token: str | None
) -> None:
    gateway = new_gateway(**{"gateway_token": token} if token else {})
    gateway.start()
    port = int(gateway.url.rpartition(":")[2])
    before = gateway.cpu_seconds()

    with ExitStack() as stack:
        for path in [b"/message", b"/nope"] * (CONNECTIONS // 2):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):  # closed by the gateway
                connection.sendall(HEAD % path + CHUNKS + END)
                while connection.recv(65_536):
                    pass
    with gateway.client() as client:
        assert client.get("/health").json()["status"] == "ok"

    assert gateway.cpu_seconds() - before < SECONDS
