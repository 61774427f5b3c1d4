"""The transactions of running turns share the database between users."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from torana.limits.budgets import Budgets
from torana.limits.policies import Limits
from torana.limits.prices import Prices
from torana.messages import utc_now
from torana.store.engine.database import Connection, Database
from torana.turns.writer import TurnWriter


async def test_progress_of_one_user_does_not_delay_another(database: Database) -> None:
    budgets = Budgets(limits=Limits(), prices=Prices(), clock=utc_now)
    writer = TurnWriter(database=database, budgets=budgets, clock=utc_now, pause=asyncio.sleep)
    order: list[str] = []

    def write(_connection: Connection, user: str) -> None:
        order.append(user)

    def persist(user: str) -> asyncio.Task[None]:
        work = writer.persist_progress(partial(write, user=user), user=user, delayed=asyncio.Event())
        return asyncio.create_task(work)

    held = threading.Event()
    holding = asyncio.create_task(database.run(lambda _: held.wait()))
    tasks = [persist("ana") for _ in range(100)]
    await asyncio.sleep(0)
    tasks.append(persist("ben"))
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(holding, *tasks)

    assert order.index("ben") <= 8
    assert order.count("ana") == 100
