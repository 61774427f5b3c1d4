"""The list of turns: its order, filters and pages, and each token's share of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from torana.app import App
from torana.errors import ModelFailed
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

OPERATOR = "a-token-of-more-than-sixteen-characters"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def listed(client: httpx2.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get("/v1/turns", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def test_turns_are_listed_newest_first_in_pages(client: httpx2.AsyncClient):
    for content in ("one", "two", "three"):
        await client.post("/message", json={"content": content, "channelId": "c", "userId": "ana"})
    answer = (await client.get("/v1/turns", params={"limit": 2})).json()
    rest = await listed(client, limit=2, after=answer["next"])
    assert [item["excerpt"] for item in [*answer["items"], *rest]] == ["three", "two", "one"]
    item = rest[0]
    turn = (await client.get(f"/v1/turns/{item['id']}")).json()
    shared = item.keys() & turn.keys()
    assert {name: item[name] for name in shared} == {name: turn[name] for name in shared}
    assert (item["owner"], item["attempt"], item["account"], item["scheduleId"]) == ("gateway", 1, None, None)


async def test_turns_are_filtered(start: Start):
    _, client = await start(ScriptedModel("yes", [ModelFailed("no")], "yes"))
    for content, channel, user in (("a", "x", "ana"), ("b", "x", "ben"), ("c", "y", None)):
        await client.post("/message", json={"content": content, "channelId": channel, "userId": user})
    every = {item["excerpt"]: item for item in await listed(client)}

    async def found(**params: Any) -> str:
        return "".join(item["excerpt"] for item in await listed(client, **params))

    assert await found(state="failed") == "b"
    assert every["b"]["error"]["code"] == "model_failed"
    assert await found(channelId="x") == "ba"
    assert await found(userId="ana", channelId="x") == "a"
    assert await found(sessionId=every["c"]["sessionId"]) == "c"
    assert await found(account="telegram:home") == ""
    assert await found(since=every["b"]["createdAt"]) == "cb"
    assert await found(until=every["b"]["createdAt"]) == "a"


@pytest.mark.parametrize("name", ["since", "until", "state", "limit", "after"])
async def test_invalid_parameter_is_400(client: httpx2.AsyncClient, name: str):
    answer = await client.get("/v1/turns", params={name: "yesterday"})
    assert answer.status_code == 400, answer.text
    assert f"`{name}`" in answer.json()["detail"]


async def test_token_lists_only_turns_of_its_owner(start: Start):
    _, client = await start(gateway_token=OPERATOR)
    client.headers.update(bearer(OPERATOR))
    made = await client.post("/v1/tokens", json={"user": "ana"})
    ana = bearer(made.json()["token"])
    await client.post("/message", json={"content": "hers"}, headers=ana)
    await client.post("/message", json={"content": "theirs", "userId": "ana", "channelId": "c"})
    theirs = (await listed(client, channelId="c"))[0]
    seen = await client.get("/v1/turns", headers=ana)
    assert [item["excerpt"] for item in seen.json()["items"]] == ["hers"]
    foreign = await client.get("/v1/turns", params={"sessionId": theirs["sessionId"]}, headers=ana)
    assert foreign.json()["items"] == []
    assert {item["excerpt"] for item in await listed(client)} == {"hers", "theirs"}


@pytest.mark.parametrize("path", ["/v1/turns", "/v1/sessions"])
async def test_lists_of_one_user_are_read_one_after_the_other(start: Start, path: str):
    app, client = await start(gateway_token=OPERATOR)
    made = await client.post("/v1/tokens", json={"user": "ana"}, headers=bearer(OPERATOR))
    async with app.services.lists.slot("ana"):
        waiting = asyncio.create_task(client.get(path, headers=bearer(made.json()["token"])))
        assert (await client.get(path, headers=bearer(OPERATOR))).status_code == 200
        assert not waiting.done()
    assert (await waiting).status_code == 200
