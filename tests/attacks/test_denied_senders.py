"""A sender on a chat platform schedules tasks, and is then denied."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx2
from tests.attacks.conftest import GatewayProcess
from tests.standins.webhook import SECRET, Program
from tests.waiting import PATIENCE, eventually

_SENDER = "hook:eve"
_TASK = {"text": "what time is it?", "rule": "* * * * *", "kind": "task"}


def test_denied_sender_keeps_no_running_schedule(new_gateway: Callable[..., GatewayProcess]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
    gateway = new_gateway(
        toml=f'[connectors.hook]\nkind = "webhook"\nsecrets = "{SECRET}"\n',
        model="builtin",
        hooks_port=str(port),
        schedule_min_minutes="1",
    )
    gateway.start()

    def schedule() -> int:
        body = json.dumps({"content": f"use schedule_repeating {json.dumps(_TASK)}", "sender": "eve"}).encode()
        call = Program().request(body)
        address = f"http://127.0.0.1:{port}/hooks/hook"
        return httpx2.post(
            address, content=call.body, headers=call.headers, trust_env=False, timeout=PATIENCE
        ).status_code

    with gateway.client() as client:

        def list_schedules() -> list[dict[str, Any]]:
            return client.get("/v1/schedules").json()["items"]

        assert gateway.run_command("pair", "approve", _SENDER).returncode == 0
        eventually(lambda: schedule() == 200)
        eventually(list_schedules)

        assert gateway.run_command("pair", "deny", _SENDER).returncode == 0

        assert [one["state"] for one in list_schedules()] == ["paused"]
