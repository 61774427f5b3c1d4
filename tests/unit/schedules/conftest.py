"""Schedules with a clock that only the test moves, over a database that survives restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from tests.standins.clock import Clock

from torana.agent import Answer, Emit
from torana.agent.journal import Journal
from torana.limits.budgets import Budgets
from torana.messages import EVERYONE, GATEWAY_OWNER, Turn
from torana.schedules import NewSchedule, Schedules, Ticker
from torana.store.engine.database import Database
from torana.store.engine.tables import turns as turn_table
from torana.store.rows.reports.turn_lists import TurnFilter, newest
from torana.store.rows.schedules import Schedule
from torana.tools.computing import Computing
from torana.turns import Queue, Turns

BERLIN = ZoneInfo("Europe/Berlin")


class Agent:
    """An agent that ends every turn with ``outcome`` once the gate is open."""

    def __init__(self) -> None:
        self.outcome: str | Exception = "done"
        self.gate = asyncio.Event()
        self.gate.set()
        #: The contents of its turns, in order.
        self.asked: list[str] = []

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        """Answer a turn."""
        self.asked.append(turn.content)
        await self.gate.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return Answer(reply=self.outcome, model="m", history=(b"[]", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A gateway with schedules, from one start to the next."""

    database: Database
    turns: Turns
    schedules: Schedules
    ticker: Ticker
    agent: Agent
    woken: asyncio.Event

    async def make(self, text: str = "call Ana", **what: Any) -> Schedule:
        """Create a schedule; by default it belongs to the gateway and its zone is Berlin."""
        defaults: dict[str, Any] = {"owner": GATEWAY_OWNER, "timezone": "Europe/Berlin", "channel": "home"}
        return await self.schedules.make(NewSchedule(text=text, **(defaults | what)))

    async def settle(self) -> None:
        """Run the ticker until nothing more is due at this time and every turn has ended."""
        while await self.ticker.run_due() == 0:
            await self.wait_for_turns()
        await self.wait_for_turns()

    async def wait_for_turns(self) -> None:
        """Wait until every turn has ended."""
        for turn in self.turns.live:
            await self.turns.reader.wait_for_end(turn)

    async def fired(self) -> list[Turn]:
        """Return the turns of schedules, oldest first."""
        found = await self.database.run(partial(newest, owner=EVERYONE, which=TurnFilter(), limit=5_000))
        return [turn for turn in reversed(found) if turn.principal.startswith("schedule:")]

    async def count(self) -> int:
        """Return the number of turns of all owners."""
        return await self.database.run(
            lambda c: c.execute(sa.select(sa.func.count()).select_from(turn_table)).scalar_one()
        )

    async def get(self, schedule: Schedule) -> Schedule:
        """Return the current state of a schedule."""
        return await self.schedules.get(EVERYONE, schedule.id)


@pytest.fixture
def hand() -> Clock:
    """A clock at 9.30 UTC on Monday 2 March 2026."""
    return Clock()


@pytest.fixture
async def boot(
    open_database: Callable[[], Database], open_turns: Callable[..., Turns], computing: Computing, hand: Clock
) -> AsyncGenerator[Callable[..., Any]]:
    """``await boot()`` starts a gateway on the test's database file, as after a restart."""
    opened: list[World] = []

    async def start(
        *,
        per_user: int = 50,
        firings_per_day: int = 1_000_000,
        queue: Queue | None = None,
        budgets: Budgets | None = None,
    ) -> World:
        database, agent, woken = open_database(), Agent(), asyncio.Event()
        turns = open_turns(database=database, agent=agent, clock=hand, queue=queue, budgets=budgets)
        schedules = Schedules(
            database=database,
            computing=computing,
            zone=BERLIN,
            per_user=per_user,
            min_minutes=5,
            changed=woken.set,
            clock=hand,
        )
        ticker = Ticker(
            database=database, turns=turns, firings_per_day=firings_per_day, woken=woken, clock=hand
        )
        opened.append(
            World(database=database, turns=turns, schedules=schedules, ticker=ticker, agent=agent, woken=woken)
        )
        await turns.start()
        return opened[-1]

    yield start
    for world in opened:
        await world.ticker.stop()


@pytest.fixture
async def world(boot: Callable[..., Any]) -> World:
    """A gateway that has started once."""
    return await boot()
