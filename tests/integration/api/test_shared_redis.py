"""Two replicas that share a Redis server, as the settings name it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.postgres import PostgresServer
from tests.redis_server import RedisProcess

from torana.app import App
from torana.errors import ConfigInvalid
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]
StartReplica = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def start_replica(start: Start, postgres_url: str, redis: RedisProcess, tmp_path: Path) -> StartReplica:
    """``await start_replica("a", model)`` starts a replica with a name for its data directory."""

    def begin(name: str, model: ScriptedModel | None = None, **settings: Any) -> Awaitable[Gateway]:
        places = {"data_dir": tmp_path / name, "database_url": postgres_url, "redis_url": redis.url}
        return start(model, replicas=True, **places, **settings)

    return begin


async def test_events_at_another_replica_have_the_deltas(start_replica: StartReplica):
    gates = [asyncio.Event() for _ in range(2)]
    _, first = await start_replica("a", ScriptedModel([gates[0], "one ", gates[1], "two"]))
    other, second = await start_replica("b")
    accepted = await first.post("/message", json={"content": "count"}, headers={"Prefer": "respond-async"})
    turn = accepted.json()["id"]
    reading = asyncio.ensure_future(second.get(f"/v1/turns/{turn}/events"))
    gates[0].set()
    while other.turns.live.log.text(turn) != "one ":  # noqa: ASYNC110 - the log sends no notification
        await asyncio.sleep(0.01)
    gates[1].set()

    events = (await reading).text

    assert "event: message.delta\nid: 1-2." in events
    assert '{"text":"one "}' in events
    assert "message.snapshot" not in events
    assert '"response":"one two"' in events or '"reply":"one two"' in events


async def test_metric_shows_an_outage(start_replica: StartReplica, redis: RedisProcess):
    _, client = await start_replica("a")

    async def until(value: str) -> None:
        async with asyncio.timeout(20):
            while f"torana_redis_up {value}\n" not in (await client.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    await until("1.0")
    redis.kill()
    await client.post("/message", json={"content": "hello"})
    await until("0.0")
    redis.start()
    await until("1.0")


async def test_receipt_of_an_erasure_names_the_copies_of_redis(start_replica: StartReplica):
    _, client = await start_replica("a", gateway_token="token-of-the-operator-0123456789")
    client.headers["Authorization"] = "Bearer token-of-the-operator-0123456789"

    receipt = (await client.delete("/v1/users/ana")).json()

    assert any("Redis" in line for line in receipt["outOfReach"])


async def test_deployments_at_one_redis_server_count_messages_separately(
    start_replica: StartReplica,
    start: Start,
    postgres_server: PostgresServer,
    redis: RedisProcess,
    tmp_path: Path,
    request: pytest.FixtureRequest,
):
    url = postgres_server.create("other_deployment")
    request.addfinalizer(lambda: postgres_server.execute("DROP DATABASE other_deployment WITH (FORCE)"))
    _, first = await start_replica("a", rate_global=1)
    places = {"data_dir": tmp_path / "b", "database_url": url, "redis_url": redis.url}
    _, second = await start(None, replicas=True, rate_global=1, **places)

    answers = [await client.post("/message", json={"content": "hi"}) for client in (first, second, first)]

    assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_redis_without_replicas_is_refused(start: Start, redis: RedisProcess):
    with pytest.raises(ConfigInvalid, match="only replicas use Redis"):
        await start(redis_url=redis.url)
