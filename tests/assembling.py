"""Turns assembled as the gateway does it, with simple defaults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from torana.limits.budgets import Budgets
from torana.limits.policies import Limits
from torana.limits.prices import Prices
from torana.measurements import Measurements
from torana.messages import Turn, utc_now
from torana.people.erased_files import ErasedFiles
from torana.people.erasure import Erasure
from torana.people.shared_erasures import SharedErasures
from torana.store.engine.database import Database
from torana.store.redis.server import RedisServer
from torana.turns import LiveTurns, Queue, Runner, Turns, TurnWriter
from torana.turns.approvals import Approvals
from torana.turns.events.log import EventLog
from torana.turns.events.sharing import RedisEventSharing
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
    measurements: Measurements | None = None,
    redis: RedisServer | None = None,
) -> Turns:
    """Return the turns of an agent in a database."""
    approvals = approvals or Approvals(database=database, clock=clock, pause=pause)
    budgets = budgets or Budgets(limits=Limits(), prices=Prices(), clock=clock)
    log = EventLog()
    sharing = RedisEventSharing(server=redis, log=log) if redis else None
    runner = Runner(
        live=LiveTurns(log=log, sharing=sharing, on_end=ended, measurements=measurements),
        writer=TurnWriter(database=database, budgets=budgets, clock=clock, pause=pause),
        agent=agent,
        approvals=approvals,
        budgets=budgets,
        turn_timeout=turn_timeout,
        concurrency=concurrency,
        clock=clock,
    )
    return Turns(
        database=database,
        runner=runner,
        approvals=approvals,
        budgets=budgets,
        queue=queue or Queue(),
        max_crashes=max_crashes,
        clock=clock,
    )


def erasure_over(
    database: Database,
    turns: Turns,
    *,
    data_dir: Path,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Erasure:
    """Return the erasure of users from a database and a data directory."""
    files = ErasedFiles(database=database, reader=turns.reader, data_dir=data_dir)
    pending = turns.replicas.erasures
    shared = SharedErasures(database=database, files=files, data_dir=data_dir, pending=pending)
    return Erasure(database=database, turns=turns, shared=shared, pause=pause)
