"""Send concurrent messages and measure their times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import quantiles

from bench.client import Connection

#: Sends one message over a connection. The second argument is the number of the message.
Send = Callable[[Connection, int], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The milliseconds of each message, and the messages per second of all."""

    times: list[float]
    per_second: float

    @classmethod
    def of(cls, parts: Sequence[Sample]) -> Sample:
        """Return one sample of all parts."""
        times = [each for part in parts for each in part.times]
        seconds = sum(len(part.times) / part.per_second for part in parts)
        return cls(times=times, per_second=len(times) / seconds)

    def percentile(self, percent: int) -> float:
        """Return the milliseconds within which ``percent`` % of the messages were answered."""
        return quantiles(self.times, n=100, method="inclusive")[percent - 1]

    @property
    def p50(self) -> float:
        """Return the median in milliseconds."""
        return self.percentile(50)


async def measure(url: str, send: Send, *, messages: int, concurrency: int) -> Sample:
    """Send ``messages`` messages over ``concurrency`` kept-alive connections."""
    numbers = iter(range(messages))
    times: list[float] = []

    async def caller() -> None:
        connection = await Connection.open(url)
        for number in numbers:
            began = time.perf_counter()
            await send(connection, number)
            times.append((time.perf_counter() - began) * 1000)
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    return Sample(times=times, per_second=messages / (time.perf_counter() - began))


_fresh = count()


async def to_model(connection: Connection, _: int) -> None:
    """Send a message to the model without a gateway."""
    question = {"role": "user", "content": "hello"}
    await connection.post("/v1/chat/completions", {"model": "instant", "messages": [question]})


async def to_torana(connection: Connection, _: int) -> None:
    """Send a message in a new session."""
    await connection.post("/message", {"content": "hello"})


def in_sessions(count_: int) -> Send:
    """Return a sender that uses ``count_`` sessions in turn."""
    name = next(_fresh)

    async def send(connection: Connection, number: int) -> None:
        await connection.post("/message", {"content": "hello", "channelId": f"{name}-{number % count_}"})

    return send


async def first_event(url: str, *, messages: int) -> Sample:
    """Measure the time to the first event of a stream, one message after the other."""
    connection = await Connection.open(url)
    times: list[float] = []
    began = time.perf_counter()
    for _ in range(messages):
        asked = time.perf_counter()
        first = None
        async for _event in connection.events("/message", {"content": "hello"}):
            first = first or time.perf_counter()
        assert first is not None
        times.append((first - asked) * 1000)
    connection.close()
    return Sample(times=times, per_second=messages / (time.perf_counter() - began))
