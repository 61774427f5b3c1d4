"""Fixtures for a gateway that is connected to a chat platform in memory."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models import Model

from torana.connectors.base import Connector
from torana.connectors.registry import Account
from torana.connectors.runtime.hub import Connectors
from torana.connectors.runtime.ingress import Admission
from torana.limits.rates import MessageRates
from torana.measurements import Measurements
from torana.messages import EVERYONE, FileKind, Turn, utc_now
from torana.people.pairing import Pairing
from torana.permissions import Rules
from torana.store.engine.database import Database
from torana.store.rows import deliveries as rows
from torana.store.rows.audit import Act
from torana.store.rows.deliveries import Delivery
from torana.testing import ScriptedModel
from torana.testing.chat import Chat
from torana.turns import Queue, Turns
from torana.turns.approvals import Approvals
from torana.turns.deliveries import Deliveries


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of a gateway that tests use."""

    hub: Connectors
    turns: Turns
    pairing: Pairing
    deliveries: Deliveries
    database: Database

    async def rows(self) -> Sequence[Delivery]:
        """Return all deliveries, the oldest first."""
        found = await self.database.run(partial(rows.list_deliveries, owner=EVERYONE, limit=200))
        return list(reversed(found))


@pytest.fixture
def act() -> Act:
    return Act(principal="operator", source="test", at=utc_now())


@pytest.fixture
async def open_gateway(
    open_database: Callable[[], Database], open_turns: Callable[..., Turns]
) -> AsyncGenerator[Callable[..., Awaitable[Gateway]]]:
    """``await open_gateway(chat, model)`` starts a gateway with the chat as its account ``home``."""
    opened: list[Gateway] = []

    async def make(
        chat: Chat,
        model: Model | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        rates: MessageRates | None = None,
        queue: Queue | None = None,
        takes: Sequence[FileKind] = (),
        rules: Rules | None = None,
        measurements: Measurements | None = None,
    ) -> Gateway:
        database = open_database()
        ended: list[Callable[[Turn], None]] = []

        def notify(turn: Turn) -> None:
            for listener in ended:
                listener(turn)

        shown: list[Connectors] = []
        approvals = Approvals(
            database=database,
            clock=clock,
            can_ask=lambda account: shown[0].can_ask(account),
            question_changed=lambda turn: shown[0].wake(turn.account),
        )
        turns = open_turns(
            model or ScriptedModel(),
            database=database,
            clock=clock,
            queue=queue,
            ended=notify,
            approvals=approvals,
            rules=rules,
            measurements=measurements,
        )
        pairing = Pairing(database=database, clock=clock)

        def connect(account: Account) -> Connector[Any]:
            return chat.connector(chat.connector.Settings.model_validate(dict(account.values)))

        hub = Connectors(
            accounts=[Account(name="home", kind="chat", values=chat.settings())],
            admission=Admission(
                turns=turns,
                rates=rates or MessageRates(per_user=0, overall=0),
                pairing=pairing,
                database=database,
                clock=clock,
                takes=frozenset(takes),
            ),
            holder="here",
            open_=connect,
        )
        ended.append(hub.on_turn_ended)
        shown.append(hub)
        deliveries = Deliveries(database=database, wake=hub.wake, clock=clock)
        opened.append(Gateway(hub=hub, turns=turns, pairing=pairing, deliveries=deliveries, database=database))
        await turns.start()
        await hub.start()
        return opened[-1]

    yield make
    for gateway in opened:
        await gateway.hub.stop()
        await gateway.turns.stop(grace=0)


@pytest.fixture
def in_time() -> Callable[[], asyncio.Timeout]:
    """``async with in_time():`` limits a wait to 20 seconds."""
    return lambda: asyncio.timeout(20)


@pytest.fixture
async def outage(path: Path, database: Database) -> Callable[[], AbstractContextManager[None]]:
    """``with outage():`` locks the database, so that it can neither be read nor written."""
    await database.run(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 1"))

    @contextmanager
    def hold() -> Generator[None]:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield

    return hold
