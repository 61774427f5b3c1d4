"""Search over messages: words in any order, in every script, and only in the caller's own messages."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from torana.app import App
from torana.errors import ModelFailed
from torana.messages import GATEWAY_OWNER
from torana.sessions.search import MessageSearch
from torana.store.engine.tables import turns
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

OPERATOR = {"Authorization": "Bearer a-token-of-more-than-sixteen-characters"}


async def say(client: httpx2.AsyncClient, content: str, channel: str = "c", **more: Any) -> dict[str, Any]:
    return (await client.post("/message", json={"content": content, "channelId": channel}, **more)).json()


async def search(client: httpx2.AsyncClient, q: str, **params: Any) -> list[dict[str, Any]]:
    headers = params.pop("headers", None)
    answer = await client.get("/v1/search", params={"q": q} | params, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["complete"]
    return answer.json()["items"]


def marked(hit: dict[str, Any]) -> list[str]:
    return [hit["snippet"][match["start"] : match["end"]] for match in hit["matches"]]


async def test_hit_names_the_message_and_the_place(start: Start):
    _, client = await start(ScriptedModel("The train to Köln leaves at nine.", "yes", "yes"))
    sent = await say(client, "When does my TRAIN leave?")
    await say(client, "Thanks")
    await say(client, "unrelated", "d")
    (hit,) = await search(client, "koln trains")
    assert (hit["sessionId"], hit["turnId"], hit["messageId"]) == (
        sent["sessionId"],
        sent["id"],
        f"{sent['id']}_assistant",
    )
    assert (hit["role"], hit["channelId"], hit["userId"], hit["offset"]) == ("assistant", "c", None, 0)
    assert marked(hit) == ["train", "Köln"]
    page = await client.get(f"/v1/sessions/{hit['sessionId']}/messages", params={"after": hit["page"]})
    assert hit["messageId"] in [item["id"] for item in page.json()["items"]][:2]


async def test_pages_of_hit_meet_at_its_turn(client: httpx2.AsyncClient):
    sent = [await say(client, word) for word in ("one", "two", "three")]
    (hit,) = await search(client, "two")
    place = f"/v1/sessions/{hit['sessionId']}/messages"
    after = (await client.get(place, params={"after": hit["page"]})).json()
    before = (await client.get(place, params={"after": hit["pageBefore"], "order": "newest"})).json()
    assert [item["turnId"] for item in after["items"]] == [turn["id"] for turn in sent[1:] for _ in "ab"]
    assert [item["id"] for item in before["items"]] == [f"{sent[0]['id']}_assistant", f"{sent[0]['id']}_user"]


@pytest.mark.parametrize(
    ("query", "matches"),
    [("京都", ["京都"]), ("東京都", ["東京都"]), ("猫", ["猫"]), ("白猫 東京", ["東京", "白猫"])],
)
async def test_scripts_without_spaces_are_found(client: httpx2.AsyncClient, query: str, matches: list[str]):
    await say(client, "私は東京都で白猫")
    await say(client, "東京 and cats")
    assert [marked(hit) for hit in await search(client, query)] == [matches]


async def test_hits_are_newest_first_in_pages(client: httpx2.AsyncClient):
    for number in range(5):
        await say(client, f"apple {number}", str(number % 2))
    first = (await client.get("/v1/search", params={"q": "apple", "limit": 3})).json()
    rest = await search(client, "apple", limit=3, after=first["next"])
    assert [hit["snippet"][-1] for hit in [*first["items"], *rest]] == list("43210")
    session = first["items"][0]["sessionId"]
    assert [hit["channelId"] for hit in await search(client, "apple", sessionId=session)] == ["0", "0", "0"]


async def test_retried_turn_is_found_by_its_reply_and_once(start: Start):
    _, client = await start(ScriptedModel([ModelFailed("down")], "a banana"))
    await say(client, "fruit?")
    (hit,) = await search(client, "fruit")
    turn_id = hit["turnId"]
    assert (await client.post(f"/v1/turns/{turn_id}/retry")).status_code == 202
    await client.get(f"/v1/turns/{turn_id}/events")
    assert [hit["role"] for hit in await search(client, "banana")] == ["assistant"]
    assert len(await search(client, "fruit")) == 1


async def test_token_finds_only_its_owners_messages(start: Start):
    _, client = await start(gateway_token=OPERATOR["Authorization"].removeprefix("Bearer "))
    tokens = {}
    for user in ("ana", "ben"):
        made = await client.post("/v1/tokens", json={"user": user}, headers=OPERATOR)
        tokens[user] = {"Authorization": f"Bearer {made.json()['token']}"}
        await say(client, f"secret of {user}", headers=tokens[user])
    assert [hit["userId"] for hit in await search(client, "secret", headers=tokens["ana"])] == ["ana"]
    (bens,) = await search(client, "secret", headers=tokens["ben"])
    assert await search(client, "secret", sessionId=bens["sessionId"], headers=tokens["ana"]) == []
    assert {hit["userId"] for hit in await search(client, "secret", headers=OPERATOR)} == {"ana", "ben"}


async def test_deleted_and_erased_messages_are_not_found(gateway: Gateway):
    app, client = gateway
    gone = await say(client, "apple one", "a")
    await client.post("/message", json={"content": "apple two", "channelId": "b", "userId": "ana"})
    assert len(await search(client, "apple")) == 2
    await client.delete(f"/v1/sessions/{gone['sessionId']}")
    assert [hit["userId"] for hit in await search(client, "apple")] == ["ana"]
    await client.delete("/v1/users/ana")
    assert await search(client, "apple") == []
    left = "SELECT count(*) FROM message_words"
    assert await app.database.run(lambda c: c.exec_driver_sql(left).scalar_one()) == 0


async def test_messages_of_the_same_time_are_all_found(gateway: Gateway):
    app, client = gateway
    for number in range(3):
        await say(client, f"apple {number}", str(number))
    moment = sa.select(sa.func.max(turns.c.created_at)).scalar_subquery()
    await app.database.run(lambda c: c.execute(sa.update(turns).values(created_at=moment)))
    assert len(await search(client, "apple")) == 3


async def test_searches_of_one_user_leave_slots_for_others(start: Start):
    app, client = await start(gateway_token=OPERATOR["Authorization"].removeprefix("Bearer "))
    made = await client.post("/v1/tokens", json={"user": "ana"}, headers=OPERATOR)
    of_ana = {"Authorization": f"Bearer {made.json()['token']}"}
    async with app.services.searches.slot("ana"):
        waiting = asyncio.create_task(search(client, "apple", headers=of_ana))
        assert await search(client, "apple", headers=OPERATOR) == []
        assert not waiting.done()
    assert await waiting == []


async def test_indexing_ends_after_some_seconds(gateway: Gateway):
    app, client = gateway
    for number in range(11):
        await say(client, f"apple {number}", str(number))
    slow = MessageSearch(database=app.database, monotonic=itertools.count(step=10).__next__)
    found = await slow.find(GATEWAY_OWNER, "apple", session_id=None, limit=20, after=None)
    assert (len(found.page.items), found.complete) == (10, False)


async def test_search_syntax_has_no_effect(client: httpx2.AsyncClient):
    await say(client, 'a "quoted" NOT word')
    assert len(await search(client, '"quoted" NOT')) == 1
    assert await search(client, "quoted OR missing") == []
    assert await search(client, "owner : x") == []


@pytest.mark.parametrize("query", ["", " ", "?!", "x" * 201])
async def test_query_without_words_is_400(client: httpx2.AsyncClient, query: str):
    assert (await client.get("/v1/search", params={"q": query})).status_code == 400


async def test_missing_query_is_400(client: httpx2.AsyncClient):
    assert (await client.get("/v1/search")).status_code == 400
