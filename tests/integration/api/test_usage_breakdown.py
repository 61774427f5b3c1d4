"""Usage by model, user, token, channel and schedule: every sum equals the ledger."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from pydantic_ai.messages import ToolCallPart

from torana.app import App
from torana.store.engine.tables import usage
from torana.store.rows.reports.spending import DIMENSIONS
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

#: A price of which most costs are no whole micro-dollars.
PRICED = (
    'model = "openai-chat:scripted"\nmodel_base_url = "http://127.0.0.1:9"\n'
    'prices = "openai-chat:scripted 0.123457 0.777773"\n'
)
AMOUNTS = ("messages", "inputTokens", "outputTokens", "costMicroUsd")


async def breakdown(client: httpx2.AsyncClient, by: str, **params: Any) -> dict[str, Any]:
    answer = await client.get("/v1/usage", params={"by": by} | params)
    assert answer.status_code == 200, answer.text
    return answer.json()["breakdown"]


def values(found: dict[str, Any]) -> dict[str | None, int]:
    return {group["value"]: group["messages"] for group in found["groups"]}


@pytest.fixture
async def gateway(start: Start, tmp_path: Path) -> Gateway:
    """A gateway after messages of two users and one of no user, some with tool calls."""
    (tmp_path / "torana.toml").write_text(PRICED)
    call = [ToolCallPart("calculate", {"expression": "1+1"})]
    app, client = await start(ScriptedModel(call, "two", "yes", call, call, "two", "yes"))
    for channel, user in (("a", "ana"), ("a", "ben"), ("b", "ana"), ("c", None)):
        body = {"content": "what is 1+1?", "channelId": channel, "userId": user}
        assert (await client.post("/message", json=body)).status_code == 200
    return app, client


async def test_sums_equal_the_ledger_in_every_dimension(gateway: Gateway):
    app, client = gateway
    ledger = sa.select(usage).where(usage.c.account == "gateway", sa.func.length(usage.c.period) == 10)
    row = await app.database.run(lambda c: c.execute(ledger).mappings().one())
    expected = (4, row["input_tokens"], row["output_tokens"], row["microusd"])
    assert row["microusd"] > 0
    for by in DIMENSIONS:
        for limit in (1, 200):
            found = await breakdown(client, by, limit=limit)
            parts = [*found["groups"], found["other"]]
            assert tuple(found["total"][name] for name in AMOUNTS) == expected
            assert tuple(sum(part[name] for part in parts) for name in AMOUNTS) == expected


async def test_usage_has_the_values_of_each_dimension(gateway: Gateway):
    _, client = gateway
    assert values(await breakdown(client, "user")) == {"ana": 2, "ben": 1, None: 1}
    assert values(await breakdown(client, "channel")) == {"a": 2, "b": 1, "c": 1}
    assert values(await breakdown(client, "token")) == values(await breakdown(client, "schedule")) == {None: 4}
    models = {group["value"]: group for group in (await breakdown(client, "model"))["groups"]}
    assert models["scripted"]["inputTokens"] > 0
    assert (models[None]["messages"], models[None]["inputTokens"], models[None]["costMicroUsd"]) == (4, 0, 0)
    (day,) = (await breakdown(client, "day"))["groups"]
    assert day["value"] == (await client.get("/v1/usage")).json()["days"][-1]["date"]


async def test_erasure_keeps_amounts_without_channels(gateway: Gateway):
    _, client = gateway
    before = await breakdown(client, "user")
    await client.delete("/v1/users/ana")
    assert await breakdown(client, "user") == before
    assert values(await breakdown(client, "channel")) == {"a": 1, None: 2, "c": 1}


async def test_without_dimension_there_is_no_breakdown(client: httpx2.AsyncClient):
    assert (await client.get("/v1/usage")).json()["breakdown"] is None


async def test_invalid_dimension_is_400(client: httpx2.AsyncClient):
    assert (await client.get("/v1/usage", params={"by": "colour"})).status_code == 400
