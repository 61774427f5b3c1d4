"""A phrase runs an approved skill's script after an approval, with a gateway in a separate process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx2
import pytest
from tests.integration.cli.conftest import Place
from tests.integration.sandbox.conftest import NOBODY
from tests.parts import require
from tests.unit.skills.archives import tarred

from torana.store.engine.lock import read_address

OPERATOR = "a-token-of-more-than-sixteen-characters"
SETTINGS = {
    "TORANA_GATEWAY_TOKEN": OPERATOR,
    "TORANA_PERMISSIONS": json.dumps([{"tool": "run_skill_script", "permission": "ask"}]),
}

FRONT = """\
---
name: count-words
description: Counts words.
metadata:
  torana:
    triggers: ["how many words has {{text}}"]
    writable: [{out}]
---
# Count words
"""
SCRIPT = """\
import sys
with open("{out}/runs", "a") as runs:
    runs.write("ran\\n")
print(len(sys.argv[1].split()), "words")
"""
MESSAGE = {"content": "how many words has one two three", "channelId": "home"}
#: A response after the end of the turn instead of its question.
WAIT = {"Prefer": "wait=60"}


class Gateway:
    """A gateway with the builtin model and a skill whose script needs approval; it can be restarted."""

    def __init__(self, place: Place, out: Path) -> None:
        self._place = place
        self._out = out
        self._process: Popen[str] | None = None

    async def start(self) -> httpx2.AsyncClient:
        """Start the gateway, and return a client of it."""
        self._process = await asyncio.to_thread(self._place.serve, **SETTINGS)
        return httpx2.AsyncClient(
            base_url=str(read_address(self._place.data_dir)),
            headers={"Authorization": f"Bearer {OPERATOR}"},
            timeout=60,
            trust_env=False,
        )

    async def install(self, client: httpx2.AsyncClient) -> None:
        """Install the skill, and approve it with its script."""
        files = {
            "count-words/SKILL.md": FRONT.format(out=self._out),
            "count-words/scripts/count.py": SCRIPT.format(out=self._out),
        }
        binary = {"Content-Type": "application/octet-stream"}
        installed = await client.post("/v1/skills", content=tarred(files), headers=binary)
        digest = installed.json()["current"]["digest"]
        approved = await client.post("/v1/skills/count-words/approve", json={"digest": digest, "scripts": True})
        assert (approved.status_code, approved.json()["granted"]) == (200, True)

    def kill(self) -> None:
        """Kill the gateway with ``kill -9``."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def script(self) -> Path:
        """The installed script."""
        (found,) = self._place.data_dir.glob("installed-skills/*/count-words/scripts/count.py")
        return found

    @property
    def runs(self) -> int:
        """The number of runs of the script."""
        kept = self._out / "runs"
        return len(kept.read_text().splitlines()) if kept.exists() else 0


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    require("bwrap", "bubblewrap")
    out = Path(tempfile.mkdtemp(prefix="asked-", dir="/var/tmp"))  # in /tmp no script could write to it
    # The sandbox has another user where the gateway is root.
    os.chown(out, os.geteuid() or NOBODY, -1)
    with ExitStack() as running:
        running.callback(shutil.rmtree, out)
        yield Gateway(Place(tmp_path, running), out)


async def events(client: httpx2.AsyncClient, turn_id: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a turn, to its end."""
    type_ = ""
    async with client.stream("GET", f"/v1/turns/{turn_id}/events") as stream:
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "data":
                yield type_, json.loads(value)
            type_ = value if name == "event" else type_


async def open_approval(client: httpx2.AsyncClient) -> dict[str, Any]:
    """Return the only approval, once it is open."""
    async with asyncio.timeout(30):
        while not (items := (await client.get("/v1/approvals")).json()["items"]):
            pass
    (item,) = items
    return item


async def approve(client: httpx2.AsyncClient, asked: dict[str, Any]) -> None:
    path = f"/v1/turns/{asked['turnId']}/approvals/{asked['callId']}"
    decided = await client.post(path, json={"decision": "approve"})
    assert (decided.status_code, decided.json()["state"]) == (200, "approved")


async def test_phrase_runs_its_script_in_the_sandbox_after_approval(gateway: Gateway) -> None:
    async with await gateway.start() as client:
        await gateway.install(client)
        posted = asyncio.create_task(client.post("/message", json=MESSAGE, headers=WAIT))
        asked = await open_approval(client)
        told: list[str] = []
        async for type_, data in events(client, asked["turnId"]):
            told.append(type_)
            if type_ == "approval.required":
                assert (data["callId"], data["tool"]) == (asked["callId"], "run_skill_script")
                assert data["arguments"] == {
                    "slug": "count-words",
                    "script": "scripts/count.py",
                    "arguments": ["one two three"],
                }
                assert (posted.done(), gateway.runs) == (False, 0)
                await approve(client, asked)
        answer = await posted

    assert (answer.status_code, answer.json()["id"]) == (200, asked["turnId"])
    assert "3 words" in answer.json()["reply"]
    assert gateway.runs == 1
    assert [type_ for type_ in told if type_ != "message.delta"] == [
        "turn.accepted",
        "tool.started",
        "approval.required",
        "tool.finished",
        "turn.completed",
    ]


async def test_script_changed_while_its_approval_is_open_does_not_run(gateway: Gateway) -> None:
    async with await gateway.start() as client:
        await gateway.install(client)
        posted = asyncio.create_task(client.post("/message", json=MESSAGE, headers=WAIT))
        asked = await open_approval(client)
        gateway.script.write_text(gateway.script.read_text() + "print('something else')\n")
        await approve(client, asked)
        answer = await posted

    reply = answer.json()["reply"]
    assert "not approved" in reply or "no skill" in reply  # the latter once its files were scanned again
    assert gateway.runs == 0


@pytest.mark.long
async def test_approval_survives_a_kill_and_the_script_runs_once(
    gateway: Gateway,
) -> None:
    async with await gateway.start() as client:
        await gateway.install(client)
        later = await client.post("/message", json=MESSAGE, headers={"Prefer": "respond-async"})
        asked = await open_approval(client)
        assert asked["turnId"] == later.json()["id"]
        gateway.kill()
    path = f"/v1/turns/{asked['turnId']}"

    async with await gateway.start() as client:
        assert await open_approval(client) == asked
        async for type_, data in events(client, asked["turnId"]):
            if type_ == "approval.required":
                assert data["callId"] == asked["callId"]
                assert (await client.get(path)).json()["status"] == "waiting"
                assert gateway.runs == 0
                await approve(client, asked)
                await approve(client, asked)  # a client that lost the first answer
        turn = (await client.get(path)).json()
        assert turn["status"] == "completed"
        assert "3 words" in turn["reply"]
        gateway.kill()

    async with await gateway.start() as client:
        assert (await client.get(path)).json() == turn
        assert (await client.get("/v1/approvals")).json()["items"] == []
    assert gateway.runs == 1
