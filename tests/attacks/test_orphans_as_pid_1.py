"""A gateway that is the first process of a container reaps the orphans that it adopts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.attacks.scripts import install_script, run_script
from tests.parts import require
from tests.waiting import eventually

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")

#: A script that is killed and leaves processes without living parents.
SCRIPT = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    os.wait()
while True:
    os.write(1, b"flood " * 10_000)
"""
#: An MCP server that leaves a process in its own session, which writes a file and ends.
PROGRAM = """
import subprocess, sys
subprocess.run(["sh", "-c", "setsid sh -c 'sleep 0.2; touch ended' >/dev/null 2>&1 &"])
sys.stdin.read()
"""
TOML = '[mcp.parent]\ncommand = "{python}"\nargs = ["{program}"]\n'


@pytest.fixture
def gateway(new_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> GatewayProcess:
    """A gateway that is the first process of a namespace."""
    require("bwrap", "bubblewrap")
    allowed = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode:
        pytest.skip(f"a namespace of processes needs root: {allowed.stderr.strip()}")
    program = tmp_path / "parent.py"
    program.write_text(PROGRAM)
    gateway = new_gateway(toml=TOML.format(python=sys.executable, program=program))
    gateway.start(prefix=UNSHARE)
    return gateway


def zombies(gateway: GatewayProcess) -> list[psutil.Process]:
    descendants = gateway.process.children(recursive=True)
    return [process for process in descendants if process.status() == psutil.STATUS_ZOMBIE]


def test_ended_orphans_are_reaped(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        install_script(client, SCRIPT)
        replies = [run_script(client) for _ in range(3)]

    assert all("more than 4 MiB of output" in reply for reply in replies)
    eventually((gateway.data_dir / "mcp" / "parent" / "ended").exists)
    eventually(lambda: not zombies(gateway))
