"""Callers who try to occupy all connections with requests that are being answered, which are never closed."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from select import select

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.waiting import PATIENCE, eventually

from torana.testing.openai_server import Answer, Call, ChatRequest, OpenAIStandIn

TOKEN = "0123456789abcdef0123456789"
#: Files that the gateway may open; half of them are connections.
FILES = 256
TRIES = 140


def _reply(_: ChatRequest) -> Answer:
    return [Call("calculate", {"expression": "1+1"})]


@pytest.fixture
def gateway(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> GatewayProcess:
    """A gateway with few connections, on which every call waits for a yes."""
    gateway = new_gateway(
        gateway_token=TOKEN,
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=new_model(reply=_reply).url,
        permissions=json.dumps([{"tool": "calculate", "permission": "ask"}]),
    )
    gateway.start(prefix=("prlimit", f"--nofile={FILES}:{FILES}"))
    return gateway


def attack(stack: ExitStack, gateway: GatewayProcess, raw: str) -> list[socket.socket]:
    """Connect as often as possible, and send the same bytes each time. Returns the connections."""
    port = int(gateway.url.rpartition(":")[2])
    connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(TRIES)]
    for connection in connections:
        with suppress(ConnectionError):  # a connection above the limit is closed
            connection.sendall(raw.encode())
    return connections


def assert_open(gateway: GatewayProcess, token: str) -> None:
    for _ in range(5):
        with gateway.client(token=token, timeout=10) as client:
            assert client.get("/v1/sessions").status_code == 200
        assert httpx2.get(f"{gateway.url}/health", trust_env=False, timeout=PATIENCE).json()["status"] == "ok"


def test_event_streams_of_one_user_keep_nobody_out(gateway: GatewayProcess) -> None:
    with gateway.client(token=TOKEN) as operator, ExitStack() as stack:
        alice, bob = (
            operator.post("/v1/tokens", json={"user": user}).json()["token"] for user in ("alice", "bob")
        )
        with gateway.client(token=alice) as client:
            message = {"content": "sum", "channelId": "a"}
            turn = client.post("/message", json=message, headers={"Prefer": "respond-async"}).json()["id"]
            eventually(lambda: client.get(f"/v1/turns/{turn}").json()["status"] == "waiting")
        connections = attack(
            stack,
            gateway,
            f"GET /v1/turns/{turn}/events HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {alice}\r\n\r\n",
        )
        # A connection whose request is being answered is not closed for a new one.
        eventually(lambda: len(select(connections, [], [], 0)[0]) == TRIES)

        assert_open(gateway, bob)
        with gateway.client(token=alice) as client:
            refused = client.get("/v1/sessions")
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    with gateway.client(token=alice) as client:  # the streams were left
        eventually(lambda: client.get("/v1/sessions").status_code == 200)


def test_wrong_tokens_keep_nobody_out(gateway: GatewayProcess) -> None:
    with ExitStack() as stack:
        # The next request waits already when a refusal, which takes a second, is written.
        attack(stack, gateway, "GET /v1/sessions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer no\r\n\r\n" * 40)

        assert_open(gateway, TOKEN)
