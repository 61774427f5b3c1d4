"""The number of write transactions of a turn is bounded, however long its history is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart
from sqlalchemy.engine import Connection

from torana.agent import TurnAgent
from torana.messages import Inbound
from torana.store.engine.database import T
from torana.store.engine.sqlite import SqliteDatabase
from torana.testing import ScriptedModel
from torana.testing.scripted import Piece
from torana.turns import Turns


class Counting(SqliteDatabase):
    """A database that counts write transactions, also where several commit together."""

    def __init__(self, *, path: Path) -> None:
        super().__init__(path=path)
        self.writes = 0

    async def run(self, work: Callable[[Connection], T]) -> T:
        def counted(connection: Connection) -> T:
            raw = connection.connection.dbapi_connection
            assert raw is not None
            before = raw.total_changes
            result = work(connection)
            self.writes += raw.total_changes > before
            return result

        return await super().run(counted)


def calculations(number: int) -> list[Piece]:
    return [ToolCallPart("calculate", {"expression": "1+1"}, tool_call_id=str(n)) for n in range(number)]


@pytest.mark.parametrize(
    ("script", "most"),
    [
        (["done"], 2),
        ([calculations(1), "done"], 4),
        ([calculations(3), "done"], 8),
        ([calculations(1), calculations(1), "done"], 6),
        ([[ToolCallPart("nonsense", {})], "done"], 3),
    ],
    ids=["no tool", "a call", "three at once", "two steps", "a call of no tool"],
)
async def test_turn_writes_twice_plus_twice_for_each_call(
    path: Path,
    open_agent: Callable[..., TurnAgent],
    open_turns: Callable[..., Turns],
    message: Callable[..., Inbound],
    script: Any,
    most: int,
) -> None:
    database = Counting(path=path)
    model = ScriptedModel("first", *script)
    turns = open_turns(agent=open_agent(model, database=database), database=database)
    await turns.reader.wait_for_end(await turns.accept(message(user="ana")))
    before = database.writes

    ended = await turns.reader.wait_for_end(await turns.accept(message(user="ana", key="k")))

    assert ended.reply == "done"
    assert database.writes - before <= most
    await turns.stop(grace=0)
    database.close()
