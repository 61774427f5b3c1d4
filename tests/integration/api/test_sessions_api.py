"""Reading sessions: lists, single sessions and messages."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from torana.app import App
from torana.errors import ModelFailed
from torana.store.engine.tables import sessions, turns
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]


async def say(
    client: httpx2.AsyncClient, content: str, channel: str, user: str | None = None
) -> dict[str, Any]:
    body = {"content": content, "channelId": channel, "userId": user}
    return (await client.post("/message", json=body)).json()


async def page(client: httpx2.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    answer = await client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def every(client: httpx2.AsyncClient, path: str, limit: int, **params: Any) -> list[dict[str, Any]]:
    """Return the items of all pages."""
    items: list[dict[str, Any]] = []
    given = await page(client, path, limit=limit, **params)
    while given["next"] is not None:
        assert len(given["items"]) == limit
        items += given["items"]
        given = await page(client, path, limit=limit, after=given["next"], **params)
    return items + given["items"]


def cursor(*key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


async def test_sessions_are_listed_by_last_use(client: httpx2.AsyncClient):
    for channel in ("a", "b", "c", "a"):
        await say(client, "hi", channel)
    listed = (await page(client, "/v1/sessions"))["items"]
    assert [(item["channelId"], item["turns"]) for item in listed] == [("a", 2), ("c", 1), ("b", 1)]
    alone = await client.get(f"/v1/sessions/{listed[0]['id']}")
    assert alone.json() == listed[0]
    assert alone.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 200])
async def test_pages_contain_all_sessions(client: httpx2.AsyncClient, limit: int):
    for channel in "abcde":
        await say(client, "hi", channel)
    assert [item["channelId"] for item in await every(client, "/v1/sessions", limit)] == list("edcba")


async def test_sessions_used_at_same_time_are_all_listed(gateway: Gateway):
    app, client = gateway
    for channel in "abcde":
        await say(client, "hi", channel)
    moment = sa.select(sa.func.max(sessions.c.updated_at)).scalar_subquery()
    await app.database.run(lambda connection: connection.execute(sa.update(sessions).values(updated_at=moment)))
    assert sorted(item["channelId"] for item in await every(client, "/v1/sessions", 1)) == list("abcde")


async def test_sessions_are_filtered_by_channel_and_user(client: httpx2.AsyncClient):
    for channel, user in (("a", "ana"), ("b", "ben"), ("a", "ben"), ("12", None)):
        await say(client, "hi", channel, user)

    async def list_channels(**params: Any) -> list[str]:
        return [item["channelId"] for item in await every(client, "/v1/sessions", 1, **params)]

    assert await list_channels(userId="ben") == ["a", "b"]
    assert await list_channels(userId="ana") == ["a"]
    assert await list_channels(channelId="12") == ["12"]
    assert await list_channels(channelId="a", userId="nobody") == []
    assert await list_channels(channelId="\0") == []


async def test_messages_are_listed_in_turn_order_including_queued(start: Start):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel("one", [ModelFailed("no")], [gate, "three"], "four"))
    first = await say(client, "first", "c", "ana")
    await say(client, "second", "c")
    for content in ("third", "fourth"):
        body = {"content": content, "channelId": "c"}
        last = await client.post("/message", json=body, headers={"Prefer": "respond-async"})
    place = f"/v1/sessions/{first['sessionId']}/messages"

    async def list_messages(limit: int) -> list[tuple[str, str]]:
        return [(item["role"], item["content"]) for item in await every(client, place, limit)]

    waiting = [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
        ("user", "third"),
        ("user", "fourth"),
    ]
    for limit in (1, 2, 3, 5, 50):
        assert await list_messages(limit) == waiting
    gate.set()
    await app.turns.reader.wait_for_end(await app.turns.reader.get("gateway", last.json()["id"]))
    done = [*waiting[:4], ("assistant", "three"), ("user", "fourth"), ("assistant", "four")]
    for limit in (1, 2, 3, 7, 50):
        assert await list_messages(limit) == done


async def test_message_has_author_and_time(client: httpx2.AsyncClient):
    answer = await say(client, "hello", "c", "ana")
    question, reply = (await page(client, f"/v1/sessions/{answer['sessionId']}/messages"))["items"]
    assert question == {
        "id": question["id"],
        "turnId": answer["id"],
        "role": "user",
        "content": "hello",
        "userId": "ana",
        "createdAt": answer["createdAt"],
    }
    assert (reply["role"], reply["userId"], reply["turnId"]) == ("assistant", None, answer["id"])
    assert reply["createdAt"] >= question["createdAt"]
    assert question["id"] != reply["id"]


async def test_page_has_50_items_by_default_and_at_most_200(gateway: Gateway):
    app, client = gateway
    session = (await say(client, "hi", "c"))["sessionId"]

    def multiply(connection: sa.Connection) -> None:
        row = dict(connection.execute(sa.select(turns)).mappings().one())
        connection.execute(sa.insert(turns), [row | {"id": f"turn_{seq}", "seq": seq} for seq in range(2, 250)])

    await app.database.run(multiply)
    place = f"/v1/sessions/{session}/messages"
    assert len((await page(client, place))["items"]) == 50
    for limit, length in (("0", 1), ("1", 1), ("200", 200), ("201", 200), ("9" * 20, 200)):
        assert len((await page(client, place, limit=limit))["items"]) == length


BAD_CURSORS = [
    "x",
    "é",
    "=",
    "A" * 200,
    "A" * 201,
    cursor(),
    cursor(1),
    cursor("a", "b"),
    cursor("2026-01-01T00:00:00", "ses_1"),  # without a zone
    cursor("0001-01-01T00:00:00+23:59", "ses_1"),  # before the earliest time in UTC
    cursor(10**30, "user"),
    cursor(-1, "user"),
    cursor(1.5, "user"),
    cursor(True, "user"),
    cursor(1, "\ud800"),
    cursor(1, None),
    cursor(1, "user", 1),
    base64.urlsafe_b64encode(b"9" * 23).decode(),
    base64.urlsafe_b64encode(b"-1").decode(),
    base64.urlsafe_b64encode(b"[" * 140).decode(),
    base64.urlsafe_b64encode(b"\xff").decode(),
]


@pytest.mark.parametrize("after", BAD_CURSORS)
@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/sessions/{id}/messages", "/v1/deliveries"])
@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_cursor_is_refused(shared_client: httpx2.AsyncClient, path: str, after: str):
    session = (await say(shared_client, "hi", "c"))["sessionId"]
    answer = await shared_client.get(path.format(id=session), params={"after": after})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    assert "after" in answer.json()["detail"]


async def test_cursor_of_other_list_is_refused(client: httpx2.AsyncClient):
    await say(client, "hi", "a")
    session = (await say(client, "hi", "b"))["sessionId"]
    places = ["/v1/sessions", f"/v1/sessions/{session}/messages"]
    cursors = [(await page(client, place, limit=1))["next"] for place in places]
    for place, after in zip(places, reversed(cursors), strict=True):
        assert (await client.get(place, params={"after": after})).status_code == 400


@pytest.mark.parametrize("limit", ["", "-1", "many", "1.5", "٣", "²", "9" * 21])
@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/sessions/{id}/messages"])
@pytest.mark.asyncio(loop_scope="module")
async def test_non_numeric_limit_is_refused(shared_client: httpx2.AsyncClient, path: str, limit: str):
    session = (await say(shared_client, "hi", "c"))["sessionId"]
    answer = await shared_client.get(path.format(id=session), params={"limit": limit})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    assert "limit" in answer.json()["detail"]


@pytest.mark.parametrize("name", ["channelId", "userId"])
async def test_invalid_filter_value_is_refused(client: httpx2.AsyncClient, name: str):
    answer = await client.get("/v1/sessions", params={name: "x" * 257})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    assert name in answer.json()["detail"]


async def test_unknown_session_is_404(client: httpx2.AsyncClient):
    for session in ("ses_0", "x" * 101, "%00", "..%2F"):
        for path in (f"/v1/sessions/{session}", f"/v1/sessions/{session}/messages"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), session
