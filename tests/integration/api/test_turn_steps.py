"""The steps of a turn with their times: while it runs, after its end, across attempts."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import httpx2
from pydantic_ai.messages import ToolCallPart

from torana.app import App
from torana.errors import ModelFailed
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

ASKS = '[{"tool": "calculate", "permission": "ask"}]'
LATER = {"Prefer": "respond-async"}


def calculate() -> ToolCallPart:
    return ToolCallPart("calculate", {"expression": "1+1"}, tool_call_id="c1")


async def steps(client: httpx2.AsyncClient, turn_id: str, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/turns/{turn_id}/steps", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def until(client: httpx2.AsyncClient, turn_id: str, status: str) -> dict[str, Any]:
    while (turn := (await client.get(f"/v1/turns/{turn_id}")).json())["status"] != status:
        pass
    return turn


async def test_steps_of_an_ended_turn_have_times_and_costs(start: Start):
    model = ScriptedModel(["Let me see. ", calculate()], "It is 2.")
    _, client = await start(model)
    sent = (await client.post("/message", json={"content": "1+1?"})).json()

    found = await steps(client, sent["id"])
    told = [(one["kind"], one["state"], one["step"], one["name"], one["callId"]) for one in found]
    assert told == [
        ("queue", "completed", None, None, None),
        ("model", "completed", 0, "scripted", None),
        ("tool", "completed", 0, "calculate", "c1"),
        ("model", "completed", 1, "scripted", None),
    ]
    assert all(
        datetime.fromisoformat(one["startedAt"]) <= datetime.fromisoformat(one["endedAt"]) for one in found
    )
    assert {one["attempt"] for one in found} == {1}
    requests = [one for one in found if one["kind"] == "model"]
    assert sum(one["inputTokens"] for one in requests) == sent["usage"]["inputTokens"]
    assert sum(one["outputTokens"] for one in requests) == sent["usage"]["outputTokens"]

    first = (await client.get(f"/v1/turns/{sent['id']}/steps", params={"limit": 3})).json()
    assert [*first["items"], *await steps(client, sent["id"], limit=3, after=first["next"])] == found


async def test_running_and_waiting_steps_are_listed(start: Start):
    gate = asyncio.Event()
    model = ScriptedModel([calculate()], [gate, "It is 2."])
    _, client = await start(model, permissions=ASKS)
    turn_id = (await client.post("/message", json={"content": "1+1?"}, headers=LATER)).json()["id"]

    waiting = await until(client, turn_id, "waiting")
    asked = (await steps(client, turn_id))[-1]
    approval = waiting["approvals"][0]
    assert (asked["kind"], asked["state"], asked["endedAt"]) == ("approval", "open", None)
    assert (asked["approvalId"], asked["name"], asked["callId"]) == (approval["id"], "calculate", "c1")

    verdict = {"decision": "approve", "digest": approval["digest"]}
    decided = await client.post(f"/v1/approvals/{approval['id']}", json=verdict)
    assert decided.status_code == 200, decided.text
    await model.asked(2)
    found = {(one["kind"], one["step"]): one for one in await steps(client, turn_id)}
    assert (found["model", 1]["state"], found["model", 1]["endedAt"]) == ("running", None)
    assert (found["approval", 0]["state"], found["approval", 0]["decidedBy"]) == ("approved", "local")
    gate.set()
    await until(client, turn_id, "completed")


async def test_cancelled_request_is_interrupted_and_a_retry_is_another_attempt(start: Start):
    model = ScriptedModel([asyncio.Event()], [ModelFailed("down")], "hello")
    _, client = await start(model)
    stopped = (await client.post("/message", json={"content": "a"}, headers=LATER)).json()["id"]
    await model.asked(1)
    await client.post(f"/v1/turns/{stopped}/cancel")
    assert [one["state"] for one in await steps(client, stopped)] == ["completed", "interrupted"]

    failed = await client.post("/message", json={"content": "b"}, headers=LATER)
    turn_id = failed.json()["id"]
    await until(client, turn_id, "failed")
    await client.post(f"/v1/turns/{turn_id}/retry")
    await until(client, turn_id, "completed")
    told = [(one["kind"], one["attempt"], one["state"]) for one in await steps(client, turn_id)]
    assert told == [
        ("queue", 1, "completed"),
        ("model", 1, "failed"),
        ("queue", 2, "completed"),
        ("model", 2, "completed"),
    ]


async def test_steps_of_another_owners_turn_are_404(start: Start):
    operator = {"Authorization": "Bearer a-token-of-more-than-sixteen-characters"}
    _, client = await start(gateway_token=operator["Authorization"].removeprefix("Bearer "))
    made = await client.post("/v1/tokens", json={"user": "ana"}, headers=operator)
    sent = await client.post("/message", json={"content": "hi"}, headers=operator)
    path = f"/v1/turns/{sent.json()['id']}/steps"
    ana = {"Authorization": f"Bearer {made.json()['token']}"}
    assert (await client.get(path, headers=ana)).status_code == 404
    assert (await client.get(path, headers=operator)).status_code == 200


async def test_deleted_session_leaves_no_times(start: Start):
    app, client = await start()
    sent = (await client.post("/message", json={"content": "hi"})).json()
    await client.delete(f"/v1/sessions/{sent['sessionId']}")
    assert (await client.get(f"/v1/turns/{sent['id']}/steps")).status_code == 410
    count = await app.database.run(lambda c: c.exec_driver_sql("SELECT count(*) FROM timings").scalar_one())
    assert count == 0
