"""A start that fails or is cancelled half-way closes everything that it opened."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.integration.mcp.conftest import until
from tests.standins import hostile_mcp

from torana.app import App, build
from torana.config import load
from torana.errors import OperatorError, StoreUnavailable
from torana.store.backup.archive import DATABASE_NAME
from torana.testing import ScriptedModel


class Model(ScriptedModel):
    """A model that counts how often it is open."""

    opened = 0

    async def __aenter__(self) -> Model:
        self.opened += 1
        return self

    async def __aexit__(self, *args: object) -> None:
        self.opened -= 1


def built(home: Path, model: Model, **settings: object) -> App:
    """Build a gateway with an MCP server, which is a process."""
    server = {"command": sys.executable, "args": ["-P", hostile_mcp.__file__], "allow": ["echo"]}
    values = {"data_dir": home / "data", "mcp": json.dumps({"shop": server})} | settings
    environ = {f"TORANA_{name.upper()}": str(value) for name, value in values.items()}
    loaded = load(flags={}, environ=environ, cwd=home, user_dir=home)
    loaded.settings.data_dir.mkdir()
    return build(loaded, started=time.monotonic(), model=model)


def children() -> set[int]:
    """Return the child processes of this process."""
    return {child.pid for child in psutil.Process().children()}


@pytest.fixture
def used_port() -> Generator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def stores() -> set[threading.Thread]:
    """Return the threads of open databases."""
    return {thread for thread in threading.enumerate() if thread.name == "torana-store"}


@pytest.mark.parametrize("ends", ["skills", "turns", "hooks", "cancelled"])
async def test_failed_start_closes_everything_opened(tmp_path: Path, used_port: int, ends: str) -> None:
    tasks, processes, threads, model = asyncio.all_tasks(), children(), stores(), Model()
    settings: dict[str, Any] = {"hooks_port": used_port} if ends == "hooks" else {}
    app = built(tmp_path, model, **settings)
    await app.database.run(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 60000"))

    with closing(sqlite3.connect(tmp_path / "data" / DATABASE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the start waits until the server's process exists
        starting = asyncio.create_task(app.start())
        await until(lambda: len(children() - processes) == 1)
        assert model.opened == 1
        if ends == "cancelled":
            starting.cancel()
        elif ends != "hooks":
            other.execute(f"DROP TABLE {ends}")
        other.execute("COMMIT")
    with pytest.raises((StoreUnavailable, OperatorError, asyncio.CancelledError)):
        await starting

    assert asyncio.all_tasks() == tasks
    assert (model.opened, children()) == (0, processes)
    assert stores() == threads


async def test_gateway_built_but_never_started_can_be_closed(tmp_path: Path) -> None:
    app = built(tmp_path, Model())
    await app.close()
    await app.close()
    with pytest.raises(StoreUnavailable):
        await app.database.run(lambda connection: None)
