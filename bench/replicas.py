"""Measure replicas on PostgreSQL against the table of goals: ``python -m bench.replicas``.

The gateways run the checkout with its builtin model. The server is a real PostgreSQL on the same machine.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, repeat
from pathlib import Path
from statistics import median, quantiles

import httpx2
import psutil
from rich.console import Console
from rich.table import Table
from tests.chaos.cluster import Cluster, Replica
from tests.chaos.program import Program
from tests.postgres import PostgresServer
from tests.waiting import eventually

RESULTS = Path(__file__).with_name("results")

#: Messages to one gateway before the next one's turn, as in the other benchmark.
_MESSAGES_PER_TURN = 25

#: Seconds over which an idle replica is measured, and for which the server is stopped.
_IDLE = 10.0
_OUTAGE = 30.0

#: A statement in the log of a server that logs all.
_STATEMENT = re.compile(r"LOG:  (statement|execute [^:]*): ")

#: The measure, the measured value with its unit, the required value and the aim.
Row = tuple[str, str, str, str]

_numbers = count(1)


def main() -> None:
    """Measure, print a table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="kills and stops (5); a kill takes 15 seconds")
    parser.add_argument("--messages", type=int, default=200, help="messages of each measurement (200)")
    arguments = parser.parse_args()
    rows: list[Row] = []
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="torana-bench-") as home:
        for measure in (_single_gateways, _clusters):
            for row in measure(Path(home), arguments.repeat, arguments.messages):
                rows.append(row)
                console.print(f"{row[0]}: {row[1]}")
    table = Table("measure", "measured", "must", "aim")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    lines = [
        "| measure | measured | must | aim |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "replicas.md").write_text(
        "\n".join([*lines, "", f"Load at the end: {os.getloadavg()[0]:.1f}", ""])
    )


