"""The takeover of an account on a platform after the replica that listens is killed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator
from pathlib import Path

import httpx2
from tests.chaos.cluster import Cluster, Replica
from tests.standins.telegram import ME, TelegramStandIn
from tests.waiting import eventually

from bench.replicas.rows import Row, Run, p95_row

_ACCOUNT = "telegram"

#: Seconds within which a message must be answered.
_PATIENCE = 60.0


def measure_connectors(run: Run) -> Generator[Row]:
    """Measure the time from a kill to the answer to a message that a user sends right after it."""
    seconds = asyncio.run(_measure(run.directory("connectors"), run))
    yield p95_row("connector takeover: kill -9 to the reply to the next message, p95", seconds, "20 s", "10 s")


async def _measure(home: Path, run: Run) -> list[float]:
    async with TelegramStandIn() as platform:
        account = dict(platform.settings()) | {"allow": ["*"]}
        cluster = Cluster(home, run.postgres, TORANA_CONNECTORS=json.dumps({_ACCOUNT: account}))
        await asyncio.to_thread(cluster.__enter__)
        try:
            return [await _take_over(cluster, platform, 2 * number) for number in range(run.repeat)]
        finally:
            await asyncio.to_thread(cluster.__exit__)


async def _take_over(cluster: Cluster, platform: TelegramStandIn, number: int) -> float:
    """Kill the replica that listens, and return the seconds until a new message is answered."""
    listener = await asyncio.to_thread(eventually, lambda: _listener(cluster))
    await _ask(platform, number)
    await asyncio.to_thread(listener.kill)
    began = time.monotonic()
    await _ask(platform, number + 1)
    seconds = time.monotonic() - began
    listener.start()
    await asyncio.to_thread(listener.wait_until_up)
    return seconds


async def _ask(platform: TelegramStandIn, number: int) -> None:
    """Send a message with a question of its own, and wait for the answer."""
    await platform.say(f"what is {number} + 10000")
    answer = str(number + 10_000)

    def is_shown() -> bool:
        texts = (str(message.get("text")) for message in platform.messages.values() if message["from"] == ME)
        return any(answer in text.replace(",", "") for text in texts)

    await platform.until(is_shown, within=_PATIENCE)


def _listener(cluster: Cluster) -> Replica | None:
    """Return the replica that is connected to the platform."""
    for replica in cluster.replicas:
        health = httpx2.get(f"{replica.url}health", trust_env=False).json()
        if _ACCOUNT in health["connectors"]:
            return replica
    return None
