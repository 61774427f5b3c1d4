"""A program of an MCP server that does not end with its input, and a gateway that is killed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

PROGRAM = """
import json, signal, sys, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "stubborn", "version": "1"},
    },
    "tools/list": {"tools": []},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWERS.get(message["method"], {})}
        print(json.dumps(answer), flush=True)
while True:
    time.sleep(60)
"""


def test_killed_gateways_leave_one_program(new_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    program = tmp_path / "stubborn.py"
    program.write_text(PROGRAM)
    gateway = new_gateway(toml=f'[mcp.stubborn]\ncommand = "{sys.executable}"\nargs = ["{program}"]\n')

    def running() -> list[psutil.Process]:
        found = psutil.process_iter(["cmdline"])
        return [one for one in found if (one.info["cmdline"] or [])[-1:] == [str(program)]]

    try:
        for _ in range(3):
            gateway.start()
            with gateway.client() as client:
                eventually(lambda client=client: client.get("/v1/mcp").json()["items"][0]["state"] == "active")
            assert len(running()) == 1
            gateway.kill()
    finally:
        for one in running():
            one.kill()
