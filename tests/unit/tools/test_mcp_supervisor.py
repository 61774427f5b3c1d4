"""The supervisor of an MCP server bounds how often it lists the server's tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from torana.store.engine.database import Database
from torana.tools.mcp.connection import Connection, ConnectionState
from torana.tools.mcp.entries import Server
from torana.tools.mcp.listing import Listing
from torana.tools.mcp.pins import Pins
from torana.tools.mcp.supervisor import McpSupervisor


class Announcing:
    """A connection whose server says at some of its lists, by their numbers, that the list has changed."""

    is_busy = False

    def __init__(self, changes: Sequence[int], *, lists: int) -> None:
        self.state = ConnectionState()
        self._changes = changes
        self._left = lists
        self._listed = 0

    async def list_tools(self, *, taken: frozenset[str]) -> Listing:
        self._listed += 1
        if self._listed in self._changes:
            self.state.check_needed.set()
        if self._listed == self._left:
            self.state.end("the test is over")
        return Listing()


@pytest.mark.parametrize(
    ("changes", "seconds", "pauses"),
    [
        (range(1, 20), 0, [1, 2, 4, 8, 16, 32, 60, 60]),
        ((2, 3, 4, 6), 0, [1, 2, 4, 8, 1, 2, 1, 1]),
        (range(1, 20), 2, [40, 40, 40, 40, 40, 40, 60, 60]),
        ((2, 3, 4, 6), 4, [60] * 8),
    ],
    ids=["constantly", "at times", "constantly and slow", "at times and slower"],
)
async def test_pauses_grow_while_a_server_announces_changes(
    monkeypatch: pytest.MonkeyPatch,
    clock: Callable[[], datetime],
    tmp_path: Path,
    database: Database,
    changes: Sequence[int],
    seconds: int,
    pauses: list[float],
) -> None:
    """The lists of the server take ``seconds``."""
    connection = Announcing(changes, lists=len(pauses) + 1)
    waited: list[float] = []

    async def wait(event: asyncio.Event, *, seconds: float) -> None:
        if event is connection.state.has_ended:
            waited.append(seconds)

    @asynccontextmanager
    async def connect(_server: Server) -> AsyncGenerator[Connection]:
        yield cast("Any", connection)

    async def open_() -> Any:
        return connect

    async def stop(_seconds: float) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr("torana.tools.mcp.supervisor._until", wait)
    elapsed = count(step=seconds)
    watch = SimpleNamespace(perf_counter=lambda: next(elapsed))
    monkeypatch.setattr("torana.tools.mcp.supervisor.time", watch)
    supervisor = McpSupervisor(
        server=Server(name="shop", command="x"),
        open_=open_,
        pins=Pins(database=database, path=tmp_path / "pins.json", server="shop", source="x"),
        taken=frozenset(),
        clock=clock,
        pause=stop,
    )

    with pytest.raises(asyncio.CancelledError):
        await supervisor.run()

    assert waited == pauses
