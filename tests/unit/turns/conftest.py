"""Fixtures for a gateway that a test can crash and start again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import pytest
from pydantic_ai import FunctionToolset
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset
from tests.assembling import turns_over
from tests.waiting import PATIENCE

from torana.agent import Answer, Bounds, Emit, TurnAgent
from torana.agent.journal import Journal, Step
from torana.limits.budgets import Budgets
from torana.messages import Turn, TurnEvent, Usage
from torana.permissions import Rules
from torana.store.engine.database import Database
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.redis.server import RedisServer
from torana.testing import Piece, ScriptedModel
from torana.tools import ToolContext
from torana.turns import Queue, Turns
from torana.turns import replicas as module
from torana.turns.approvals import Approvals


class Obedient:
    """An agent that ends each turn as the test directs, addressed by the turn's content."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Future[str]] = {}
        self.journals: dict[str, Journal] = {}
        self.heard: dict[str, list[str]] = {}
        self._emits: dict[str, Emit] = {}
        self._changed = asyncio.Event()

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        content = turn.content
        self.running[content] = asyncio.get_running_loop().create_future()
        self._emits[content] = emit
        self.journals[content] = journal
        self._note_change()
        try:
            text = await self.running[content]
            self.heard[content] = [turn.content for turn in await journal.steers(1)]
        finally:
            del self.running[content]
            self._note_change()
        journal.leave(owed=Usage(input_tokens=3), asking=False)
        return Answer(reply=text, model="m", history=(b"[]", 0))

    async def until(self, *contents: str) -> None:
        """Wait until exactly these turns run."""
        try:
            async with asyncio.timeout(PATIENCE):
                while set(self.running) != set(contents):
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{sorted(self.running)} run, not {sorted(contents)}") from None

    def say(self, content: str, text: str) -> None:
        """Emit a part of the turn's reply."""
        self._emits[content]("message.delta", {"text": text})

    async def settle(self, content: str) -> None:
        """Settle a step of the turn."""
        await self.journals[content].settle(Step(number=0, messages=[]))

    def end(self, content: str, outcome: str | Exception = "done") -> None:
        """End the turn with a reply or an error."""
        if isinstance(outcome, str):
            self.running[content].set_result(outcome)
        else:
            self.running[content].set_exception(outcome)

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Turns over a model and a database, from one start to the next crash."""

    database: Database
    turns: Turns
    model: ScriptedModel
    #: The agent of the test. It is unused where the real agent runs over the model.
    agent: Obedient

    async def crash(self) -> None:
        """Cancel every task without cleanup, as a killed process would."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.database.close()

    async def look(self) -> None:
        """Wait for the duration of one database read."""
        await self.database.run(lambda connection: connection.closed)

    async def until_asked(self, number: int) -> None:
        """Wait until the model has received this number of requests."""
        while len(self.model.requests) < number:
            await self.look()

    async def watch(self, turn: Turn, after: str | None = None) -> list[TurnEvent]:
        """Return the turn's events up to its end."""
        return [event async for event in self.turns.reader.events(turn, after=after)]


Boot = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def boot(
    open_database: Callable[[], Database],
    open_agent: Callable[..., TurnAgent],
    clock: Callable[[], datetime],
) -> AsyncGenerator[Boot]:
    """``await boot(model, toolset)`` starts a gateway on the test's database file, as after a restart."""
    opened: list[Turns] = []

    async def begin(
        model: Model | None = None,
        toolset: AbstractToolset[ToolContext] | None = None,
        *,
        obedient: bool = False,
        queue: Queue | None = None,
        clock: Callable[[], datetime] = clock,
        max_crashes: int = 3,
        concurrency: int = 100,
        budgets: Budgets | None = None,
        rules: Rules | None = None,
        bounds: Bounds | None = None,
        turn_timeout: float = 60,
        approvals: Callable[[Database], Approvals] | None = None,
    ) -> Gateway:
        database = open_database()
        model = model or ScriptedModel()
        assert isinstance(model, ScriptedModel)
        agent = Obedient()
        turns = turns_over(
            database,
            agent if obedient else open_agent(model, toolset, database=database, rules=rules, bounds=bounds),
            queue=queue,
            turn_timeout=turn_timeout,
            approvals=approvals and approvals(database),
            max_crashes=max_crashes,
            concurrency=concurrency,
            budgets=budgets,
            clock=clock,
        )
        await turns.start()
        opened.append(turns)
        return Gateway(database=database, turns=turns, model=model, agent=agent)

    yield begin
    for turns in opened:
        await turns.stop(grace=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The turns of one replica over a model."""

    database: PostgresDatabase
    turns: Turns
    model: ScriptedModel

    async def wait_for_end(self, turn: Turn) -> asyncio.Task[Turn]:
        """Return a task that waits for the end of a turn, once the turn is registered here."""
        task = asyncio.ensure_future(self.turns.reader.wait_for_end(turn))
        while turn.id not in self.turns.live and not task.done():
            await self.look()
        return task

    async def until_asked(self, number: int = 1) -> None:
        """Wait until the model has received this number of requests."""
        while len(self.model.requests) < number:
            await self.look()

    async def look(self) -> None:
        """Wait for the duration of one database read."""
        await self.database.run(lambda connection: connection.closed)

    async def stop(self) -> None:
        await self.turns.stop(grace=0)
        await asyncio.to_thread(self.database.close)


OpenReplica = Callable[..., Awaitable[Replica]]


@pytest.fixture
def database_url(postgres_url: str) -> str:
    """The URL of the database that the replicas use."""
    return postgres_url


@pytest.fixture
async def open_replica(
    database_url: str,
    open_agent: Callable[..., TurnAgent],
    clock: Callable[[], datetime],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[OpenReplica]:
    """``await open_replica("reply")`` starts a replica that polls at its start only.

    ``redis`` is the address of a server that carries the events of turns.
    """
    monkeypatch.setattr(module, "_CHECK", 3600)
    opened: list[Replica] = []

    async def begin(
        *script: str | Sequence[Piece],
        toolset: FunctionToolset[ToolContext] | None = None,
        redis: str | None = None,
    ) -> Replica:
        database = await asyncio.to_thread(
            lambda: PostgresDatabase(url=PostgresUrl(database_url), replicated=True)
        )
        model = ScriptedModel(*script)
        turns = turns_over(
            database,
            open_agent(model, toolset, database=database),
            clock=clock,
            redis=RedisServer(redis) if redis else None,
        )
        await turns.start()
        opened.append(Replica(database=database, turns=turns, model=model))
        return opened[-1]

    yield begin
    for one in opened:
        await one.stop()
