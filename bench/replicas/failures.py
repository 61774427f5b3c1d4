"""Three replicas of which one ends, whose server stops, or whose turns are followed elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

import httpx2
from tests.chaos.cluster import Cluster, Replica
from tests.waiting import eventually

from bench.replicas.gateways import linger, say
from bench.replicas.rows import Row, Run, p95_row

#: Seconds for which the server is stopped.
_OUTAGE = 30.0


def measure_failures(run: Run) -> Generator[Row]:
    """Measure what three replicas do for each other."""
    with Cluster(run.directory("cluster"), run.postgres, TORANA_DRAIN="0") as cluster:
        yield p95_row("SSE from another replica, p95 added", _added(cluster, 20), "100 ms", "30 ms")
        stops = [_take_over(cluster, lambda one: one.terminate(), number) for number in range(run.repeat)]
        yield p95_row("SIGTERM hand-over, p95", stops, "2 s", "0.5 s")
        kills = [_take_over(cluster, lambda one: one.kill(), number) for number in range(run.repeat)]
        yield p95_row("kill -9: the turn runs elsewhere, p95", kills, "12 s", "7 s")
        cluster.server.stop("immediate")
        time.sleep(_OUTAGE)
        cluster.server.start()
        began = time.monotonic()
        for replica in cluster.replicas:
            eventually(lambda replica=replica: say(replica, "hello").status_code == 200)
        recovery = f"{time.monotonic() - began:.1f} s"
        yield f"PostgreSQL down for {_OUTAGE:g} s: recovery of all replicas", recovery, "10 s", "3 s"


def _added(cluster: Cluster, number: int) -> list[float]:
    """Return the delays of the ends of turns in the event stream of another replica."""
    own, other = cluster.replicas[:2]

    def ended_at(url: str) -> float:
        httpx2.get(url, timeout=60, trust_env=False).raise_for_status()
        return time.monotonic()

    delays: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(number):
            turn = linger(own, 0.5)
            here, there = pool.map(ended_at, [f"{one.url}v1/turns/{turn}/events" for one in (own, other)])
            delays.append(max(0.0, there - here))
    return delays


def _take_over(cluster: Cluster, end: Callable[[Replica], object], number: int) -> float:
    """End a replica in a turn, and return the seconds until another one runs the turn."""
    replica = cluster.replicas[number % len(cluster.replicas)]
    turn = linger(replica, 1.0)
    eventually(lambda: replica.lingers)
    first = f"SELECT 1 FROM turns WHERE id = '{turn}' AND attempt > 1"
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        ending = pool.submit(end, replica)
        eventually(lambda: cluster.rows(first))
        seconds = time.monotonic() - began
        ending.result()
    replica.start()
    replica.wait_until_up()
    return seconds
