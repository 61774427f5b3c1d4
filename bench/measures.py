"""Measure servers in alternating rounds, so that a busy moment of the machine affects all of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench.load import Sample, Send, first_event, in_sessions, measure, to_model, to_torana
from bench.peers import Peer
from bench.servers import (
    PYTHON,
    Server,
    ask,
    command_cpu,
    installed_size,
    instant_model,
    started,
    torana,
    wait_for,
)

CONCURRENCY = (1, 16, 64)

#: Sends a number of messages to one server.
Sender = Callable[[int], Awaitable[Sample]]

#: Messages to one server before the next server's turn; concurrent messages have longer turns. The speed of a
#: shared machine can change by half within a second.
_MESSAGES_PER_TURN = 25

#: Seconds over which the processor time of an idle gateway is measured.
_IDLE = 10.0


class Results:
    """The values of each measure, one per round."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        """Add the value of one round."""
        self._values[name].append(value)

    def add_sample(self, name: str, sample: Sample) -> None:
        """Add the percentiles and the rate of a sample."""
        for percent in (50, 95, 99):
            self.add(f"{name} p{percent}", sample.percentile(percent))
        self.add(f"{name} per second", sample.per_second)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> float:
        """Return the median of the rounds."""
        return median(self._values[name])

    def spread(self, name: str) -> tuple[float, float]:
        """Return the smallest and the largest value of the rounds."""
        return min(self._values[name]), max(self._values[name])

    def ratio(self, name: str, to: str) -> float:
        """Return the median of the rounds' ratios."""
        pairs = zip(self._values[name], self._values[to], strict=True)
        return median(one / other for one, other in pairs)

    def difference(self, name: str, to: str) -> float:
        """Return the median of the rounds' differences."""
        pairs = zip(self._values[name], self._values[to], strict=True)
        return median(one - other for one, other in pairs)


class Loop:
    """The bare agent loop in a separate process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, *, messages: int, concurrency: int) -> Sample:
        """Send messages to the agent loop, as ``load.measure`` sends them to a server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{messages} {concurrency}\n")
        self._process.stdin.flush()
        return Sample(**json.loads(self._process.stdout.readline()))


@contextmanager
def bare_loop(model_url: str) -> Generator[Loop]:
    """Start the bare agent loop, and wait until it is warm."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Servers:
    """The programs that a round compares. ``model`` is the base URL of the model."""

    model: str
    gateway: Server
    loop: Loop
    peers: Mapping[Peer, Server]


def run(
    home: Path, *, rounds: int, messages: int, peers: Sequence[Peer], show: Callable[[str], None]
) -> Results:
    """Measure everything. ``peers`` are installed; ``show`` displays the progress."""
    results = Results()
    results.add("installed size", installed_size())
    show("cold starts")
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
        results.add("torana prompt", _prompt_size(model))
        _measure_idle(results, gateway, show)
        loop = stack.enter_context(bare_loop(model))
        others: dict[Peer, Server] = {}
        for peer in peers:
            show(f"start of {peer.name}")
            others[peer] = stack.enter_context(peer.run(peer.programs, home / peer.name, model))
            asyncio.run(measure(others[peer].url, peer.send, messages=1, concurrency=1))
            results.add(f"{peer.name} prompt", _prompt_size(model))
        servers = _Servers(model=model, gateway=gateway, loop=loop, peers=others)
        for number in range(rounds):
            show(f"round {number + 1} of {rounds}")
            asyncio.run(_round(results, servers, messages=messages))
        results.add("memory after load", gateway.memory)
    return results


def _prompt_size(model: str) -> int:
    """Return the characters of the instructions and tools that the model got since the last call."""
    with urllib.request.urlopen(model.removesuffix("/v1") + "/prompt", timeout=5) as answer:
        return int(answer.read())


def with_model(url: str) -> dict[str, str]:
    """Return the settings of a gateway that uses the instant model."""
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


def _measure_idle(results: Results, gateway: Server, show: Callable[[str], None]) -> None:
    show(f"idle for {_IDLE:g} s")
    before = gateway.cpu
    time.sleep(_IDLE)
    results.add("idle cpu percent", (gateway.cpu - before) / _IDLE * 100)


async def _round(results: Results, servers: _Servers, *, messages: int) -> None:
    for concurrency in CONCURRENCY:
        amount = messages if concurrency == 1 else 4 * messages
        await _at_a_time(concurrency, results, servers, messages=amount)
    sessions = {
        "same session": sending_to(servers.gateway.url, in_sessions(1)),
        "new session": sending_to(servers.gateway.url, to_torana),
    }
    for name, sample in (await alternate(sessions, messages=100)).items():
        results.add(name, sample.p50)
    results.add_sample("first event", await first_event(servers.gateway.url, messages=messages // 2))


async def _at_a_time(c: int, results: Results, servers: _Servers, *, messages: int) -> None:
    gateway = servers.gateway
    new = sending_to(gateway.url, to_torana, c)
    cpu: list[float] = []

    async def bare(n: int) -> Sample:
        return servers.loop.measure(messages=n, concurrency=c)

    async def with_cpu(n: int) -> Sample:
        before = gateway.cpu
        sample = await new(n)
        cpu.append(gateway.cpu - before)
        return sample

    parts = urlsplit(servers.model)
    senders = {
        "model": sending_to(f"{parts.scheme}://{parts.netloc}", to_model, c),
        "loop": bare,
        "torana": with_cpu,
        "torana old": sending_to(gateway.url, in_sessions(c), c),
    }
    for peer, server in servers.peers.items():
        senders[peer.name] = sending_to(server.url, peer.send, c, part=4)
    for name, sample in (await alternate(senders, messages=messages, concurrency=c)).items():
        results.add_sample(f"{name} c{c}", sample)
    results.add(f"torana c{c} cpu", sum(cpu) / messages * 1000)


def sending_to(url: str, send: Send, concurrency: int = 1, *, part: int = 1) -> Sender:
    """Return a sender to a server. A slow server gets one ``part``-th of the messages."""
    return lambda n: measure(url, send, messages=max(n // part, concurrency), concurrency=concurrency)


async def alternate(senders: Mapping[str, Sender], *, messages: int, concurrency: int = 1) -> dict[str, Sample]:
    """Send ``messages`` messages with each sender, in alternating turns, and return their samples."""
    per_turn = max(_MESSAGES_PER_TURN, 12 * concurrency)
    samples: dict[str, list[Sample]] = {name: [] for name in senders}
    for first in range(0, messages, per_turn):
        for name, send in senders.items():
            samples[name].append(await send(min(per_turn, messages - first)))
    return {name: Sample.of(parts) for name, parts in samples.items()}
