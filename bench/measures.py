"""What is measured, in rounds in which the servers take turns, so that a busy moment spoils none alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench.load import Sample, Say, first_event, in_sessions, measure, to_model, to_nanobot, to_torana
from bench.servers import (
    PYTHON,
    Server,
    ask,
    command_cpu,
    installed_size,
    instant_model,
    nanobot,
    started,
    torana,
    wait_for,
)

CONCURRENCY = (1, 16, 64)

#: Says so many messages.
Way = Callable[[int], Awaitable[Sample]]

#: What is compared takes turns of so many messages, or of more where many are said at a time: the machine's
#: speed may change by half from one second to the next, and all shall see the same.
_IN_A_TURN = 25

#: Idle seconds over which the processor's use is counted.
_IDLE = 10.0


class Results:
    """The numbers by name, one of each round."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        """Keep the number of one round."""
        self._values[name].append(value)

    def add_sample(self, name: str, sample: Sample) -> None:
        """Keep the percentiles and the rate of a sample."""
        for percent in (50, 95, 99):
            self.add(f"{name} p{percent}", sample.percentile(percent))
        self.add(f"{name} per second", sample.per_second)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> float:
        """The median of the rounds."""
        return median(self._values[name])

    def spread(self, name: str) -> tuple[float, float]:
        """The least and the greatest of the rounds."""
        return min(self._values[name]), max(self._values[name])

    def ratio(self, name: str, to: str) -> float:
        """The median of the ratios of each round."""
        pairs = zip(self._values[name], self._values[to], strict=True)
        return median(one / other for one, other in pairs)

    def difference(self, name: str, to: str) -> float:
        """The median of the differences of each round."""
        pairs = zip(self._values[name], self._values[to], strict=True)
        return median(one - other for one, other in pairs)


class Loop:
    """The bare agent loop in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, *, messages: int, concurrency: int) -> Sample:
        """As ``load.measure``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{messages} {concurrency}\n")
        self._process.stdin.flush()
        return Sample(**json.loads(self._process.stdout.readline()))


@contextmanager
def bare_loop(model_url: str) -> Generator[Loop]:
    """Start the bare agent loop, warm."""
    process = subprocess.Popen(
        [PYTHON, "-m", "bench.loop", model_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield Loop(process)
    finally:
        process.terminate()
        process.wait()


def run(home: Path, *, rounds: int, messages: int, peer: Path | None, say: Callable[[str], None]) -> Results:
    """Measure everything; ``peer`` is the Python that has nanobot, and ``say`` is told what is under way."""
    results = Results()
    results.add("installed size", installed_size())
    say("cold starts")
    for number in range(rounds):
        _measure_starts(results, home / f"start-{number}")
        results.add("help cpu", command_cpu(home / f"start-{number}" / "builtin", "--help"))
        results.add("list cpu", command_cpu(home / f"start-{number}" / "builtin", "sessions", "list"))
    with ExitStack() as stack:
        model = stack.enter_context(instant_model())
        gateway = stack.enter_context(torana(home / "gateway", **with_model(model)))
        results.add("memory started", gateway.memory)
        ask(f"{gateway.url}/message", {"content": "hello"})
        results.add("memory openai", gateway.memory)
        _measure_idle(results, gateway, say)
        loop = stack.enter_context(bare_loop(model))
        other = stack.enter_context(nanobot(peer, home / "nanobot", model)) if peer else None
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            asyncio.run(_round(results, model, gateway, loop, other, messages=messages))
        results.add("memory after load", gateway.memory)
    return results


def with_model(url: str) -> dict[str, str]:
    """The settings that let the gateway ask the instant model."""
    return {"model": "openai-chat:instant", "model_base_url": url, "model_api_key": "none"}


def _measure_starts(results: Results, home: Path) -> None:
    with started(home / "builtin") as (url, began):
        wait_for(f"{url}/health")
        results.add("start health", time.monotonic() - began)
        ask(f"{url}/message", {"content": "2 + 2"})
        results.add("start answer", time.monotonic() - began)
    with torana(home / "builtin-again") as server:
        ask(f"{server.url}/message", {"content": "2 + 2"})
        results.add("memory builtin", server.memory)


def _measure_idle(results: Results, gateway: Server, say: Callable[[str], None]) -> None:
    say(f"idle for {_IDLE:g} s")
    before = gateway.cpu
    time.sleep(_IDLE)
    results.add("idle cpu percent", (gateway.cpu - before) / _IDLE * 100)


async def _round(
    results: Results, model: str, gateway: Server, loop: Loop, other: Server | None, *, messages: int
) -> None:
    for concurrency in CONCURRENCY:
        amount = messages if concurrency == 1 else 4 * messages
        await _at_a_time(concurrency, results, model, gateway, loop, other, messages=amount)
    # The same session a hundred times, against sessions of their own.
    sessions = {
        "same session": saying(gateway.url, in_sessions(1)),
        "new session": saying(gateway.url, to_torana),
    }
    for name, sample in (await taking_turns(sessions, messages=100)).items():
        results.add(name, sample.p50)
    results.add_sample("first event", await first_event(gateway.url, messages=messages // 2))


async def _at_a_time(
    c: int, results: Results, model: str, gateway: Server, loop: Loop, other: Server | None, *, messages: int
) -> None:
    new = saying(gateway.url, to_torana, c)
    cpu: list[float] = []

    async def bare(n: int) -> Sample:
        return loop.measure(messages=n, concurrency=c)

    async def count_calls(n: int) -> Sample:
        before = gateway.cpu
        sample = await new(n)
        cpu.append(gateway.cpu - before)
        return sample

    parts = urlsplit(model)
    ways = {
        "model": saying(f"{parts.scheme}://{parts.netloc}", to_model, c),
        "loop": bare,
        "torana": count_calls,
        "torana old": saying(gateway.url, in_sessions(c), c),
    }
    if other is not None:
        ways["nanobot"] = saying(other.url, to_nanobot, c, part=4)
    for name, sample in (await taking_turns(ways, messages=messages, concurrency=c)).items():
        results.add_sample(f"{name} c{c}", sample)
    results.add(f"torana c{c} cpu", sum(cpu) / messages * 1000)


def saying(url: str, say: Say, concurrency: int = 1, *, part: int = 1) -> Way:
    """Messages to a server; of so many only a ``part``, which is for slow ones."""
    return lambda n: measure(url, say, messages=max(n // part, concurrency), concurrency=concurrency)


async def taking_turns(ways: Mapping[str, Way], *, messages: int, concurrency: int = 1) -> dict[str, Sample]:
    """The sample of each way of saying so many messages; the ways take turns."""
    in_a_turn = max(_IN_A_TURN, 12 * concurrency)
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for first in range(0, messages, in_a_turn):
        for name, say in ways.items():
            samples[name].append(await say(min(in_a_turn, messages - first)))
    return {name: Sample.of(parts) for name, parts in samples.items()}
