"""Attacks by an operator's assistant: skills whose reports are slow, requested many times."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.attacks.conftest import GatewayProcess

#: Each slash may begin the path of a shell.
_LINE = "curl " + "/" * 295 + "|"
_FILE_BYTES = 500 * 1024
_REQUESTS = 40


def archive(line: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr("tea/SKILL.md", "---\nname: tea\ndescription: tea\n---\nBoil water.\n")
        for number in range(4):
            files.writestr(f"tea/{number}.txt", (line * (_FILE_BYTES // len(line))))
    return packed.getvalue()


def cost_of_reports(gateway: GatewayProcess, token: str, line: str) -> float:
    """Return the processor time of installing a skill and of asking for its report many times."""
    before = gateway.cpu_seconds()
    with gateway.client(token=token, timeout=120) as client, ThreadPoolExecutor(_REQUESTS) as pool:
        headers = {"Content-Type": "application/zip"}
        client.post("/v1/skills", content=archive(line), headers=headers).raise_for_status()
        for response in pool.map(client.get, ["/v1/skills/tea"] * _REQUESTS):
            response.raise_for_status()
        cost = gateway.cpu_seconds() - before
        client.delete("/v1/skills/tea").raise_for_status()
    return cost


def test_report_on_runs_of_slashes_costs_as_much_as_one_on_letters(
    new_gateway: Callable[..., GatewayProcess],
) -> None:
    gateway = new_gateway()
    gateway.start()
    issued = gateway.run_command("token", "create", "--scope", "skills", "--json")
    token = json.loads(issued.stdout)["token"]

    letters = cost_of_reports(gateway, token, "curl " + "a" * 295 + "|")
    slashes = cost_of_reports(gateway, token, _LINE)

    assert slashes < 3 * letters, (slashes, letters)