def _single_gateways(home: Path, _times: int, messages: int) -> Generator[Row]:
    """Compare one gateway on PostgreSQL with one on SQLite, and count statements."""
    with PostgresServer() as server:
        with _gateway(home / "sqlite") as sqlite, _on_postgres(home / "postgres", server) as postgres:
            times: dict[str, list[float]] = {sqlite.url: [], postgres.url: []}
            for _ in range(max(1, messages // _MESSAGES_PER_TURN)):
                for gateway in (sqlite, postgres):
                    times[gateway.url] += [_timed(gateway) for _ in range(_MESSAGES_PER_TURN)]
            low, high = median(times[sqlite.url]), median(times[postgres.url])
            yield (
                "p50 of one message, PostgreSQL against SQLite",
                f"+{(high - low) * 1000:.1f} ms ({high * 1000:.1f}, {low * 1000:.1f})",
                "+4 ms",
                "+2 ms",
            )
            with _logging(server) as logged:
                for _ in range(_MESSAGES_PER_TURN):
                    _say(postgres, "hello").raise_for_status()
            yield "round trips of a plain turn", f"{logged() / _MESSAGES_PER_TURN:.1f}", "8", "6"
        with _on_postgres(home / "replica", server, TORANA_REPLICAS="true") as replica:
            before = _cpu(replica)
            with _logging(server) as logged:
                time.sleep(_IDLE)
            share = (_cpu(replica) - before) / _IDLE
            idle = f"{logged() / _IDLE:.1f}; {share:.1%}"
            yield "idle replica: statements per second, processor", idle, "3; 1 %", "1.5; 0.5 %"


def _clusters(home: Path, times: int, messages: int) -> Generator[Row]:
    """Measure what three replicas do for each other."""
    cluster_home = home / "cluster"
    cluster_home.mkdir()
    with Cluster(cluster_home, TORANA_DRAIN="0") as cluster:
        yield _processor_time(cluster.replicas, messages)
        yield _row("SSE from another replica, p95 added", _added(cluster, 20), "100 ms", "30 ms")
        yield _row("cancel across replicas, p95, without Redis", _cancels(cluster, 20), "1.5 s", "0.3 s")
        stops = [_takeover(cluster, lambda one: one.terminate(), number) for number in range(times)]
        yield _row("SIGTERM hand-over, p95", stops, "2 s", "0.5 s")
        kills = [_takeover(cluster, lambda one: one.kill(), number) for number in range(times)]
        yield _row("kill -9: the turn runs elsewhere, p95", kills, "12 s", "7 s")
        cluster.server.stop("immediate")
        time.sleep(_OUTAGE)
        cluster.server.start()
        began = time.monotonic()
        for replica in cluster.replicas:
            eventually(lambda replica=replica: _say(replica, "hello").status_code == 200)
        recovery = f"{time.monotonic() - began:.1f} s"
        yield f"PostgreSQL down for {_OUTAGE:g} s: recovery of all replicas", recovery, "10 s", "3 s"


def _processor_time(replicas: list[Replica], messages: int) -> Row:
    """Compare the processor time of a turn, with all gateways in use and with one."""

    def spend(used: list[Replica]) -> float:
        before = sum(map(_cpu, replicas))
        targets = [used[number % len(used)] for number in range(messages)]
        with ThreadPoolExecutor(6) as pool:
            for answer in pool.map(_say, targets, repeat("what is 6 * 7")):
                answer.raise_for_status()
        return (sum(map(_cpu, replicas)) - before) / messages

    for replica in replicas:
        _say(replica, "what is 6 * 7")
    pairs = [(spend(replicas[:1]), spend(replicas)) for _ in range(3)]
    one, three = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    value = f"{three / one - 1:+.0%} ({three * 1000:.1f} ms, {one * 1000:.1f} ms)"
    return "processor time per turn, 3 gateways in use against 1", value, "+15 %", "+5 %"


def _added(cluster: Cluster, number: int) -> list[float]:
    """Return the delays of the ends of turns in the event stream of another replica."""
    own, other = cluster.replicas[:2]

    def ended_at(url: str) -> float:
        httpx2.get(url, timeout=60, trust_env=False).raise_for_status()
        return time.monotonic()

    delays: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(number):
            turn = _linger(own, 0.5)
            here, there = pool.map(ended_at, [f"{one.url}v1/turns/{turn}/events" for one in (own, other)])
            delays.append(max(0.0, there - here))
    return delays


def _cancels(cluster: Cluster, number: int) -> list[float]:
    """Return the times from a cancellation at another replica to the end of the turn."""
    own, other = cluster.replicas[:2]
    times: list[float] = []
    for _ in range(number):
        turn = _linger(own, 0.5)
        eventually(lambda: own.lingers)
        began = time.monotonic()
        answer = httpx2.post(f"{other.url}v1/turns/{turn}/cancel", timeout=60, trust_env=False)
        assert answer.raise_for_status().json()["status"] == "cancelled", answer.text
        times.append(time.monotonic() - began)
        eventually(lambda: not own.lingers)
    return times


def _takeover(cluster: Cluster, end: Callable[[Replica], object], number: int) -> float:
    """End a replica in a turn, and return the seconds until another one runs the turn."""
    replica = cluster.replicas[number % len(cluster.replicas)]
    turn = _linger(replica, 1.0)
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


@contextmanager
def _gateway(home: Path, **settings: str) -> Generator[Program]:
    """Run a gateway of the checkout."""
    home.mkdir()
    command = Path(sys.executable).with_name("torana")
    gateway = Program(command=command, home=home, settings=settings)
    gateway.start()
    try:
        gateway.wait_until_up()
        _timed(gateway)
        yield gateway
    finally:
        gateway.kill()


@contextmanager
def _on_postgres(home: Path, server: PostgresServer, **settings: str) -> Generator[Program]:
    url = server.create(f"bench_{home.name}")
    with _gateway(home, TORANA_DATABASE_URL=url, **settings) as gateway:
        yield gateway


@contextmanager
def _logging(server: PostgresServer) -> Generator[Callable[[], int]]:
    """Log all statements in the block; the yielded function returns their number afterwards."""
    log = server.directory / "log"
    _set_logging(server, "all")
    start = log.stat().st_size
    counted: list[int] = []
    yield lambda: counted[0]
    with log.open() as lines:
        lines.seek(start)
        counted.append(sum(1 for line in lines if _STATEMENT.search(line)))
    _set_logging(server, "none")


def _set_logging(server: PostgresServer, kind: str) -> None:
    server.execute(f"ALTER SYSTEM SET log_statement = '{kind}'")
    server.execute("SELECT pg_reload_conf()")
    eventually(lambda: server.execute("SHOW log_statement") == [(kind,)])


def _timed(gateway: Program) -> float:
    """Return the seconds of a message in a new session."""
    began = time.monotonic()
    _say(gateway, "what is 6 * 7").raise_for_status()
    return time.monotonic() - began


def _say(gateway: Program, content: str) -> httpx2.Response:
    body = {"content": content, "channelId": f"channel {next(_numbers)}"}
    return httpx2.post(f"{gateway.url}message", json=body, timeout=60, trust_env=False)


def _linger(gateway: Program, seconds: float) -> str:
    """Begin a turn whose tool takes a while, and return its id."""
    number = next(_numbers)
    body = {
        "content": f'use linger {{"text": "{number}", "seconds": {seconds}}}',
        "channelId": f"channel {number}",
    }
    headers = {"Prefer": "respond-async"}
    sent = httpx2.post(f"{gateway.url}message", json=body, headers=headers, timeout=60, trust_env=False)
    return str(sent.raise_for_status().json()["id"])


def _cpu(gateway: Program) -> float:
    """Return the seconds of processor time of a gateway."""
    assert gateway.pid is not None
    times = psutil.Process(gateway.pid).cpu_times()
    return times.user + times.system


def _row(measure: str, seconds: Iterable[float], must: str, aim: str) -> Row:
    values = list(seconds)
    p95 = quantiles(values, n=20, method="inclusive")[-1]
    return f"{measure} ({len(values)})", f"{p95:.2f} s (median {median(values):.2f} s)", must, aim


if __name__ == "__main__":
    main()
