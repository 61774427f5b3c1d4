"""``Idempotency-Key``: a message that is sent again is the same turn."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from torana.app import App
from torana.errors import CrashedRepeatedly, ModelFailed
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]
Stored = Callable[[App], Awaitable[int]]

HI = {"content": "hi", "channelId": "c", "userId": "ana"}


async def until(happened: Callable[[], object]) -> None:
    """Run other tasks until the condition holds; the test's own time limit ends the wait otherwise."""
    while not happened():  # noqa: ASYNC110 - the script has no event for having been asked
        await asyncio.sleep(0)


async def send(
    client: httpx2.AsyncClient,
    *,
    key: str = "k",
    path: str = "/message",
    headers: dict[str, str] | None = None,
    **body: Any,
) -> httpx2.Response:
    """Send the message with its key."""
    return await client.post(path, json=HI | body, headers={"Idempotency-Key": key} | (headers or {}))


def is_replay(answer: httpx2.Response) -> bool:
    return answer.headers.get("idempotency-replayed") == "true"


async def test_repeated_message_gets_same_response(start: Start, stored: Stored):
    app, client = await start(ScriptedModel("only once"), rate_global=1)
    first, again = await send(client), await send(client, key='"k"')
    assert (first.json(), is_replay(first)) == (again.json(), False)
    assert (again.status_code, is_replay(again)) == (200, True)
    assert await stored(app) == 2  # one session, one turn


async def test_paths_with_and_without_prefix_share_keys(start: Start):
    _, client = await start(ScriptedModel("only once"))
    first, again = await send(client), await send(client, path="/api/message")
    assert again.json() == first.json()


async def test_key_compares_parsed_message(start: Start):
    _, client = await start(ScriptedModel("only once"))
    first = await send(client, channelId=12, userId=None, onBusy="queue")
    raw = json.dumps({"more": 1, "channelId": "12", "content": "hi", "onBusy": None}, indent=3).encode()
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json; charset=utf-8"}
    again = await client.post("/message", content=raw, headers=headers)
    assert again.json() == first.json()


async def test_repeated_message_without_channel_is_same_turn(start: Start):
    _, client = await start(ScriptedModel("only once"))
    first, again = await send(client, channelId=None), await send(client, channelId=None)
    assert again.json() == first.json()


@pytest.mark.parametrize(
    "change", [{"content": "ho"}, {"channelId": "d"}, {"userId": "ben"}, {"onBusy": "reject"}]
)
async def test_key_reused_for_other_message_is_refused(client: httpx2.AsyncClient, change: dict[str, Any]):
    first = await send(client)
    refused = await send(client, **change)
    assert (refused.status_code, refused.json()["code"]) == (422, "key_reused")
    assert (await send(client)).json() == first.json()


@pytest.mark.parametrize("key", ["", '""', "two words", '"open', "x" * 256])
async def test_malformed_key_is_refused_and_stores_nothing(start: Start, stored: Stored, key: str):
    app, client = await start()
    refused = await send(client, key=key)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_field")
    assert await stored(app) == 0


async def test_repeated_request_waits_for_running_turn(start: Start):
    gate = asyncio.Event()
    model = ScriptedModel([gate, "late"])
    _, client = await start(model)
    first = asyncio.create_task(send(client))
    await until(lambda: model.requests)
    later = await send(client, headers={"Prefer": "respond-async"})
    assert (later.status_code, later.json()["status"], is_replay(later)) == (202, "running", True)
    again = asyncio.create_task(send(client))
    gate.set()
    assert (await first).json() == (await again).json()
    assert (await first).json()["id"] == later.json()["id"]


async def test_concurrent_requests_with_same_key_are_one_turn(start: Start, stored: Stored):
    app, client = await start(ScriptedModel("only once"))
    answers = await asyncio.gather(*(send(client) for _ in range(20)))
    assert [answer.json() for answer in answers] == [answers[0].json()] * 20
    assert await stored(app) == 2


