"""A user's memories over HTTP: list, search, change and forget, without access to those of other users."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import ToolCallPart

from torana.app import App
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

ANA = "/v1/users/ana/memories"
OPERATOR = "a-token-of-more-than-sixteen-characters"


async def store(
    client: httpx2.AsyncClient, text: str, subject: str | None = None, place: str = ANA
) -> dict[str, Any]:
    answer = await client.post(place, json={"text": text, "subject": subject})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def listed(client: httpx2.AsyncClient, place: str = ANA, **params: Any) -> list[str]:
    answer = await client.get(place, params=params)
    assert answer.status_code == 200, answer.text
    return [item["text"] for item in answer.json()["items"]]


async def test_memory_is_listed_with_its_source(client: httpx2.AsyncClient):
    answer = await client.post(ANA, json={"text": " My sister is called Ana ", "subject": "My sister's NAME"})

    kept = answer.json()
    assert answer.status_code == 201
    assert kept == {
        "id": kept["id"],
        "text": "My sister is called Ana",
        "subject": "my sister's name",
        "turnId": None,
        "createdAt": kept["createdAt"],
        "supersededAt": None,
        "supersededBy": None,
    }
    found = await client.get(httpx2.URL(f"http://localhost{ANA}").join(answer.headers["location"]).path)
    assert found.json() == kept | {"history": []}
    assert found.headers["cache-control"] == "no-store"


async def test_same_memory_again_returns_existing_one(client: httpx2.AsyncClient):
    first = await store(client, "I like tea")

    again = await client.post(ANA, json={"text": "i LIKE tea"})

    assert (again.status_code, again.json()) == (200, first)
    assert "location" not in again.headers


async def test_memory_stored_by_agent_names_its_turn(start: Start):
    call = ToolCallPart("remember", {"text": "Ana likes tea"})
    _, client = await start(ScriptedModel([call], "noted"))
    turn = (await client.post("/message", json={"content": "I like tea", "userId": "ana"})).json()

    (item,) = (await client.get(ANA)).json()["items"]

    assert (item["text"], item["turnId"]) == ("Ana likes tea", turn["id"])


@pytest.mark.parametrize("limit", [1, 2, 3, 200])
async def test_pages_contain_all_memories_newest_first(client: httpx2.AsyncClient, limit: int):
    for text in "abcde":
        await store(client, text)
    texts: list[str] = []
    after = ""
    while after is not None:
        page = (await client.get(ANA, params={"limit": limit, "after": after})).json()
        texts += [item["text"] for item in page["items"]]
        after = page["next"]
    assert texts == list("edcba")


async def test_query_finds_best_matches_with_scores(client: httpx2.AsyncClient):
    for text in ("I like green tea", "green hats", "the car is on level 3"):
        await store(client, text)

    found = (await client.get(ANA, params={"query": "green TEA"})).json()

    assert [item["text"] for item in found["items"]] == ["I like green tea", "green hats"]
    assert found["items"][0]["score"] > found["items"][1]["score"] > 0
    assert found["next"] is None
    assert await listed(client, query="green tea", limit=1) == ["I like green tea"]
    assert [item["score"] for item in (await client.get(ANA)).json()["items"]] == [None] * 3


async def test_score_is_independent_of_other_users(client: httpx2.AsyncClient):
    await store(client, "I like saffron")
    await store(client, "I like tea")
    alone = (await client.get(ANA, params={"query": "saffron like"})).json()

    for number in range(20):
        await store(client, f"saffron number {number}", place="/v1/users/ben/memories")

    assert (await client.get(ANA, params={"query": "saffron like"})).json() == alone


async def test_subject_matches_in_any_spelling(client: httpx2.AsyncClient):
    await store(client, "blue", "Favourite colour")
    await store(client, "colour of the house: green")

    assert await listed(client, subject="ｆａｖｏｕｒｉｔｅ  COLOUR") == ["blue"]
    assert await listed(client, query="colour", subject="favourite colour") == ["blue"]
    assert await listed(client, subject="colour") == []


async def test_newer_memory_supersedes_older_with_same_subject(client: httpx2.AsyncClient):
    blue = await store(client, "blue", "colour")
    red = await store(client, "red", "colour")
    green = await store(client, "green", "colour")

    assert await listed(client) == ["green"]
    assert await listed(client, query="blue red") == []
    whole = (await client.get(f"{ANA}/{green['id']}")).json()
    assert [item["id"] for item in whole["history"]] == [red["id"], blue["id"]]
    old = (await client.get(f"{ANA}/{blue['id']}")).json()
    assert (old["supersededAt"], old["supersededBy"]) == (red["createdAt"], green["id"])


async def test_changed_memory_keeps_old_one_as_history(client: httpx2.AsyncClient):
    old = await store(client, "I live in Porto", "home")

    changed = (await client.patch(f"{ANA}/{old['id']}", json={"text": "I live in Lisbon"})).json()
    freed = (await client.patch(f"{ANA}/{changed['id']}", json={"subject": None})).json()

    assert (changed["text"], changed["subject"]) == ("I live in Lisbon", "home")
    assert (freed["text"], freed["subject"]) == ("I live in Lisbon", None)
    history = (await client.get(f"{ANA}/{freed['id']}")).json()["history"]
    assert [item["id"] for item in history] == [changed["id"], old["id"]]
    assert await listed(client) == ["I live in Lisbon"]


async def test_change_to_existing_subject_supersedes_both(client: httpx2.AsyncClient):
    await store(client, "blue", "colour")
    hat = await store(client, "red", "hat")

    now = (await client.patch(f"{ANA}/{hat['id']}", json={"subject": "Colour"})).json()

    assert await listed(client) == ["red"]
    assert len((await client.get(f"{ANA}/{now['id']}")).json()["history"]) == 2


async def test_change_without_effect_returns_memory_unchanged(client: httpx2.AsyncClient):
    old = await store(client, "blue", "colour")

    assert (await client.patch(f"{ANA}/{old['id']}", json={"subject": "COLOUR"})).json() == old


async def test_superseded_memory_cannot_be_changed(client: httpx2.AsyncClient):
    blue = await store(client, "blue", "colour")
    red = await store(client, "red", "colour")

    answer = await client.patch(f"{ANA}/{blue['id']}", json={"text": "green"})

    assert (answer.status_code, answer.json()["code"]) == (409, "memory_superseded")
    assert red["id"] in answer.json()["detail"]


async def test_deleting_memory_deletes_its_history(client: httpx2.AsyncClient):
    blue = await store(client, "blue", "colour")
    red = await store(client, "red", "colour")
    await store(client, "tea")

    assert (await client.delete(f"{ANA}/{red['id']}")).json() == red

    assert await listed(client) == ["tea"]
    for gone in (blue, red):
        assert (await client.get(f"{ANA}/{gone['id']}")).status_code == 404
        assert (await client.delete(f"{ANA}/{gone['id']}")).status_code == 404


async def test_deleting_by_query_returns_deleted_memories(client: httpx2.AsyncClient):
    for text in ("green tea at four", "I like green tea", "tea"):
        await store(client, text)

    gone = (await client.delete(ANA, params={"query": "green tea"})).json()

    assert {item["text"] for item in gone["items"]} == {"green tea at four", "I like green tea"}
    assert await listed(client) == ["tea"]
    assert (await client.delete(ANA, params={"query": "nothing such"})).json() == {"items": []}


@pytest.mark.parametrize("params", [{}, {"query": ""}, {"query": "  \t"}, {"query": "x" * 10_001}])
async def test_delete_without_query_is_refused(client: httpx2.AsyncClient, params: dict[str, str]):
    await store(client, "x")

    answer = await client.delete(ANA, params=params)

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    assert "query" in answer.json()["detail"]
    assert await listed(client) == ["x"]


HOSTILE = [
    '"',
    '""" OR *',
    "owner:x",
    "words : a OR memory : b",
    "NEAR(a b, 2)",
    "a* -b ^c",
    "{words owner} : a",
    "'; DROP TABLE memories; --",
    ") OR (1=1",
    "AND AND AND",
    "%_\\",
    "😀" * 256,
    "\u202e\u200b\ufeff",
    "a " * 4_000,
]


