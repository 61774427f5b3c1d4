"""The gateway as a service: installation, shutdown, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.standins.gate import Gate

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway, Person

TOKEN = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"

SKILL = """---
name: tea
description: How tea is made here. Use it when someone asks for tea.
---
# Tea

Boil water first.
"""


def test_gateway_runs_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "python"), "-c", "import torana; print(torana.__file__)"]
    found = subprocess.run(
        command, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=30, check=True
    )
    assert Path(found.stdout.strip()).is_relative_to(installed.parent)


def test_health_and_skills_agree_after_a_skill_is_added(
    new_gateway: Callable[..., Gateway],
    person: type[Person],
    eventually: Callable[[Callable[[], Any]], Any],
) -> None:
    gateway = new_gateway()
    gateway.start()
    ana = person(url=gateway.url)
    assert ana.get("health").keys() == {"status", "version", "uptime", "memory", "skills", "connectors"}
    assert ana.get("health")["skills"] == _counted(ana.get("skills")) == {"core": 15, "user": 0}
    (gateway.skills_dir / "tea").mkdir(parents=True)
    (gateway.skills_dir / "tea" / "SKILL.md").write_text(SKILL)
    eventually(lambda: ana.get("health")["skills"]["user"] == 1)
    assert _counted(ana.get("skills")) == {"core": 15, "user": 1}
    assert "Boil water first." in ana.say("explain the tea skill")


def _counted(skills: list[dict[str, Any]]) -> dict[str, int]:
    sources = [skill["source"] for skill in skills]
    return {source: sources.count(source) for source in ("core", "user")}


def test_killed_turn_is_answered_after_the_restart(
    new_gateway: Callable[..., Gateway],
    person: type[Person],
    eventually: Callable[[Callable[[], Any]], Any],
    tmp_path: Path,
) -> None:
    gate = Gate()
    (tmp_path / "dawdling.py").write_text(gate.tool)
    gateway = new_gateway(TORANA_TOOLS="dawdling:dawdle", PYTHONPATH=str(tmp_path))
    gateway.start()
    ana = person(url=gateway.url)
    ana.say("what is 1 + 1")
    events = ana.events("use dawdle")
    turn = next(data["id"] for name, data in events if name == "turn.accepted")
    gate.reached()
    assert gateway.stop(signal.SIGKILL) == -signal.SIGKILL
    gate.open()
    gateway.start()
    ended = eventually(lambda: _if_completed(ana.get(f"v1/turns/{turn}")))
    assert ended["reply"] == "dawdled to the end"
    assert "use dawdle" in ana.say("what did I say last?")
    assert "what is 1 + 1" in ana.say("what did I say first?")


def _if_completed(turn: dict[str, Any]) -> dict[str, Any] | None:
    return turn if turn["status"] == "completed" else None


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_gateway_exits_cleanly_and_writes_only_log_lines(
    new_gateway: Callable[..., Gateway], person: type[Person], signal_: int
) -> None:
    gateway = new_gateway()
    gateway.start()
    person(url=gateway.url).say("what is 6 * 7")
    assert gateway.stop(signal_) == 0
    lines = [json.loads(line) for line in gateway.stderr.read_text().splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    assert {"timestamp", "logger", "event"} <= lines[0].keys()


def test_logs_contain_no_message_text(new_gateway: Callable[..., Gateway], person: type[Person]) -> None:
    gateway = new_gateway(TORANA_GATEWAY_TOKEN=TOKEN)
    gateway.start()
    ana = person(url=gateway.url, token=TOKEN)
    for message in ("remember that my boat is called Zephyrine", "what is my boat called", "Quisquilia?"):
        ana.say(message)
    assert gateway.stop() == 0
    written = gateway.written_output()
    assert gateway.log_file.parent.stat().st_mode & 0o077 == 0
    assert "turn_ended" in gateway.log_file.read_text()
    for secret in ("Zephyrine", "Quisquilia", "boat", TOKEN):
        assert secret not in written


def test_second_gateway_on_the_same_data_is_refused(
    new_gateway: Callable[..., Gateway], installed: Path
) -> None:
    gateway = new_gateway()
    gateway.start()
    command = [str(installed / "torana"), "serve", "--port", "1", "--data-dir", str(gateway.data_dir)]
    second = subprocess.run(command, env={}, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert second.stderr.startswith(f"already running at {gateway.url.rstrip('/')} ")
    assert second.stderr.count("\n") == 1