async def test_ended_turn_is_replayed_in_requested_form(start: Start):
    _, client = await start(ScriptedModel("only once"))
    first = await send(client)
    events = await send(client, headers={"Accept": "text/event-stream"})
    assert is_replay(events)
    frames = events.text.split("\n\n")[:-1]
    assert frames[0].startswith("event: turn.accepted\n")
    assert frames[-1].startswith("event: turn.completed\n")
    assert json.loads(frames[-1].split("data: ")[1]) == first.json()
    later = await send(client, headers={"Prefer": "respond-async"})
    assert (later.status_code, later.json()["status"]) == (202, "completed")
    for prefer in ("wait=0", "wait=0, respond-async"):
        at_once = await send(client, headers={"Prefer": prefer})
        assert (at_once.status_code, at_once.json()) == (200, first.json())


async def test_key_survives_restart(start: Start):
    app, client = await start(ScriptedModel("only once"))
    first = await send(client)
    await app.close()
    _, client = await start(ScriptedModel())
    again = await send(client)
    assert (again.json(), is_replay(again)) == (first.json(), True)
    events = await send(client, headers={"Accept": "text/event-stream"})
    assert [line for line in events.text.splitlines() if line.startswith("event: ")] == [
        "event: turn.accepted",
        "event: message.snapshot",
        "event: turn.completed",
    ]


async def test_repeated_request_waits_for_turn_interrupted_by_restart(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"])
    app, client = await start(model)
    accepted = await send(client, headers={"Prefer": "respond-async"})
    await until(lambda: model.requests)
    await app.close()
    _, client = await start(ScriptedModel("after the restart"))
    again = await send(client)
    assert (again.json()["id"], again.json()["reply"]) == (accepted.json()["id"], "after the restart")


# --- refusals and failures


async def test_rate_limited_request_stores_no_key(start: Start, stored: Stored):
    app, client = await start(ScriptedModel("first"), rate_global=1)
    await send(client, key="first")
    refused = await send(client)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert await stored(app) == 2
    other = await send(client, content="another message")
    assert other.status_code == 429  # and not 422


async def test_replay_uses_no_rate_limit(start: Start):
    _, client = await start(ScriptedModel("first"), rate_per_user=1, rate_global=1)
    first = await send(client)
    assert [(await send(client)).json() for _ in range(3)] == [first.json()] * 3


async def test_repeated_request_retries_turn_with_temporary_failure(start: Start):
    _, client = await start(ScriptedModel([ModelFailed("no credit")], "now there is"))
    failed = await send(client)
    assert (failed.status_code, failed.json()["code"]) == (502, "model_failed")
    again = await send(client)
    assert (again.status_code, again.json()["reply"]) == (200, "now there is")
    [session] = (await client.get("/v1/sessions")).json()["items"]
    said = (await client.get(f"/v1/sessions/{session['id']}/messages")).json()["items"]
    assert [item["content"] for item in said] == ["hi", "now there is"]


async def test_concurrent_requests_for_failed_turn_retry_it_once(start: Start):
    _, client = await start(ScriptedModel([ModelFailed("no credit")], "only once more"))
    await send(client)
    answers = await asyncio.gather(*(send(client) for _ in range(10)))
    assert [(answer.status_code, answer.json()["reply"]) for answer in answers] == [
        (200, "only once more")
    ] * 10


async def test_permanent_failure_is_replayed(start: Start):
    model = ScriptedModel([CrashedRepeatedly("it died")])
    _, client = await start(model)
    failed, again = await send(client), await send(client)
    assert (failed.status_code, again.status_code) == (500, 500)
    assert (again.json()["code"], again.json()["detail"]) == ("crashed_repeatedly", "it died")
    assert is_replay(again)
    assert len(model.requests) == 1


async def test_cancelled_turn_is_replayed(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"])
    _, client = await start(model)
    waiting = asyncio.create_task(send(client))
    await until(lambda: model.requests)
    turn = (await send(client, headers={"Prefer": "respond-async"})).json()
    await client.post(f"/v1/turns/{turn['id']}/cancel")
    for answer in (await waiting, await send(client)):
        assert (answer.status_code, answer.json()["code"]) == (409, "turn_cancelled")
