"""A gateway whose data is in a real PostgreSQL server."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx2
import pytest
from tests.postgres import PostgresServer
from tests.standins.gate import Gate

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway, Person

Eventually = Callable[[Callable[[], Any]], Any]

ASKS = json.dumps([{"tool": "calculate", "permission": "ask"}])


@pytest.fixture
def server() -> Generator[PostgresServer]:
    """A server of this test alone, which it may stop."""
    with PostgresServer() as server:
        yield server


def command(gateway: Gateway, commands: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of torana with the settings of the gateway."""
    return subprocess.run(
        [str(commands / "torana"), *arguments],
        env=gateway.environ,
        capture_output=True,
        text=True,
        cwd=gateway.home,
        timeout=60,
        check=False,
    )


def test_everything_is_kept_in_postgresql_over_restarts_and_a_kill(
    server: PostgresServer,
    new_gateway: Callable[..., Gateway],
    person: type[Person],
    eventually: Eventually,
    installed_with_all: Path,
    gate: Gate,
    tmp_path: Path,
) -> None:
    (tmp_path / "dawdling.py").write_text(gate.tool)
    gateway = new_gateway(
        installed_with_all,
        TORANA_DATABASE_URL=server.create("torana"),
        TORANA_TOOLS="dawdling:dawdle",
        PYTHONPATH=str(tmp_path),
        TORANA_PERMISSIONS=ASKS,
    )
    gateway.start()
    ana = person(url=gateway.url)
    with ana.client() as client:
        later = client.post(
            "message", json=ana.body("what is 6 * 7"), headers={"Prefer": "respond-async"}
        ).json()
        turn = f"v1/turns/{later['id']}"
        (asked,) = eventually(lambda: ana.get(turn)["approvals"])
        planned = client.post("v1/schedules", json={"text": "tea", "at": "in 2 hours"})
        plan = f"v1/schedules/{planned.raise_for_status().json()['id']}"
        assert gateway.stop() == 0
        gateway.start()
        client.post(f"{turn}/approvals/{asked['callId']}", json={"decision": "approve"}).raise_for_status()
        assert "42" in eventually(lambda: _reply_of(ana.get(turn)))
        client.post(f"{plan}/run").raise_for_status()
        last = eventually(lambda: ana.get(plan)["turnId"])
        assert eventually(lambda: _reply_of(ana.get(f"v1/turns/{last}")))

    events = ana.events("use dawdle")
    killed = next(data["id"] for name, data in events if name == "turn.accepted")
    gate.reached()
    assert gateway.stop(signal.SIGKILL) == -signal.SIGKILL
    gate.open()
    gateway.start()
    assert eventually(lambda: _reply_of(ana.get(f"v1/turns/{killed}"))) == "dawdled to the end"
    assert "use dawdle" in ana.say("what did I say last?")

    other = new_gateway(installed_with_all, home="other")
    place = ["--port", str(other.port), "--data-dir", str(other.data_dir)]
    second = command(gateway, installed_with_all, "serve", *place)
    assert second.returncode == 1
    assert "is used by 'torana gateway on " in second.stderr
    assert second.stderr.count("\n") == 1
    assert "dawdle" in command(gateway, installed_with_all, "turns", "list").stdout
    assert not (gateway.data_dir / "torana.db").exists()
    assert "not-needed" not in gateway.written_output()


def _reply_of(turn: dict[str, Any]) -> str | None:
    return turn["reply"] if turn["status"] == "completed" else None


def test_backup_of_a_running_gateway_is_restored_into_both_kinds_of_databases(
    server: PostgresServer,
    new_gateway: Callable[..., Gateway],
    person: type[Person],
    installed_with_all: Path,
) -> None:
    gateway = new_gateway(installed_with_all, TORANA_DATABASE_URL=server.create("torana"))
    gateway.start()
    ana = person(url=gateway.url)
    ana.say("remember that my cat is called Tofu")
    ana.say("what is 6 * 7")
    done = command(gateway, installed_with_all, "backup", "torana.zip")
    assert (done.returncode, done.stderr) == (0, "")
    ana.say("the time after the backup")
    refused = command(gateway, installed_with_all, "restore", "torana.zip")
    assert (refused.returncode, "already running at" in refused.stderr) == (1, True)
    assert gateway.stop() == 0

    restored = command(gateway, installed_with_all, "restore", "torana.zip")

    assert restored.returncode == 0, restored.stderr
    assert "into PostgreSQL 127.0.0.1:" in restored.stdout
    assert len(list(gateway.data_dir.glob("torana.db.replaced-*"))) == 1
    on_sqlite = new_gateway(installed_with_all, home="sqlite")
    archive = str(gateway.home / "torana.zip")
    assert command(on_sqlite, installed_with_all, "restore", archive).returncode == 0
    for one in (gateway, on_sqlite):
        one.start()
        again = person(url=one.url)
        assert "6 * 7" in again.say("what did I say last?")
        assert "Tofu" in again.say("what do you know about my cat?")
        with again.client() as client:
            found = client.get("v1/search", params={"q": "tofu"}).raise_for_status().json()["items"]
            assert len(found) > 0
    assert "not-needed" not in gateway.written_output() + restored.stdout + restored.stderr + refused.stderr


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart_of_the_server_loses_no_acknowledged_message(
    server: PostgresServer,
    new_gateway: Callable[..., Gateway],
    installed_with_all: Path,
    person: type[Person],
    eventually: Eventually,
    mode: str,
) -> None:
    gateway = new_gateway(installed_with_all, TORANA_DATABASE_URL=server.create("torana"))
    gateway.start()
    ana = person(url=gateway.url)
    accepted: dict[str, str] = {}
    refused: list[int] = []
    done = threading.Event()

    def talk(speaker: int) -> None:
        number = 0
        with httpx2.Client(base_url=gateway.url, timeout=60, trust_env=False) as client:
            while not done.is_set():
                number += 1
                body = {"content": f"what is {speaker} * {number}", "channelId": f"channel {speaker}"}
                headers = {"Prefer": "respond-async", "Idempotency-Key": str(uuid4())}
                while (sent := client.post("message", json=body, headers=headers)).status_code == 503:
                    refused.append(speaker)
                    if done.wait(0.05):
                        return
                accepted[sent.raise_for_status().json()["id"]] = str(speaker * number)

    speakers = [threading.Thread(target=talk, args=[number]) for number in range(1, 5)]
    for speaker in speakers:
        speaker.start()
    eventually(lambda: len(accepted) > 20)
    server.stop(mode)
    eventually(lambda: len(refused) > 4)
    server.start()
    before = len(accepted)
    eventually(lambda: len(accepted) > before + 20)
    done.set()
    for speaker in speakers:
        speaker.join(60)

    replies = {turn: eventually(lambda turn=turn: _reply_of(ana.get(f"v1/turns/{turn}"))) for turn in accepted}
    assert [turn for turn, reply in replies.items() if f"= {accepted[turn]}" not in reply] == []
    stored = server.execute("SELECT content FROM turns", "torana")
    assert len(set(stored)) == len(stored)
