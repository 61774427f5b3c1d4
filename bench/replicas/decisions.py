"""Cancellations and approvals that reach another replica than the one that runs the turn."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import httpx2
from tests.chaos.cluster import Cluster
from tests.redis_server import RedisProcess
from tests.waiting import eventually

from bench.replicas.gateways import begin, linger
from bench.replicas.rows import Row, Run, p95_row

#: The number of cancellations, and of approvals, with Redis and without.
_TIMES = 40

_ASKS = json.dumps([{"tool": "note", "permission": "ask"}])


def measure_decisions(run: Run) -> Generator[Row]:
    """Measure cancellations and approvals, with Redis and without."""
    for place, must, aim in (("without Redis", "1.5 s", "0.3 s"), ("with Redis", "0.3 s", "0.1 s")):
        with ExitStack() as stack:
            settings = {"TORANA_PERMISSIONS": _ASKS, "TORANA_DRAIN": "0"}
            if place == "with Redis":
                settings["TORANA_REDIS_URL"] = stack.enter_context(RedisProcess()).url
            home = run.directory(place)
            cluster = stack.enter_context(Cluster(home, run.postgres, **settings))
            for name, measure in (("cancel", _cancel), ("approval", _approve)):
                seconds = [measure(cluster) for _ in range(_TIMES)]
                yield p95_row(f"{name} across replicas, p95, {place}", seconds, must, aim)


def _cancel(cluster: Cluster) -> float:
    """Return the seconds from a cancellation at another replica to the end of the turn."""
    own, other = cluster.replicas[:2]
    turn = linger(own, 0.3)
    eventually(lambda: own.lingers)
    began = time.monotonic()
    answer = httpx2.post(f"{other.url}v1/turns/{turn}/cancel", timeout=60, trust_env=False)
    seconds = time.monotonic() - began
    assert answer.raise_for_status().json()["status"] == "cancelled", answer.text
    eventually(lambda: not own.lingers)
    return seconds


def _approve(cluster: Cluster) -> float:
    """Return the seconds from an approval at another replica to the effect of the tool.

    The effect is looked for every 20 ms.
    """
    own, other = cluster.replicas[:2]
    text = str(uuid4())
    turn = begin(own, f'use note {{"text": "{text}"}}')
    url = f"{other.url}v1/turns/{turn}"
    (asked,) = eventually(lambda: _get(url)["approvals"])
    began = time.monotonic()
    decision = {"decision": "approve"}
    answer = httpx2.post(f"{url}/approvals/{asked['callId']}", json=decision, timeout=60, trust_env=False)
    answer.raise_for_status()
    eventually(lambda: text in cluster.lines("notes"))
    return time.monotonic() - began


def _get(url: str) -> dict[str, Any]:
    return httpx2.get(url, timeout=60, trust_env=False).raise_for_status().json()
