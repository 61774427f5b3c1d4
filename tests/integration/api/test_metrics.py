"""The metrics for Prometheus."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from torana.app import App
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

KEY = b64encode(b"k" * 32).decode()
SHOP = f'{{"kind": "webhook", "secrets": "{KEY}", "events": ["turn.failed"]}}'
CONNECTORS = f'{{"shop": {SHOP}, "odd": {{"kind": "pigeons"}}}}'


async def scraped(client: httpx2.AsyncClient) -> dict[tuple[str, ...], float]:
    """Return the samples: name and values of the labels, and the value."""
    answer = await client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def until(client: httpx2.AsyncClient, *sample: str, is_: float) -> dict[tuple[str, ...], float]:
    async with asyncio.timeout(20):
        while (found := await scraped(client)).get(sample) != is_:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def test_turns_are_counted_by_state_and_outcome(start: Start):
    gate = asyncio.Event()
    _, client = await start(ScriptedModel([gate, "one"], [ValueError("no")]))
    before = await scraped(client)
    assert [value for name, value in before.items() if name[0].startswith("torana_turns")] == [0] * 6
    guide = Path(__file__).parents[3] / "docs" / "howto" / "watch-it.md"
    (row,) = [line for line in guide.read_text().splitlines() if line.startswith("| `torana_turns` ")]
    assert all(f"`{name[1]}`" in row for name in before if name[0] == "torana_turns")

    later = {"Prefer": "respond-async"}
    for content in ("first", "second"):
        await client.post("/message", json={"content": content, "channelId": "a"}, headers=later)
    found = await scraped(client)
    assert (found["torana_turns", "running"], found["torana_turns", "queued"]) == (1, 1)

    gate.set()
    found = await until(client, "torana_turns_ended_total", "failed", is_=1)
    assert found["torana_turns_ended_total", "completed"] == 1
    assert found["torana_turns_ended_total", "cancelled"] == 0
    assert found["torana_turns", "queued"] == 0

    await client.post("/message", json={"content": "/help"})
    assert (await scraped(client))["torana_turns_ended_total", "completed"] == 2


async def test_oldest_waiting_turn_has_an_age_and_each_turn_one_wait(start: Start):
    gate = asyncio.Event()
    _, client = await start(ScriptedModel([gate, "one"], "two"))
    assert (await scraped(client))[("torana_queue_oldest_seconds",)] == 0

    later = {"Prefer": "respond-async"}
    await client.post("/message", json={"content": "first", "channelId": "a"}, headers=later)
    await client.post("/message", json={"content": "second", "channelId": "a"}, headers=later)
    found = await until(client, "torana_queue_wait_seconds_count", is_=1)
    assert found[("torana_queue_oldest_seconds",)] > 0

    gate.set()
    found = await until(client, "torana_turns_ended_total", "completed", is_=2)
    assert found[("torana_queue_oldest_seconds",)] == 0
    assert found[("torana_queue_wait_seconds_count",)] == 2
    assert found["torana_turn_duration_seconds_count", "completed"] == 2


async def test_labels_of_requests_are_bounded(start: Start):
    _, client = await start()
    await client.post("/message", json={"content": "hello", "userId": "ana"})
    for path in ("/api/v1/turns/turn_1", "/v1/turns/turn_2", "/nothing/1", "/nothing/2"):
        await client.get(path)
    await client.request("BREW", "/nothing")
    await client.head("/v1/turns/turn_3")

    names = "torana_http_request_duration_seconds_count"
    requests = {name[1:]: value for name, value in (await scraped(client)).items() if name[0] == names}

    assert requests == {
        ("POST", "/message", "2xx"): 1,
        ("GET", "/v1/turns/{turn_id}", "4xx"): 2,
        ("HEAD", "/v1/turns/{turn_id}", "4xx"): 1,
        ("GET", "other", "4xx"): 2,
        ("other", "other", "4xx"): 1,
    }


async def test_connectors_and_deliveries_are_counted_by_account(start: Start):
    _, client = await start(connectors=CONNECTORS)
    found = await until(client, "torana_connector_up", "shop", "webhook", is_=1)

    assert found["torana_connector_up", "odd", "pigeons"] == 0
    assert found["torana_connector_connections_total", "shop"] == 1
    assert found["torana_connector_connections_total", "odd"] == 0
    states = {name[2] for name in found if name[:2] == ("torana_deliveries", "shop")}
    assert states == {"preview", "pending", "sending", "ambiguous", "refused", "stale"}


async def test_gateways_in_one_process_count_separately_and_share_memory(start: Start, tmp_path: Path):
    _, client = await start()
    _, other = await start(data_dir=tmp_path / "other")
    await client.post("/message", json={"content": "hello"})
    counts, others = [await scraped(one) for one in (client, other)]
    assert counts["torana_turns_ended_total", "completed"] == 1
    assert others["torana_turns_ended_total", "completed"] == 0
    assert others[("process_resident_memory_bytes",)] > 1_000_000


async def test_metrics_contain_no_user_text(start: Start):
    _, client = await start()
    body = {"content": "my secret wish", "userId": "user-of-mine", "channelId": "channel-of-mine"}
    await client.post("/message", json=body)
    text = (await client.get("/metrics")).text
    assert not [word for word in ("secret", "mine", "yes") if word in text]
