"""Gateways of the checkout, and messages to them."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from uuid import uuid4

import httpx2
import psutil
from tests.chaos.program import Program
from tests.postgres import PostgresServer


@contextmanager
def gateway(home: Path, **settings: str) -> Generator[Program]:
    """Run a gateway whose builtin model or other model has answered once."""
    home.mkdir()
    command = Path(sys.executable).with_name("torana")
    program = Program(command=command, home=home, settings=settings)
    program.start()
    try:
        program.wait_until_up()
        say(program, "what is 6 * 7").raise_for_status()
        yield program
    finally:
        program.kill()


@contextmanager
def replicas(home: Path, server: PostgresServer, number: int, **settings: str) -> Generator[list[Program]]:
    """Run a number of replicas on a new database of the server."""
    url = server.create(f"bench_{home.name}")
    settings |= {"TORANA_DATABASE_URL": url, "TORANA_REPLICAS": "true"}
    with ExitStack() as stack:
        yield [stack.enter_context(gateway(home / f"replica {n}", **settings)) for n in range(number)]


def say(program: Program, content: str, http: httpx2.Client | None = None) -> httpx2.Response:
    """Send a message in a new session, over a connection of ``http`` if given; return the response."""
    body = {"content": content, "channelId": str(uuid4())}
    with nullcontext(http) if http else httpx2.Client(timeout=60, trust_env=False) as client:
        return client.post(f"{program.url}message", json=body)


def begin(program: Program, content: str) -> str:
    """Send a message in a new session without waiting for the reply, and return the id of its turn."""
    body = {"content": content, "channelId": str(uuid4())}
    headers = {"Prefer": "respond-async"}
    sent = httpx2.post(f"{program.url}message", json=body, headers=headers, timeout=60, trust_env=False)
    return str(sent.raise_for_status().json()["id"])


def linger(program: Program, seconds: float) -> str:
    """Begin a turn whose tool takes a while, and return its id."""
    return begin(program, f'use linger {{"text": "{uuid4()}", "seconds": {seconds}}}')


def processor_time(program: Program) -> float:
    """Return the seconds of processor time of a gateway."""
    assert program.pid is not None
    times = psutil.Process(program.pid).cpu_times()
    return times.user + times.system
