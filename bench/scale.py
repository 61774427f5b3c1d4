"""Measure a full database, many event streams and many messages: ``python -m bench.scale``.

The database is filled with copies of one real session. A gateway on an empty database is measured in
alternating turns with it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import quantiles
from typing import Any

import pygal
from rich.console import Console
from rich.table import Table

from bench.client import Connection
from bench.load import Send, in_sessions, measure, to_torana
from bench.measures import alternate, sending_to, with_model
from bench.servers import Server, instant_model, torana

RESULTS = Path(__file__).with_name("results")

#: The channel of the session that is copied, and the number of its turns.
_TEMPLATE = "template"
_TURNS = 10

#: Messages to new sessions and to old sessions of each of the two gateways.
_MESSAGES = 500

#: The number of event streams, and the seconds within which they are opened. Each stream lasts longer, so all
#: are open together.
_STREAMS = 1_000
_OPENING = 25.0
_QUESTION = "stream 10 every 4"

#: Must and aim of the p50 in a session with this number of messages, relative to new sessions.
_LONG = {100: ("1.2", "1.1"), 2_000: ("1.25", "1.1"), 5_000: ("", "")}
#: Messages to each of these sessions, which make them a little longer.
_LONG_MESSAGES = 100

Row = tuple[str, str, str, str]


def main() -> None:
    """Measure as the arguments say, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    defaults = ["sessions", "long", "streams"]
    parser.add_argument("measures", nargs="*", default=defaults, help="sessions, long, streams, soak")
    parser.add_argument("--sessions", type=int, default=100_000, help="sessions in the full database (100000)")
    parser.add_argument("--messages", type=int, default=20_000, help="messages of the soak (20000)")
    arguments = parser.parse_args()
    if arguments.sessions < _MESSAGES:
        parser.error(f"--sessions must be at least {_MESSAGES}, because each gets one message")
    _raise_file_limit()
    console = Console(stderr=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="torana-scale-") as home, console.status("starting") as status:
        if "sessions" in arguments.measures:
            rows += _sessions(Path(home), arguments.sessions, status.update)
        if "long" in arguments.measures:
            rows += _long_sessions(Path(home), status.update)
        if "streams" in arguments.measures:
            rows.append(_streams(Path(home), status.update))
        if "soak" in arguments.measures:
            rows.append(_soak(Path(home), arguments.messages, status.update))
    table = Table("measure", "measured", "must", "aim")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _sessions(home: Path, count: int, show: Callable[[str], None]) -> list[Row]:
    with ExitStack() as stack:
        model = stack.enter_context(instant_model())
        show(f"filling a database with {count:,} sessions of {2 * _TURNS} messages")
        full = home / "full"
        with torana(full, **with_model(model)) as server:
            asyncio.run(_talk_in_template(server))
        _fill(full / "torana.db", count)
        gateways = {
            name: stack.enter_context(torana(home / name, **with_model(model))) for name in ("empty", "full")
        }
        asyncio.run(_talk_in_template(gateways["empty"]))
        show("measuring")
        senders = {
            "empty": sending_to(gateways["empty"].url, to_torana),
            "full": sending_to(gateways["full"].url, to_torana),
            "empty old": sending_to(gateways["empty"].url, _in_old(0)),
            "full old": sending_to(gateways["full"].url, _in_old(count)),
        }
        samples = asyncio.run(alternate(senders, messages=_MESSAGES))
    middle = {name: sample.p50 for name, sample in samples.items()}
    new, old = middle["full"] / middle["empty"], middle["full old"] / middle["empty old"]
    kind = f"{count:,} sessions on disk: p50 relative to an empty database"
    return [
        (f"{kind}, new sessions", f"{new:.2f} × ({middle['full']:.1f} ms)", "1.2", "1.05"),
        (f"{kind}, old sessions", f"{old:.2f} × ({middle['full old']:.1f} ms)", "1.2", "1.05"),
    ]


async def _talk_in_template(server: Server) -> None:
    connection = await Connection.open(server.url)
    for _ in range(_TURNS):
        await connection.post("/message", {"content": "hello", "channelId": _TEMPLATE})
    connection.close()


def _in_old(count: int) -> Send:
    """Return a sender whose messages go to different sessions of the full database; with 0, to the template."""
    drawn = iter(random.sample(range(1, count + 1), _MESSAGES) if count else [0] * _MESSAGES)

    async def send(connection: Connection, _: int) -> None:
        number = next(drawn)
        channel = f"{_TEMPLATE}-{number}" if number else _TEMPLATE
        await connection.post("/message", {"content": "hello", "channelId": channel})

    return send


