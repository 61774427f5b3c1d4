"""Throughput and processor time of one, two and four replicas."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import psutil
from tests.chaos.program import Program
from tests.postgres import PostgresServer

from bench.client import Connection
from bench.measures import with_model
from bench.replicas.gateways import processor_time, replicas
from bench.replicas.quota import NoQuota, limited
from bench.replicas.rows import Row, Run
from bench.servers import instant_model

#: The part of a processor that each replica has in the measurement of throughput.
SHARE = 0.25

#: Messages at a time to each replica at the limit of its processor.
_AT_A_TIME = 16

#: Messages per second to all replicas together without a limit, which one of them can handle. A machine in full
#: use would need more processor time for the same work.
_RATE = 24
_CALLERS = 8

#: Seconds before a measurement, and of a measurement.
_WARM, _SECONDS = 2.0, 6.0

#: Rounds for each one that the run asks for.
_ROUNDS = 2

#: The share of the machine that must be idle for a round to count.
_ROOM = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Replicas under load: messages per second, milliseconds of processor time of a message, idle share."""

    per_second: float
    gateways: float
    postgres: float
    #: The share of all processors of the machine that nothing used.
    idle: float


def measure_throughput(run: Run) -> Generator[Row]:
    """Compare the throughput of two and four replicas with that of one, each at its limit of the processor.

    The groups of replicas have databases of their own on one server, and are loaded in turns.
    """
    with ExitStack() as stack:
        server = stack.enter_context(run.server())
        groups = _start(run, "throughput", (1, 2, 4), server, stack)
        try:
            processes = [replica.pid for group in groups.values() for replica in group if replica.pid]
            stack.enter_context(limited(processes, SHARE))
        except NoQuota as error:
            yield "throughput", f"not measured: {error}", "", ""
            return
        loads, rounds = _rounds_with_room(_load_in_turns(groups, server, run))
    one = median(load.per_second for load in loads[1])
    for number, must, aim in ((2, "1.8 ×", "1.95 ×"), (4, "3.2 ×", "3.7 ×")):
        factor = median(
            more.per_second / less.per_second for more, less in zip(loads[number], loads[1], strict=True)
        )
        many = median(load.per_second for load in loads[number])
        value = f"{factor:.2f} × ({one:.1f} to {many:.1f} messages/s; {rounds})"
        yield f"throughput, {SHARE:.0%} of a processor each, {number} replicas against 1", value, must, aim


def measure_processor_time(run: Run) -> Generator[Row]:
    """Compare the processor time of a message, of four replicas with the same load as one."""
    with ExitStack() as stack:
        server = stack.enter_context(run.server())
        groups = _start(run, "processor", (1, 4), server, stack)
        loads, rounds = _rounds_with_room(_load_in_turns(groups, server, run, rate=_RATE))
    one, four = ([load.gateways + load.postgres for load in loads[number]] for number in (1, 4))
    growth = median(more / less for more, less in zip(four, one, strict=True)) - 1
    parts = ", ".join(
        f"{median(load.gateways for load in loads[number]):.1f} + "
        f"{median(load.postgres for load in loads[number]):.1f} ms"
        for number in (4, 1)
    )
    value = f"{growth:+.0%} (gateways + PostgreSQL: {parts}; {rounds})"
    yield f"processor time per message, {_RATE} messages/s, 4 replicas against 1", value, "+15 %", "+5 %"


def _start(
    run: Run, name: str, numbers: Sequence[int], server: PostgresServer, stack: ExitStack
) -> dict[int, list[Program]]:
    """Start groups of these numbers of replicas, with a model that answers at once."""
    model = stack.enter_context(instant_model(sys.executable))
    settings = {f"TORANA_{key.upper()}": value for key, value in with_model(model).items()}
    homes = {number: run.directory(f"{name}_{number}") for number in numbers}
    return {
        number: stack.enter_context(replicas(home, server, number, **settings))
        for number, home in homes.items()
    }


def _load_in_turns(
    groups: dict[int, list[Program]], server: PostgresServer, run: Run, *, rate: int | None = None
) -> dict[int, list[Load]]:
    """Load each group in each round, at a rate or as much as it can take."""
    loads: dict[int, list[Load]] = defaultdict(list)
    for _ in range(_ROUNDS * run.repeat):
        for number, group in groups.items():
            callers = Callers(group, rate=rate)
            loads[number].append(asyncio.run(_measure(callers, group, server)))
    return loads


def _rounds_with_room(loads: Mapping[int, list[Load]]) -> tuple[dict[int, list[Load]], str]:
    """Return the rounds in which the machine had processor time left, and their number as a text.

    In the others, other programs limited or slowed the replicas. If there are only such rounds, return them.
    """
    rounds = range(min(map(len, loads.values())))
    free = [n for n in rounds if all(group[n].idle >= _ROOM for group in loads.values())]
    used = {number: [group[n] for n in free or rounds] for number, group in loads.items()}
    if free:
        return used, f"{len(free)} of {len(rounds)} rounds, in which {_ROOM:.0%} of the machine were idle"
    return used, f"{len(rounds)} rounds on a machine in full use"


class Callers:
    """Callers that send messages to replicas in turn, each one message at a time."""

    def __init__(self, group: Sequence[Program], *, rate: int | None) -> None:
        """``rate`` is the number of messages per second of all callers together; None for no pauses."""
        self._group = group
        self._pause = _CALLERS / rate if rate else 0.0
        self._number = _CALLERS if rate else _AT_A_TIME * len(group)
        self._stopped = False
        #: The number of replies.
        self.replies = 0

    async def run(self) -> None:
        """Send messages until ``stop``."""
        await asyncio.gather(*(self._talk(number) for number in range(self._number)))

    def stop(self) -> None:
        self._stopped = True

    async def _talk(self, number: int) -> None:
        connection = await Connection.open(self._group[number % len(self._group)].url)
        due = time.monotonic() + self._pause * number / self._number
        while not self._stopped:
            await asyncio.sleep(due - time.monotonic())
            due += self._pause
            await connection.post("/message", {"content": "hello"})
            self.replies += 1
        connection.close()


async def _measure(callers: Callers, group: Sequence[Program], server: PostgresServer) -> Load:
    running = asyncio.create_task(callers.run())
    await asyncio.sleep(_WARM)
    before, began = callers.replies, time.monotonic()
    gateways, postgres = sum(map(processor_time, group)), server.processor_time()
    psutil.cpu_times_percent()
    await asyncio.sleep(_SECONDS)
    number = callers.replies - before
    load = Load(
        per_second=number / (time.monotonic() - began),
        gateways=(sum(map(processor_time, group)) - gateways) / number * 1000,
        postgres=(server.processor_time() - postgres) / number * 1000,
        idle=psutil.cpu_times_percent().idle / 100,
    )
    callers.stop()
    await running
    return load
