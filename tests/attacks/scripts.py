"""Skill scripts on a gateway under attack."""

from __future__ import annotations

import json
import textwrap

import httpx2
from tests.unit.skills.archives import tarred

_FRONT = "---\nname: attack\ndescription: Attacks.\n---\n# Attack\n"


def install_script(client: httpx2.Client, script: str) -> None:
    """Install and approve a skill with this Python script, as a deceived operator would."""
    archive = tarred({"attack/SKILL.md": _FRONT, "attack/scripts/attack.py": textwrap.dedent(script)})
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