def _fill(path: Path, count: int) -> None:
    """Copy the rows of the template ``count`` times, with new ids."""
    renamed = {"sessions": {"id", "channel"}, "turns": {"id", "session_id", "channel"}}
    renamed["history"] = {"session_id", "turn_id"}
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, names in renamed.items():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            values = [f"{name} || '-' || n" if name in names else f'"{name}"' for name in columns]
            listed = ", ".join(f'"{name}"' for name in columns)
            numbers = f"SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}"
            connection.execute(
                f"WITH RECURSIVE numbers(n) AS ({numbers}) "
                f"INSERT INTO {table} ({listed}) SELECT {', '.join(values)} FROM {table}, numbers"
            )


def _long_sessions(home: Path, show: Callable[[str], None]) -> list[Row]:
    with instant_model() as model, torana(home / "long", **with_model(model)) as server:
        senders = {"new": sending_to(server.url, to_torana)}
        for length in _LONG:
            show(f"filling a session with {length:,} messages")
            send = in_sessions(1)
            asyncio.run(measure(server.url, send, messages=length // 2, concurrency=1))
            senders[f"{length}"] = sending_to(server.url, send)
        show("measuring")
        samples = asyncio.run(alternate(senders, messages=_LONG_MESSAGES))
    middle = {name: sample.p50 for name, sample in samples.items()}
    return [
        (
            f"a session of {length:,} messages: p50 relative to new sessions",
            f"{middle[f'{length}'] / middle['new']:.2f} × ({middle[f'{length}']:.1f} ms)",
            *goals,
        )
        for length, goals in _LONG.items()
    ]


def _streams(home: Path, show: Callable[[str], None]) -> Row:
    show(f"{_STREAMS:,} event streams at once")
    with instant_model() as model:
        many = {"concurrency": str(2 * _STREAMS), "queue": str(2 * _STREAMS)}
        with torana(home / "streams", **with_model(model), **many) as server:
            late, completed = asyncio.run(_follow(server))
    p95 = quantiles(late, n=100)[94]
    measured = f"{p95:.0f} ms, {completed:,} completed"
    return f"{_STREAMS:,} open event streams: p95 of a delta", measured, "250 ms", "100 ms"


async def _follow(server: Server) -> tuple[list[float], int]:
    """Return the delay of each delta in milliseconds, and the number of complete streams."""
    late: list[float] = []

    async def follow(number: int) -> bool:
        await asyncio.sleep(number / _STREAMS * _OPENING)
        connection = await Connection.open(server.url)
        last = ""
        async for kind, data in connection.events("/message", {"content": _QUESTION}):
            last = kind
            if kind == "message.delta":
                now = time.monotonic()
                late.extend((now - float(stamp)) * 1000 for stamp in data["text"].split())
        connection.close()
        return last == "turn.completed"

    ended = await asyncio.gather(*(follow(number) for number in range(_STREAMS)))
    return late, sum(ended)


def _soak(home: Path, messages: int, show: Callable[[str], None]) -> Row:
    memory: list[tuple[int, float]] = []
    handles: list[tuple[int, int]] = []
    step = max(messages // 40, 1)
    with instant_model() as model, torana(home / "soak", **with_model(model)) as server:
        for sent in range(step, messages + 1, step):
            show(f"soak: {sent:,} of {messages:,} messages")
            asyncio.run(measure(server.url, to_torana, messages=step, concurrency=16))
            memory.append((sent, server.memory))
            handles.append((sent, server.handles))
    _draw_soak(memory, handles)
    quarter = next(mb for sent, mb in memory if sent >= messages // 4)
    growth = (memory[-1][1] / quarter - 1) * 100
    measured = f"{growth:+.1f} % ({quarter:.0f} to {memory[-1][1]:.0f} MB, {handles[-1][1]} handles)"
    return f"memory from message {messages // 4:,} to {messages:,}", measured, "+5 %", "+2 %"


def _draw_soak(memory: list[tuple[int, float]], handles: list[tuple[int, int]]) -> None:
    # pygal has no type hints.
    chart: Any = pygal.XY(title="Messages, memory and open files", js=[], width=800, height=420, dots_size=2)
    chart.add("resident MB", memory)
    chart.add("file handles", handles)
    RESULTS.mkdir(exist_ok=True)
    chart.render_to_file(str(RESULTS / "soak.svg"))


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