@pytest.mark.parametrize("query", HOSTILE)
async def test_no_query_fails_or_reaches_other_users(client: httpx2.AsyncClient, query: str):
    await store(client, "hers")
    await store(client, "his: a b c owner words memory x NEAR", place="/v1/users/ben/memories")

    assert await listed(client, query=query) in ([], ["hers"])
    answer = await client.delete(ANA, params={"query": query})
    assert answer.status_code == 200 or not query.strip()
    assert await listed(client, place="/v1/users/ben/memories") == ["his: a b c owner words memory x NEAR"]


def coded(user: str) -> str:
    return "~" + base64.urlsafe_b64encode(user.encode()).decode().rstrip("=")


STRANGE = [
    "../",
    "..",
    "'; DROP TABLE memories; --",
    "😀" * 256,
    "a/b",
    "caf\u00e9",
    "cafe\u0301",
    "Ａna",
    "ana ",
]


async def test_users_with_different_code_points_are_distinct(client: httpx2.AsyncClient):
    places = [*(f"/v1/users/{coded(user)}/memories" for user in STRANGE), ANA, "/v1/users/Ana/memories"]
    for number, place in enumerate(places):
        await store(client, f"note {number}", "s", place)

    for number, place in enumerate(places):
        assert await listed(client, place) == [f"note {number}"]
        assert await listed(client, place, query="note") == [f"note {number}"]


