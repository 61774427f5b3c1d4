"""Turns over HTTP: reading, following, cancelling and retrying."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import ToolCallPart

from torana.app import App
from torana.errors import CrashedRepeatedly, ModelFailed
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

HI = {"content": "hi", "channelId": "c"}
Event = tuple[str, str, dict[str, Any]]


async def until(happened: Callable[[], object]) -> None:
    """Run other tasks until the condition holds. The time limit of the test ends an endless wait."""
    while not happened():  # noqa: ASYNC110 - the script has no event for having been asked
        await asyncio.sleep(0)


def events_of(response: httpx2.Response) -> list[Event]:
    """Return the events of a whole stream: type, id and data."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    events: list[Event] = []
    for frame in response.text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        events.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return events


async def send_without_waiting(client: httpx2.AsyncClient, **body: Any) -> str:
    """Send a message without waiting, and return its turn."""
    answer = await client.post("/message", json=HI | body, headers={"Prefer": "respond-async"})
    return answer.json()["id"]


# --- events


async def test_turn_events_equal_events_sent_to_client(start: Start):
    model = ScriptedModel([ToolCallPart("calculate", {"expression": "1+1"})], ["It ", "is 2."])
    _, client = await start(model)
    sent = events_of(await client.post("/message", json=HI, headers={"Accept": "text/event-stream"}))
    watched = await client.get(f"/v1/turns/{sent[0][2]['id']}/events")
    assert events_of(watched) == sent
    assert watched.headers["cache-control"] == "no-store"


async def test_head_of_events_is_405_without_waiting(start: Start):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "late"]))
    turn_id = await send_without_waiting(client)
    assert (await client.head(f"/v1/turns/{turn_id}/events")).status_code == 405
    assert (await app.turns.reader.get("gateway", turn_id)).state == "running"
    gate.set()


async def test_event_stream_resumes_after_last_event_id(client: httpx2.AsyncClient):
    sent = events_of(await client.post("/message", json=HI, headers={"Accept": "text/event-stream"}))
    place = f"/v1/turns/{sent[0][2]['id']}/events"
    for number, (_, event_id, _) in enumerate(sent, start=1):
        by_header = await client.get(place, headers={"Last-Event-ID": event_id})
        by_query = await client.get(place, params={"after": event_id})
        assert events_of(by_header) == events_of(by_query) == sent[number:]


async def test_reconnecting_browser_resumes_by_header(client: httpx2.AsyncClient):
    sent = events_of(await client.post("/message", json=HI, headers={"Accept": "text/event-stream"}))
    place = f"/v1/turns/{sent[0][2]['id']}/events"
    again = await client.get(place, params={"after": "1-1"}, headers={"Last-Event-ID": "1-2"})
    assert events_of(again) == sent[2:]


