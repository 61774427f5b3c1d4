"""One gateway on PostgreSQL, beside one on SQLite."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from statistics import median

import httpx2
from tests.chaos.program import Program
from tests.postgres import PostgresServer
from tests.waiting import eventually

from bench.replicas.gateways import gateway, processor_time, replicas, say
from bench.replicas.rows import Row, Run

#: Messages to one gateway before the next one's turn, as in the other benchmark.
_MESSAGES_PER_TURN = 25

_CONTENTS = {"one plain message": "hello", "one message with a tool call": "what is 6 * 7"}

#: Seconds over which an idle replica is measured.
_IDLE = 10.0

#: A statement in the log of a server that logs all.
_STATEMENT = re.compile(r"LOG:  (statement|execute [^:]*): ")


def measure_single_gateways(run: Run) -> Generator[Row]:
    """Compare one gateway on PostgreSQL with one on SQLite, and count statements."""
    home = run.directory("single")
    with run.server() as server:
        with ExitStack() as stack:
            sqlite = stack.enter_context(gateway(home / "sqlite"))
            url = server.create("bench_postgres")
            postgres = stack.enter_context(gateway(home / "postgres", TORANA_DATABASE_URL=url))
            for kind, content in _CONTENTS.items():
                low, high = _compare(sqlite, postgres, content, run.messages)
                difference = f"{(high - low) * 1000:+.1f} ms ({high * 1000:.1f}, {low * 1000:.1f})"
                yield f"p50 of {kind}, PostgreSQL against SQLite", difference, "+4 ms", "+2 ms"
            with _logging(server) as logged:
                for _ in range(_MESSAGES_PER_TURN):
                    say(postgres, _CONTENTS["one plain message"]).raise_for_status()
            yield "round trips of a plain turn", f"{logged() / _MESSAGES_PER_TURN:.1f}", "8", "6"
        with replicas(run.directory("idle"), server, 1) as (replica,):
            before = processor_time(replica)
            with _logging(server) as logged:
                time.sleep(_IDLE)
            share = (processor_time(replica) - before) / _IDLE
            idle = f"{logged() / _IDLE:.1f}; {share:.1%}"
            yield "idle replica: statements per second, processor", idle, "3; 1 %", "1.5; 0.5 %"


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


def _compare(one: Program, other: Program, content: str, messages: int) -> tuple[float, float]:
    """Return the median seconds of a message to each gateway, each message in a new session."""
    times: dict[Program, list[float]] = {one: [], other: []}
    with httpx2.Client(timeout=60, trust_env=False) as http:
        for _ in range(max(1, messages // _MESSAGES_PER_TURN)):
            for program, measured in times.items():
                measured += [_time_message(http, program, content) for _ in range(_MESSAGES_PER_TURN)]
    return median(times[one]), median(times[other])


def _time_message(http: httpx2.Client, program: Program, content: str) -> float:
    began = time.monotonic()
    say(program, content, http=http).raise_for_status()
    return time.monotonic() - began
