"""Attacks on budgets: many concurrent messages, with the tools of several MCP servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from tests.waiting import eventually

from torana.testing.openai_server import Call, ChatRequest, OpenAIStandIn, Reply

_LIMIT = 300_000
_MESSAGES = 40

#: An MCP server that offers 30 tools of about 2,000 bytes each.
_PROGRAM = """
import json, sys

TOOLS = [
    {"name": f"tool{number}", "description": "d" * 1900, "inputSchema": {"type": "object", "properties": {}}}
    for number in range(30)
]
ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "many", "version": "1"},
    },
    "tools/list": {"tools": TOOLS},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWERS.get(message["method"], {})}
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("bytes_per_token", [1, 4])
def test_concurrent_messages_exceed_the_budget_by_at_most_one_call(
    new_gateway: Callable[..., Any],
    new_model: Callable[..., OpenAIStandIn],
    tmp_path: Path,
    bytes_per_token: int,
) -> None:
    calls: list[int] = []

    def rule(request: ChatRequest) -> Reply:
        size = len(request.model_dump_json(include={"messages", "tools"}).encode())
        calls.append(size // bytes_per_token + 10)
        again = [Call("count_text", {"text": request.text})]
        usage = {"prompt_tokens": size // bytes_per_token, "completion_tokens": 10}
        return Reply(answer="done" if request.results else again, usage=usage)

    model = new_model(reply=rule)
    program = tmp_path / "many.py"
    program.write_text(_PROGRAM)
    entry = f"command = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(program))}]\n"
    gateway = new_gateway(
        toml="".join(f"[mcp.{name}]\n{entry}\n" for name in ("one", "two", "three")),
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=model.url,
        limits_per_user=f"{_LIMIT} tokens/day",
        concurrency="100",
        context_window="1_000_000",
        tools_direct="90",
    )
    gateway.start()
    with gateway.client() as client:
        eventually(lambda: [one["tools"] for one in client.get("/v1/mcp").json()["items"]] == [30, 30, 30])
    barrier = Barrier(_MESSAGES)

    def send(number: int) -> int:
        with gateway.client() as client:
            barrier.wait()
            message = {"content": f"hello {number}", "channelId": f"c{number}", "userId": "mallory"}
            return client.post("/message", json=message).status_code

    with ThreadPoolExecutor(_MESSAGES) as threads:
        statuses = list(threads.map(send, range(_MESSAGES)))
    with gateway.client() as client:
        spent = client.get("/v1/users/mallory/usage").json()["limits"][0]
        listed = client.get("/v1/mcp").json()

    assert [server["tools"] for server in listed["items"]] == [30, 30, 30]
    assert set(statuses) <= {200, 429}
    assert spent["reserved"] == 0
    assert spent["used"] == sum(calls)
    assert spent["used"] <= _LIMIT + max(calls, default=0)
    assert (200 in statuses) == (bytes_per_token == 4)  # otherwise the two calls of a turn take 400,000
