"""A model's server sends interim responses (1xx) without end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from tests.attacks.conftest import GatewayProcess

_INTERIM = b"HTTP/1.1 102 \r\n\r\n" * 4_000


@pytest.fixture
def endless_server() -> Iterator[str]:
    """The URL of a server that answers each request with interim responses only."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def send(connection: socket.socket) -> None:
            with suppress(OSError), closing(connection):
                while True:
                    connection.sendall(_INTERIM)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=send, args=[listener.accept()[0]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.timeout(120)
def test_endless_interim_responses_fail_the_turn(
    new_gateway: Callable[..., GatewayProcess], endless_server: str
) -> None:
    gateway = new_gateway(model="openai-chat:stand-in", model_api_key="none", model_base_url=endless_server)
    gateway.start()

    with gateway.client(timeout=90) as client:
        failed = client.post("/message", json={"content": "hello"})

        assert (failed.status_code, failed.json()["code"]) == (502, "model_failed")
        assert client.get("/health").json()["status"] == "ok"
