"""Databases that lost their content, and first starts that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.attacks.conftest import GatewayProcess

NewGateway = Callable[..., GatewayProcess]


@pytest.fixture
def gateway(new_gateway: NewGateway) -> GatewayProcess:
    """A stopped gateway that has answered a message."""
    gateway = new_gateway()
    gateway.start()
    with gateway.client() as client:
        client.post("/message", json={"content": "what is 2+2", "channelId": "kept"}).raise_for_status()
    gateway.stop()
    return gateway


def test_truncated_database_is_refused_until_it_is_restored(gateway: GatewayProcess) -> None:
    database = gateway.data_dir / "torana.db"
    assert gateway.run_command("backup", "good.zip").returncode == 0
    os.truncate(database, 0)

    for arguments in [("serve",), ("chat",), ("sessions", "list"), ("token", "list")]:
        done = gateway.run_command(*arguments, stdin="hello\n")
        assert done.returncode == 1, done
        assert f"{database} is empty" in done.stderr
        assert "`torana restore`, or delete the file to start with an empty database" in done.stderr
        assert database.stat().st_size == 0

    assert gateway.run_command("restore", "good.zip").returncode == 0
    assert "kept" in gateway.run_command("sessions", "list").stdout


def test_start_succeeds_after_a_killed_first_start(new_gateway: NewGateway) -> None:
    gateway = new_gateway()
    for number in range(3):
        _serve_until(gateway, changes=number)
        if (gateway.data_dir / "torana.db").exists():
            break
    gateway.start()
    with gateway.client() as client:
        client.post("/message", json={"content": "what is 2+2"}).raise_for_status()


def _serve_until(gateway: GatewayProcess, *, changes: int) -> None:
    """Serve, and kill the process after this number of changes to the database's files."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torana", "serve", "--port", gateway.url.rpartition(":")[2]],
        cwd=gateway.home,
        env=gateway.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen: dict[str, int] = {}
    left = changes + 1
    while left and process.poll() is None:
        found = _sizes(gateway.data_dir)
        left -= found != seen
        seen = found
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()


def _sizes(data_dir: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in data_dir.glob("torana.db*"):
        try:
            found[file.name] = file.stat().st_size
        except FileNotFoundError:
            continue
    return found
