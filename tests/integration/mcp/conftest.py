"""MCP servers, real and hostile, behind the real agent."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from tests.standins import hostile_mcp

from torana.agent import TurnAgent
from torana.messages import Inbound, utc_now
from torana.store.engine.database import Database
from torana.testing import ScriptedModel
from torana.tools.mcp.entries import read_servers
from torana.tools.mcp.servers import McpServers
from torana.tools.mcp.toolset import McpToolset
from torana.turns import Turns

Start = Callable[..., Awaitable[McpServers]]
#: ``await ask(servers, ("name", {…}))`` calls the tool in a turn, and returns the result that the model
#: receives.
Ask = Callable[..., Coroutine[Any, Any, str]]


@pytest.fixture
async def start(tmp_path: Path, database: Database) -> AsyncGenerator[Start]:
    """``await start(time={"command": …})`` connects to servers, and waits until each was tried."""
    started: list[McpServers] = []

    async def connect(wait: bool = True, **tables: dict[str, Any]) -> McpServers:
        servers = McpServers(
            servers=read_servers(tables, file=None, environ=os.environ),
            database=database,
            data_dir=tmp_path,
            path=os.environ["PATH"],
            taken=frozenset({"calculate"}),
            clock=utc_now,
            head_start=0.2,
        )
        started.append(servers)
        servers.start()
        if wait:
            await wait_until_tried(servers)
        return servers

    yield connect
    for servers in started:
        await servers.stop()


@pytest.fixture
def hostile(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``hostile("trick", …)`` returns the settings of a hostile server."""

    def make(trick: str = "", **settings: Any) -> dict[str, Any]:
        # -P: a module beside it has the name of one of the standard library.
        arguments = ["-P", hostile_mcp.__file__, trick, str(tmp_path / "state")]
        return {
            "command": sys.executable,
            "args": arguments,
            "allow": [*hostile_mcp.TOOLS, "new", "tool_63"],
            **settings,
        }

    return make


@pytest.fixture
def ask(
    open_agent: Callable[..., TurnAgent], open_turns: Callable[..., Turns], message: Callable[..., Inbound]
) -> Ask:
    """Calls tools; see ``Ask``."""

    async def call(servers: McpServers, *calls: tuple[str, dict[str, Any]]) -> str:
        parts = [ToolCallPart(name, arguments) for name, arguments in calls]
        model = ScriptedModel(parts, "done")
        turns = open_turns(agent=open_agent(model, McpToolset(servers)))
        turn = await turns.reader.wait_for_end(await turns.accept(message("go", channel=None)))
        assert turn.state == "completed", turn.failure
        told = model.requests[-1].messages[-1].parts
        return "\n".join(str(part.content) for part in told if isinstance(part, ToolReturnPart))

    return call


async def wait_until_tried(servers: McpServers) -> None:
    """Wait until the state of each server is known."""
    await asyncio.gather(*(one.tried.wait() for one in servers.supervisors.values()))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the test's own time limit ends the wait."""
    while not condition():  # noqa: ASYNC110 - what is waited for is in other processes
        await asyncio.sleep(0.01)


def the_program() -> psutil.Process:
    """Return the process of the only hostile server; this process also has others."""
    (program,) = (one for one in psutil.Process().children() if hostile_mcp.__file__ in one.cmdline())
    return program


def is_alive(pid: int) -> bool:
    """Return whether a process runs."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False
