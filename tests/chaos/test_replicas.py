"""Three replicas keep their promises while they are killed, paused, stopped and cut off.

``TORANA_CHAOS_SECONDS`` sets the duration (``make chaos``), ``TORANA_CHAOS_SEED`` the seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest
from tests.chaos.clients import Client
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults
from tests.chaos.history import History, Stored, check
from tests.redis_server import RedisProcess
from tests.waiting import PATIENCE, eventually

SECONDS = float(os.environ.get("TORANA_CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("TORANA_CHAOS_SEED", "1"))
SESSIONS = 24

#: Violations or unexpected events that a failure shows.
SHOWN = 20


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("with_redis", [False, True])
async def test_replicas_keep_their_promises_despite_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], with_redis: bool
) -> None:
    draw = random.Random(SEED)
    history = History()
    with ExitStack() as stack:
        redis = stack.enter_context(RedisProcess()) if with_redis else None
        settings = {"TORANA_REDIS_URL": redis.url} if redis else {}
        cluster = stack.enter_context(Cluster(tmp_path, **settings))
        faults = Faults(cluster=cluster, draw=draw, redis=redis)
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=cluster.url, timeout=60, trust_env=False, limits=limits) as http:
            clients = [
                Client(http=http, number=number, draw=random.Random(draw.random()), history=history)
                for number in range(SESSIONS)
            ]
            await talk(clients, faults)
            with suppress(AssertionError):  # the check names the messages
                await asyncio.to_thread(eventually, cluster.is_idle)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(*(client.ask_again() for client in clients))
        stored = cluster.read()
    violations = check(history, stored)
    counts = sum((client.counts for client in clients), faults.counts)
    summary = summarize(history, stored, counts)
    with capsys.disabled():
        sys.stdout.write(f"\nseed {SEED}: {summary}\n")

    broken = "\n".join(f"- {promise}: {evidence}" for promise, evidence in violations[:SHOWN])
    assert not violations, f"{len(violations)} violations with TORANA_CHAOS_SEED={SEED}:\n{broken}"
    unexpected = "\n".join(f"- {event}" for event in faults.unexpected[:SHOWN])
    assert not unexpected, f"{len(faults.unexpected)} unexpected with TORANA_CHAOS_SEED={SEED}:\n{unexpected}"


async def talk(clients: list[Client], faults: Faults) -> None:
    """Let the clients talk while the faults happen, and then wait for the answers."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as talking:
        tasks = [talking.create_task(client.talk(over)) for client in clients]
        await faults.disturb(until=time.monotonic() + SECONDS)
        over.set()
        _, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
        for task in waiting:  # the check names the messages
            task.cancel()


def summarize(history: History, stored: Stored, counts: Counter[str]) -> str:
    """Return a line for a person who watches the test."""
    states = Counter(turn.state for turn in stored.turns)
    figures = {
        "messages": len(history.sent),
        "acknowledgements": len(history.acknowledged),
        **states,
        "streams": len(history.streamed),
        **counts,
    }
    return ", ".join(f"{name}: {figure}" for name, figure in figures.items())
