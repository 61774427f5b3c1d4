"""Turns on a real PostgreSQL server behind a proxy that counts round trips."""

from __future__ import annotations

from collections.abc import Callable, Generator
from urllib.parse import urlsplit

import pytest
from tests.postgres import PostgresProxy
from tests.unit.turns.conftest import OpenReplica

from torana.messages import Inbound

#: Turns after which the server has prepared all statements, and turns whose round trips are counted.
_FIRST, _TURNS = 3, 10


@pytest.fixture
def proxy(postgres_url: str) -> Generator[PostgresProxy]:
    proxy = PostgresProxy(urlsplit(postgres_url).port or 0)
    yield proxy
    proxy.close()


@pytest.fixture
def database_url(postgres_url: str, proxy: PostgresProxy) -> str:
    """The URL for the replicas: their database behind the proxy."""
    return postgres_url.replace(f":{urlsplit(postgres_url).port}/", f":{proxy.port}/")


async def test_plain_turn_needs_at_most_eight_round_trips(
    open_replica: OpenReplica, message: Callable[..., Inbound], proxy: PostgresProxy
) -> None:
    replica = await open_replica(*["reply"] * (_FIRST + _TURNS))

    async def answer() -> None:
        turn = await replica.turns.accept(message())
        await replica.turns.reader.wait_for_end(turn)

    for _ in range(_FIRST):
        await answer()
    before = proxy.round_trips
    for _ in range(_TURNS):
        await answer()

    assert _TURNS < proxy.round_trips - before <= 8 * _TURNS
