"""A user sends bodies with as many JSON values as allowed, on many connections without a pause."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import Answer, Call, ChatRequest, OpenAIStandIn

_TOKEN = "0123456789abcdef0123456789"
_ASKS = json.dumps([{"tool": "calculate", "permission": "ask"}])
_VALUES = {f"n{number}": 0 for number in range(9_900)}
_SECONDS = 6
#: Seconds within which the gateway answers others in half of the cases. Without pauses it takes 1.5 and more.
_PROMPT = 1.0

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
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn], kind: str
) -> None:
    def reply(request: ChatRequest) -> Answer:
        return [Call("calculate", {"expression": "1+1"})] if request.text == "ask" else "hello"

    model = new_model(reply=reply)
    gateway = new_gateway(
        gateway_token=_TOKEN,
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=model.url,
        permissions=_ASKS,
    )
    gateway.start()
    with gateway.client(token=_TOKEN) as operator:
        mallory, alice = (
            operator.post("/v1/tokens", json={"user": user}).json()["token"] for user in ("mallory", "alice")
        )
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
    waits: list[float] = []
    with (
        gateway.client(token=alice) as client,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flood,
    ):
        assert flood.stdin is not None
        assert flood.stdout is not None
        flood.stdin.write(json.dumps(body).encode())
        flood.stdin.close()
        while flood.poll() is None:
            begin = time.monotonic()
            client.post("/message", json={"content": "hi"}).raise_for_status()
            waits.append(time.monotonic() - begin)
            time.sleep(0.2)
        statuses = flood.stdout.read().split()

    assert statuses == [b"200" if kind == "title" else b"400"]
    assert sorted(waits)[len(waits) // 2] < _PROMPT