@pytest.mark.parametrize(
    "seen", ["", "x", "1", "1-", "-1", "1-x", "1-99", "2-1", "1--1", "1-" + "9" * 5_000, "1-٣", "1-1-1", "é"]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_last_event_id_is_ignored(shared_client: httpx2.AsyncClient, seen: str):
    sent = events_of(await shared_client.post("/message", json=HI, headers={"Accept": "text/event-stream"}))
    place = f"/v1/turns/{sent[0][2]['id']}/events"
    assert events_of(await shared_client.get(place, params={"after": seen})) == sent
    by_header = await shared_client.get(place, headers=[(b"Last-Event-ID", seen.encode())])
    assert events_of(by_header) == sent


async def test_ended_turn_is_streamed_from_database_after_restart(start: Start):
    app, client = await start(ScriptedModel(["It ", "is 2."]))
    sent = events_of(await client.post("/message", json=HI, headers={"Accept": "text/event-stream"}))
    await app.close()
    _, client = await start(ScriptedModel())
    place = f"/v1/turns/{sent[0][2]['id']}/events"
    for after in (None, "1-2", sent[-1][1]):
        told = events_of(await client.get(place, params={"after": after} if after else {}))
        assert [type_ for type_, _, _ in told] == ["turn.accepted", "message.snapshot", "turn.completed"]
        assert told[1][2] == {"text": "It is 2."}
        assert (told[0][2], told[-1][2]) == (sent[0][2], sent[-1][2])


async def test_failed_turn_is_streamed_from_database_after_restart(start: Start):
    app, client = await start(ScriptedModel(["It ", ModelFailed("no credit")]))
    sent = events_of(await client.post("/message", json=HI, headers={"Accept": "text/event-stream"}))
    await app.close()
    _, client = await start(ScriptedModel())
    told = events_of(await client.get(f"/v1/turns/{sent[0][2]['id']}/events"))
    assert [type_ for type_, _, _ in told] == ["turn.accepted", "turn.failed"]
    assert (told[-1][2]["status"], told[-1][2]["detail"]) == (502, "no credit")


async def test_turn_interrupted_by_restart_resumes_events(start: Start):
    model = ScriptedModel(["It ", asyncio.Event(), "never"])
    app, client = await start(model)
    turn = await send_without_waiting(client)
    await until(lambda: model.requests)
    await app.close()
    _, client = await start(ScriptedModel(["This ", "is it."]))
    told = events_of(await client.get(f"/v1/turns/{turn}/events", headers={"Last-Event-ID": "1-2"}))
    assert told[0] == ("turn.resumed", "2-1", {"attempt": 2, "text": ""})
    assert "".join(data["text"] for type_, _, data in told if type_ == "message.delta") == "This is it."
    plain = (await client.get(f"/v1/turns/{turn}")).json()
    assert told[-1][2] == {name: plain[name] for name in told[-1][2]}


# --- cancel


async def test_cancelled_turn_keeps_its_partial_reply(start: Start):
    model = ScriptedModel(["It is ", asyncio.Event(), "never"], "next")
    _, client = await start(model)
    stream = asyncio.create_task(client.post("/message", json=HI, headers={"Accept": "text/event-stream"}))
    await until(lambda: model.requests)
    [session] = (await client.get("/v1/sessions")).json()["items"]
    [asked] = (await client.get(f"/v1/sessions/{session['id']}/messages")).json()["items"]
    cancelled = await client.post(f"/v1/turns/{asked['turnId']}/cancel")
    body = cancelled.json()
    assert (cancelled.status_code, body["status"], body["error"]["code"]) == (
        200,
        "cancelled",
        "turn_cancelled",
    )
    type_, _, problem = events_of(await stream)[-1]
    assert (type_, problem["status"], problem["code"]) == ("turn.failed", 409, "turn_cancelled")
    assert (await client.post("/message", json=HI)).json()["reply"] == "next"


async def test_queued_turn_is_cancelled_without_affecting_other_turns(start: Start):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "one"], "three"))
    first, second, third = [await send_without_waiting(client) for _ in range(3)]
    assert (await client.post(f"/v1/turns/{second}/cancel")).json()["status"] == "cancelled"
    gate.set()
    for turn, reply in ((first, "one"), (third, "three")):
        assert (await app.turns.reader.wait_for_end(await app.turns.reader.get("gateway", turn))).reply == reply


async def test_ended_turn_cannot_be_cancelled(client: httpx2.AsyncClient):
    turn = (await client.post("/message", json=HI)).json()
    again = await client.post(f"/v1/turns/{turn['id']}/cancel")
    assert (again.status_code, again.json()["status"], again.json()["reply"]) == (200, "completed", "yes")


# --- retry


async def test_failed_turn_can_be_retried(start: Start):
    app, client = await start(ScriptedModel([CrashedRepeatedly("it died")], "now"))
    assert (await client.post("/message", json=HI)).status_code == 500
    [session] = (await client.get("/v1/sessions")).json()["items"]
    [asked] = (await client.get(f"/v1/sessions/{session['id']}/messages")).json()["items"]
    again = await client.post(f"/v1/turns/{asked['turnId']}/retry")
    assert (again.status_code, again.json()["status"], again.json()["error"]) == (202, "running", None)
    ended = await app.turns.reader.wait_for_end(await app.turns.reader.get("gateway", asked["turnId"]))
    assert (ended.state, ended.reply) == ("completed", "now")


async def test_only_failed_turn_can_be_retried(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"], "done")
    _, client = await start(model)
    running = await send_without_waiting(client)
    answered = (await client.post("/message", json=HI | {"channelId": "d"})).json()["id"]
    for turn in (running, answered):
        refused = await client.post(f"/v1/turns/{turn}/retry")
        assert (refused.status_code, refused.json()["code"]) == (409, "not_failed")


# --- owners


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")]
)
async def test_unknown_turn_is_404(client: httpx2.AsyncClient, method: str, path: str):
    for turn in ("turn_0", "x" * 101, "%00", "%F0%9F%98%80", "..%2F", "turn_%FF"):
        answer = await client.request(method, f"/v1/turns/{turn}{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), turn
