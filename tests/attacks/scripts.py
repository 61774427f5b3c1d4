"""Skill scripts on a gateway under attack."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

import httpx2
from tests.unit.skills.archives import tarred

_FRONT = "name: attack\ndescription: Attacks.\n"


def install_script(client: httpx2.Client, script: str, *, hosts: Sequence[str] = ()) -> None:
    """Install and approve a skill with this Python script and hosts, as a deceived operator would."""
    needs = f"metadata:\n  torana:\n    hosts: {json.dumps(hosts)}\n" if hosts else ""
    text = f"---\n{_FRONT}{needs}---\n# Attack\n"
    archive = tarred({"attack/SKILL.md": text, "attack/scripts/attack.py": textwrap.dedent(script)})
    headers = {"Content-Type": "application/octet-stream"}
    client.post("/v1/skills", content=archive, headers=headers).raise_for_status()
    digest = client.get("/v1/skills/attack").raise_for_status().json()["current"]["digest"]
    body = {"digest": digest, "scripts": True}
    client.post("/v1/skills/attack/approve", json=body).raise_for_status()


def run_script(client: httpx2.Client, *arguments: str) -> str:
    """Run the script with the ``builtin`` model, and return the reply."""
    call = {"slug": "attack", "script": "scripts/attack.py", "arguments": arguments}
    answer = client.post("/message", json={"content": f"use run_skill_script {json.dumps(call)}"})
    return answer.raise_for_status().json()["reply"]