@pytest.mark.parametrize("segment", ["..", "a b", coded("ana"), "~", "~!", "~" + "A" * 2_000, "x" * 257])
@pytest.mark.asyncio(loop_scope="module")
async def test_user_in_path_has_only_one_spelling(shared_client: httpx2.AsyncClient, segment: str):
    answer = await shared_client.get(
        f"/v1/users/{segment.replace(' ', '%20').replace('..', '%2E%2E')}/memories"
    )
    assert answer.status_code == 404, answer.text


async def test_memory_of_other_user_is_404(client: httpx2.AsyncClient):
    his = await store(client, "his", place="/v1/users/ben/memories")
    place = f"{ANA}/{his['id']}"

    answers = await asyncio.gather(
        client.get(place), client.patch(place, json={"text": "hers"}), client.delete(place)
    )

    assert [answer.status_code for answer in answers] == [404] * 3
    assert await listed(client, "/v1/users/ben/memories") == ["his"]


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({}, 400, "invalid_field", "/text"),
        ({"text": None}, 400, "invalid_field", "/text"),
        ({"text": 7}, 400, "invalid_field", "/text"),
        ({"text": " \n"}, 400, "invalid_field", "/text"),
        ({"text": "x" * 2_001}, 413, "memory_too_long", "/text"),
        ({"text": "x", "subject": "s" * 201}, 400, "invalid_field", "/subject"),
        ({"text": "x", "subject": 7}, 400, "invalid_field", "/subject"),
        ({"text": "x\0"}, 400, "invalid_text", "/text"),
    ],
)
async def test_invalid_memory_is_refused(
    client: httpx2.AsyncClient, body: dict[str, Any], status: int, code: str, pointer: str
):
    stands = await store(client, "stands")
    refused = [await client.post(ANA, json=body)]
    if body:
        refused.append(await client.patch(f"{ANA}/{stands['id']}", json=body))
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
    assert await listed(client) == ["stands"]


async def test_memory_of_one_megabyte_is_413(client: httpx2.AsyncClient):
    answer = await client.post(ANA, json={"text": "x" * 1_000_000})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_empty_change_is_refused(client: httpx2.AsyncClient):
    stands = await store(client, "stands")
    answer = await client.patch(f"{ANA}/{stands['id']}", json={"other": 1})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")


async def test_search_with_cursor_is_refused(client: httpx2.AsyncClient):
    answer = await client.get(ANA, params={"query": "x", "after": "y"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")


@pytest.mark.long
async def test_full_memory_is_409(client: httpx2.AsyncClient):
    await asyncio.gather(*(store(client, f"note {number}") for number in range(1_000)))

    answer = await client.post(ANA, json={"text": "one more"})

    assert (answer.status_code, answer.json()["code"]) == (409, "memory_full")


async def test_memory_writes_and_searches_count_as_messages(start: Start):
    _, client = await start(rate_global=2)
    place = f"{ANA}/{(await store(client, 'I like tea'))['id']}"
    bad = [
        await client.post(ANA, json={"text": ""}),
        await client.get(ANA, params={"query": "tea", "after": "x"}),
        await client.delete(ANA, params={"query": " "}),
        await client.patch(f"{ANA}/mem_none", json={"text": "tea"}),
        await client.delete(f"{ANA}/mem_none"),
    ]
    assert [answer.status_code for answer in bad] == [400, 400, 400, 404, 404]
    assert await listed(client, query="tea") == ["I like tea"]

    refused = [
        await client.post(ANA, json={"text": "I like milk"}),
        await client.get(ANA, params={"query": "tea"}),
        await client.patch(place, json={"text": "I like milk"}),
        await client.delete(ANA, params={"query": "tea"}),
        await client.delete(place),
    ]

    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert answer.json()["violatedPolicies"] == ["global"]
        assert answer.headers["retry-after"]
        assert answer.headers["ratelimit"].startswith('"global";r=0;t=')
    assert await listed(client) == ["I like tea"]
    assert (await client.get(place)).json()["text"] == "I like tea"


async def test_token_bound_to_user_shares_rate_limit_of_user(start: Start):
    _, operator = await start(gateway_token=OPERATOR, rate_per_user=1, rate_global=100)
    operator.headers["Authorization"] = f"Bearer {OPERATOR}"
    made = await operator.post("/v1/tokens", json={"user": "ana", "scopes": ["memory"]})
    ana = {"Authorization": f"Bearer {made.json()['token']}"}

    answers = [await operator.post(ANA, json={"text": f"note {n}"}, headers=ana) for n in range(2)]

    assert [answer.status_code for answer in answers] == [201, 429]
    assert answers[1].json()["violatedPolicies"] == ["user"]
    assert (await operator.post(ANA, json={"text": "by the operator"})).status_code == 201
