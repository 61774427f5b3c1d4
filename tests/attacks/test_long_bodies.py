"""A user sends bodies with as many JSON values as allowed, on many connections without a pause."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import Answer, Call, ChatRequest

_TOKEN = "0123456789abcdef0123456789"
_VALUES = {f"n{number}": 0 for number in range(9_900)}
_SECONDS = 6

#: A process of its own, so that the flood does not delay the measurement.
_FLOOD = """
import http.client, sys, threading, time, urllib.parse
url, token, method, path, seconds = sys.argv[1:]
body, end = sys.stdin.buffer.read(), time.monotonic() + float(seconds)
headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
statuses = set()
def flood():
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    while time.monotonic() < end:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        response.read()
        statuses.add(response.status)
threads = [threading.Thread(target=flood) for _ in range(40)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(*statuses)
"""


@pytest.mark.parametrize("kind", ["title", "decision"])
def test_long_bodies_delay_no_other_user(
    start_asking_gateway: Callable[..., GatewayProcess], kind: str
) -> None:
    def reply(request: ChatRequest) -> Answer:
        return [Call("calculate", {"expression": "1+1"})] if request.text == "ask" else "hello"

    gateway = start_asking_gateway(reply, _TOKEN)
    mallory, alice = gateway.create_tokens("mallory", "alice", operator=_TOKEN)
    with gateway.client(token=mallory) as client:
        asked = client.post("/message", json={"content": "ask"}).json()
    approval = asked["approval"]
    method, path, body = {
        "title": ("PATCH", f"/v1/sessions/{asked['sessionId']}", {"title": "x", "of": _VALUES}),
        "decision": (
            "POST",
            f"/v1/approvals/{approval['id']}",
            {"decision": "approve", "digest": approval["digest"], "arguments": _VALUES},
        ),
    }[kind]
    command = [sys.executable, "-c", _FLOOD, gateway.url, mallory, method, path, str(_SECONDS)]
    end = time.monotonic() + _SECONDS
    with gateway.client(token=alice) as client:
        usual = _count_answers(client, lambda: time.monotonic() < end)
    with (
        gateway.client(token=alice) as client,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flood,
    ):
        assert flood.stdin is not None
        assert flood.stdout is not None
        flood.stdin.write(json.dumps(body).encode())
        flood.stdin.close()
        answered = _count_answers(client, lambda: flood.poll() is None)
        statuses = flood.stdout.read().split()

    assert statuses == [b"200" if kind == "title" else b"400"]
    assert answered > usual / 3


def _count_answers(client: httpx2.Client, goes_on: Callable[[], bool]) -> int:
    """Send messages one after the other, and return the number of their responses."""
    answered = 0
    while goes_on():
        client.post("/message", json={"content": "hi"}).raise_for_status()
        answered += 1
    return answered
