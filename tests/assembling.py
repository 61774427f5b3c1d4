"""Turns put together as the gateway does it, with what a test leaves open at its simplest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

from torana.limits.budgets import Budgets
from torana.limits.policies import Limits
from torana.limits.prices import Prices
from torana.messages import Turn, utc_now
from torana.store.database import Database
from torana.turns import Queue, Runner, Turns
from torana.turns.approvals import Approvals
from torana.turns.log.memory import MemoryEventLog
from torana.turns.runner import RunsTurns


def turns_over(
    database: Database,
    agent: RunsTurns,
    *,
    approvals: Approvals | None = None,
    budgets: Budgets | None = None,
    queue: Queue | None = None,
    turn_timeout: float = 60,
    concurrency: int = 100,
    max_crashes: int = 3,
    clock: Callable[[], datetime] = utc_now,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ended: Callable[[Turn], None] | None = None,
) -> Turns:
    """Turns of an agent, in a database."""
    log = MemoryEventLog()
    approvals = approvals or Approvals(database=database, clock=clock, pause=pause)
    budgets = budgets or Budgets(limits=Limits(), prices=Prices(), clock=clock)
    runner = Runner(
        database=database,
        agent=agent,
        approvals=approvals,
        log=log,
        budgets=budgets,
        turn_timeout=turn_timeout,
        concurrency=concurrency,
        clock=clock,
        pause=pause,
        ended=ended,
    )
    return Turns(
        database=database,
        runner=runner,
        approvals=approvals,
        log=log,
        budgets=budgets,
        queue=queue or Queue(),
        max_crashes=max_crashes,
        clock=clock,
    )
