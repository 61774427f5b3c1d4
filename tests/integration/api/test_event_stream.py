"""The stream of what happens: its events, its continuation, and each token's share of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import ToolCallPart

from torana.app import App
from torana.messages import EVERYONE
from torana.testing import ScriptedModel
from torana.turns.events.activity import Activity

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]
Event = tuple[str, str, dict[str, Any]]

OPERATOR = {"Authorization": "Bearer a-token-of-more-than-sixteen-characters"}
ASKS = '[{"tool": "calculate", "permission": "ask"}]'


async def events(client: httpx2.AsyncClient, **headers: str) -> list[Event]:
    """The events until now: type, id and data."""
    answer = await client.get("/v1/events", params={"seconds": 0}, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    found: list[Event] = []
    for frame in answer.text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        found.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return found


async def test_stream_begins_with_reset_and_continues_without_gap(client: httpx2.AsyncClient):
    ((first, place, data),) = await events(client)
    assert (first, data) == ("reset", {})
    sent = (await client.post("/message", json={"content": "hi", "channelId": "c"})).json()
    found = await events(client, **{"Last-Event-ID": place})
    assert [kind for kind, _, _ in found] == ["turn.accepted", "turn.started", "turn.ended"]
    ids = {"turnId": sent["id"], "sessionId": sent["sessionId"], "channelId": "c"}
    assert found[0][2] == ids | {"state": "running"}
    assert found[2][2] == ids | {"state": "completed", "error": None}
    assert await events(client, **{"Last-Event-ID": found[0][1]}) == found[1:]
    for unknown in ("other-1", "nonsense", f"{place.partition('-')[0]}-999999"):
        assert [kind for kind, _, _ in await events(client, **{"Last-Event-ID": unknown})] == ["reset"]


async def test_approvals_are_announced(start: Start):
    call = ToolCallPart("calculate", {"expression": "1+1"}, tool_call_id="c1")
    _, client = await start(ScriptedModel([call], "two"), permissions=ASKS)
    ((_, place, _),) = await events(client)
    asked = (await client.post("/message", json={"content": "1+1?"})).json()
    approval = asked["approval"]
    verdict = {"decision": "approve", "digest": approval["digest"]}
    await client.post(f"/v1/approvals/{approval['id']}", json=verdict)
    await client.get(f"/v1/turns/{asked['id']}/events")
    found = {kind: data for kind, _, data in await events(client, **{"Last-Event-ID": place})}
    assert found["approval.required"]["approvalId"] == approval["id"]
    assert (found["approval.decided"]["approvalId"], found["approval.decided"]["approved"]) == (
        approval["id"],
        True,
    )


async def test_token_sees_only_events_of_its_owner(start: Start):
    app, client = await start(gateway_token=OPERATOR["Authorization"].removeprefix("Bearer "))
    made = (await client.post("/v1/tokens", json={"user": "ana"}, headers=OPERATOR)).json()
    ana = {"Authorization": f"Bearer {made['token']}"}
    ((_, place, _),) = await events(client, **ana)
    hers = (await client.post("/message", json={"content": "hi"}, headers=ana)).json()["id"]
    await client.post("/message", json={"content": "hi", "userId": "ana"}, headers=OPERATOR)
    app.turns.live.activity.publish("connector.changed", None, {"account": "telegram"})
    seen = await events(client, **ana, **{"Last-Event-ID": place})
    assert {data["turnId"] for _, _, data in seen} == {hers}
    assert len(await events(client, **OPERATOR, **{"Last-Event-ID": place})) == 7


async def test_stream_ends_when_token_is_revoked_and_when_gateway_stops(start: Start):
    app, client = await start(gateway_token=OPERATOR["Authorization"].removeprefix("Bearer "))
    object.__setattr__(app.services, "keep_alive", 0.01)
    made = (await client.post("/v1/tokens", json={"user": "ana"}, headers=OPERATOR)).json()
    ana = {"Authorization": f"Bearer {made['token']}"}
    streaming = asyncio.create_task(client.get("/v1/events", headers=ana))
    await client.delete(f"/v1/tokens/{made['id']}", headers=OPERATOR)
    assert (await streaming).status_code in (200, 401)
    streaming = asyncio.create_task(client.get("/v1/events", headers=OPERATOR))
    await asyncio.sleep(0)
    await app.turns.stop(grace=0)
    assert (await streaming).text.startswith("event: reset\n")


@pytest.mark.parametrize("seconds", ["", "-1", "x", "1.5"])
async def test_invalid_seconds_are_400(client: httpx2.AsyncClient, seconds: str):
    assert (await client.get("/v1/events", params={"seconds": seconds})).status_code == 400


async def test_slow_reader_gets_reset_in_bounded_log():
    activity = Activity(limit=3)
    reader = activity.follow(EVERYONE)
    assert (await anext(reader)).type == "reset"
    for number in range(5):
        activity.publish("connector.changed", None, {"number": number})
    assert (await anext(reader)).type == "reset"
    activity.publish("connector.changed", None, {"number": 5})
    activity.close()
    assert [event.data async for event in reader] == [{"number": 5}]
