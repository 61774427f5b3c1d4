"""``kill -9`` between an approval question in a response, the yes, and the reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

NOTE = 'use note {"text": "x"}'
ASKS = json.dumps([{"tool": "note", "permission": "ask"}])


def post(program: Any, content: str, *, key: str = "", patience: float = 60) -> httpx2.Response:
    body = {"content": content, "channelId": "desk", "userId": "ana"}
    headers = {"Idempotency-Key": key} if key else {}
    timeout = httpx2.Timeout(60, read=patience)
    return httpx2.post(f"{program.url}message", json=body, headers=headers, timeout=timeout, trust_env=False)


@pytest.fixture
def program(new_program: Callable[..., Any]) -> Any:
    program = new_program(TORANA_PERMISSIONS=ASKS)
    restart(program)
    return program


def restart(program: Any) -> None:
    program.kill()
    program.start()
    program.wait_until_up()


def test_yes_after_kill_returns_the_reply_and_runs_the_call_once(program: Any) -> None:
    asked = post(program, NOTE).json()
    assert asked["status"] == "waiting"

    restart(program)
    answered = post(program, "yes", key="yes").json()
    restart(program)
    repeated = post(program, "yes", key="yes").json()

    assert (answered["id"], answered["status"]) == (asked["id"], "completed")
    assert "noted x" in answered["reply"]
    assert repeated == answered
    assert program.lines("notes") == ["x"]


def test_repeated_yes_returns_the_reply_that_a_kill_interrupted(
    program: Any, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    asked = post(program, NOTE).json()
    hold = program.home / "hold-after"
    hold.touch()
    with pytest.raises(httpx2.ReadTimeout):
        post(program, "yes", key="yes", patience=0.01)
    eventually((program.home / "held-after").exists)

    program.kill()
    hold.unlink()
    restart(program)
    repeated = post(program, "yes", key="yes").json()

    assert (repeated["id"], repeated["status"]) == (asked["id"], "completed")
    assert program.lines("notes") == ["x"]
