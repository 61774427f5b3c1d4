"""An MCP server's list of tools that is costly to check, while users talk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

from torana.tools.mcp.entries import Server
from torana.tools.mcp.vetting import vet

#: Draft 4 demands that values differ, so each is compared with each: about a second for one tool.
COSTLY = {
    "type": "object",
    "$schema": "http://json-schema.org/draft-04/schema#",
    "enum": [number or "a" for number in range(1_990)],
}
PLAIN = {"type": "object"}
#: As many as the threads that all users share, on two processors.
SERVERS = 6

PROGRAM = """
import json, sys

TOOLS = [{"name": f"t{number}", "description": "", "inputSchema": SCHEMA} for number in range(9)]
ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "costly", "version": "1"},
    },
    "tools/list": {"tools": TOOLS},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWERS.get(message["method"], {})}
        print(json.dumps(answer), flush=True)
"""


def tools(count: int, schema: Any) -> list[dict[str, Any]]:
    return [{"name": f"t{number}", "description": "", "inputSchema": schema} for number in range(count)]


def test_checking_a_costly_list_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count()
    monkeypatch.setattr("torana.tools.mcp.vetting.time.thread_time", lambda: next(seconds))

    listing = vet(Server(name="costly", command="x"), tools(1_000, PLAIN), more=False, taken=frozenset())

    assert [offer.tool for offer in listing.offers] == ["t0", "t1", "t2"]
    (left_out,) = listing.left_out
    assert "takes too long" in left_out.reason


def test_a_schema_that_breaks_its_check_costs_its_own_tool_alone() -> None:
    broken = [
        {"type": "object", "properties": {"x": {"pattern": text}}} for text in ("(" * 3_000, "a{9999999999}")
    ]
    offered = [*tools(1, PLAIN)]
    offered += [{"name": f"broken{number}", "inputSchema": schema} for number, schema in enumerate(broken)]

    listing = vet(Server(name="costly", command="x"), offered, more=False, taken=frozenset())

    assert [offer.tool for offer in listing.offers] == ["t0"]
    assert [one.tool for one in listing.left_out] == ["broken0", "broken1"]


def test_servers_with_costly_lists_leave_users_their_threads(
    new_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    program = tmp_path / "costly.py"
    program.write_text(PROGRAM.replace("SCHEMA}", f"json.loads({json.dumps(json.dumps(COSTLY))})}}"))
    gateway = new_gateway(
        toml="".join(
            f'[mcp.costly{number}]\ncommand = "{sys.executable}"\nargs = ["{program}"]\n'
            for number in range(SERVERS)
        ),
        wait="10",
    )
    gateway.start()
    with gateway.client(timeout=120) as client:
        eventually(lambda: all(one["state"] == "active" for one in client.get("/v1/mcp").json()["items"]))
        # Files are read and written in those threads; a late reply is a 504.
        for content in ("save milk to notes.txt", "read notes.txt"):
            reply = client.post("/message", json={"content": content, "userId": "ana"}).raise_for_status()
        assert "milk" in reply.json()["reply"]
