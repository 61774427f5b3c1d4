"""The tool calls of a turn: arguments, results, outcomes and approvals."""

from __future__ import annotations

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
OPERATOR = "a-token-of-more-than-sixteen-characters"


def calculate(expression: str = "1+1", call_id: str = "c1") -> ToolCallPart:
    return ToolCallPart("calculate", {"expression": expression}, tool_call_id=call_id)


async def calls(client: httpx2.AsyncClient, turn_id: str, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/turns/{turn_id}/calls", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def send(client: httpx2.AsyncClient, **body: Any) -> str:
    """Send a message, and return the id of its turn without waiting for the answer."""
    return (await client.post("/message", json={"content": "hi"} | body, headers=LATER)).json()["id"]


async def until(client: httpx2.AsyncClient, turn_id: str, status: str) -> dict[str, Any]:
    while (turn := (await client.get(f"/v1/turns/{turn_id}")).json())["status"] != status:
        pass
    return turn


async def test_calls_of_an_ended_turn_have_arguments_results_and_times(start: Start):
    model = ScriptedModel(
        ["Let me see. ", calculate(), calculate("1/0", "c2")], [calculate("3*3", "c3")], "Done."
    )
    _, client = await start(model)
    turn_id = (await client.post("/message", json={"content": "1+1?"})).json()["id"]

    found = await calls(client, turn_id)
    assert [(one["id"], one["tool"], one["state"], one["arguments"]) for one in found] == [
        ("c1", "calculate", "completed", {"expression": "1+1"}),
        ("c2", "calculate", "failed", {"expression": "1/0"}),
        ("c3", "calculate", "completed", {"expression": "3*3"}),
    ]
    assert (found[0]["result"], found[2]["result"]) == ("1+1 = 2", "3*3 = 9")
    assert "zero" in found[1]["result"]
    assert {(one["approval"], one["hidden"]) for one in found} == {(None, False)}
    assert all(
        datetime.fromisoformat(one["startedAt"]) <= datetime.fromisoformat(one["endedAt"]) for one in found
    )

    first = (await client.get(f"/v1/turns/{turn_id}/calls", params={"limit": 2})).json()
    assert [*first["items"], *await calls(client, turn_id, limit=2, after=first["next"])] == found


async def test_call_of_a_running_turn_has_its_approval_and_its_result(start: Start):
    gate = asyncio.Event()
    model = ScriptedModel([calculate()], [gate, "It is 5."])
    _, client = await start(model, permissions=ASKS)
    turn_id = await send(client)

    approval = (await until(client, turn_id, "waiting"))["approvals"][0]
    (waiting,) = await calls(client, turn_id)
    assert (waiting["state"], waiting["result"], waiting["startedAt"]) == ("waiting", None, None)
    assert waiting["approval"] == approval
    assert (approval["decidedBy"], approval["decidedAt"]) == (None, None)

    decision = {"decision": "approve", "digest": approval["digest"], "arguments": {"expression": "2+3"}}
    await client.post(f"/v1/approvals/{approval['id']}", json=decision)
    await model.asked(2)
    (ended,) = await calls(client, turn_id)
    assert (ended["state"], ended["result"]) == ("completed", "2+3 = 5")
    assert ended["arguments"] == {"expression": "1+1"}
    decided = ended["approval"]
    assert (decided["state"], decided["edited"], decided["decidedBy"]) == (
        "approved",
        {"expression": "2+3"},
        "local",
    )
    assert decided["decidedAt"] <= ended["startedAt"] <= ended["endedAt"]
    gate.set()
    await until(client, turn_id, "completed")
    assert await calls(client, turn_id) == [ended]


async def test_arguments_are_exact_as_text(start: Start):
    options = {"low": 2**53 + 1, "high": 2**53 + 1}
    asks = '[{"tool": "pick_random", "permission": "ask"}]'
    model = ScriptedModel([ToolCallPart("pick_random", options, tool_call_id="c1")], "Done.")
    _, client = await start(model, permissions=asks)
    turn_id = await send(client)

    shown = '{\n "low": 9007199254740993,\n "high": 9007199254740993\n}'
    approval = (await until(client, turn_id, "waiting"))["approvals"][0]
    assert approval["argumentsText"] == shown
    assert (await client.get("/v1/approvals")).json()["items"][0]["argumentsText"] == shown

    changed = {"low": 2**60 + 1, "high": 2**60 + 1}
    decision = {"decision": "approve", "digest": approval["digest"], "arguments": changed}
    decided = (await client.post(f"/v1/approvals/{approval['id']}", json=decision)).json()
    assert decided["argumentsText"] == shown.replace("9007199254740993", "1152921504606846977")
    await until(client, turn_id, "completed")
    (call,) = await calls(client, turn_id)
    assert (call["argumentsText"], call["approval"]) == (shown, decided)


async def test_denied_call_has_failed_and_its_approval_says_why(start: Start):
    _, client = await start(ScriptedModel([calculate()], "No."), permissions=ASKS)
    turn_id = await send(client)
    approval = (await until(client, turn_id, "waiting"))["approvals"][0]
    await client.post(f"/v1/approvals/{approval['id']}", json={"decision": "deny", "reason": "too hard"})
    await until(client, turn_id, "completed")

    (denied,) = await calls(client, turn_id)
    assert (denied["state"], denied["startedAt"]) == ("failed", None)
    assert (denied["approval"]["state"], denied["approval"]["reason"]) == ("denied", "too hard")
    assert "too hard" in denied["result"]


async def test_failed_turn_keeps_its_calls_and_a_cancelled_one_keeps_their_outcomes(start: Start):
    model = ScriptedModel([calculate()], [ModelFailed("down")], [calculate()], [asyncio.Event(), "never"])
    _, client = await start(model)
    failed = await send(client)
    await until(client, failed, "failed")
    assert [(one["arguments"], one["result"]) for one in await calls(client, failed)] == [
        ({"expression": "1+1"}, "1+1 = 2")
    ]

    cancelled = await send(client)
    await model.asked(4)
    await client.post(f"/v1/turns/{cancelled}/cancel")
    (call,) = await calls(client, cancelled)
    assert (call["tool"], call["state"]) == ("calculate", "completed")
    assert (call["arguments"], call["result"], call["hidden"]) == (None, None, False)


async def test_withdrawn_call_of_a_cancelled_turn_is_interrupted(start: Start):
    _, client = await start(ScriptedModel([calculate()], "never"), permissions=ASKS)
    turn_id = await send(client)
    await until(client, turn_id, "waiting")
    await client.post(f"/v1/turns/{turn_id}/cancel")
    (call,) = await calls(client, turn_id)
    assert (call["state"], call["arguments"]) == ("interrupted", {"expression": "1+1"})
    assert call["approval"]["state"] == "withdrawn"


async def test_private_data_is_hidden_once_a_second_user_has_joined(start: Start):
    remember = ToolCallPart("remember", {"text": "My cat is grey."}, tool_call_id="c1")
    _, client = await start(ScriptedModel([remember], "Noted.", "Hello."))
    anas = {"content": "hi", "channelId": "room", "userId": "ana"}
    turn_id = (await client.post("/message", json=anas)).json()["id"]
    (alone,) = await calls(client, turn_id)
    assert alone["arguments"] == {"text": "My cat is grey."}

    await client.post("/message", json=anas | {"userId": "ben"})
    (shared,) = await calls(client, turn_id)
    assert shared == alone | {"arguments": None, "argumentsText": None, "result": None, "hidden": True}


async def test_calls_are_readable_by_the_user_of_the_turn_and_the_operator(start: Start):
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    _, client = await start(ScriptedModel([calculate()], "It is 2."), gateway_token=OPERATOR)

    async def token(user: str) -> dict[str, str]:
        made = await client.post("/v1/tokens", json={"user": user, "scopes": ["message"]}, headers=operator)
        return {"Authorization": f"Bearer {made.json()['token']}"}

    ana, ben = await token("ana"), await token("ben")
    turn_id = (await client.post("/message", json={"content": "hi"}, headers=ana)).json()["id"]
    path = f"/v1/turns/{turn_id}/calls"
    answers = [await client.get(path, headers=headers) for headers in (ana, operator, ben)]
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert answers[0].json() == answers[1].json()


async def test_arguments_of_an_approval_are_hidden_like_those_of_its_call(start: Start):
    remember = ToolCallPart("remember", {"text": "My cat is grey."}, tool_call_id="c1")
    asks = '[{"tool": "remember", "permission": "ask"}]'
    _, client = await start(ScriptedModel("Hello.", [remember], "Noted."), permissions=asks)
    anas = {"content": "hi", "channelId": "room", "userId": "ana"}
    await client.post("/message", json=anas | {"userId": "ben"})
    turn_id = (await client.post("/message", json=anas, headers={"Prefer": "respond-async"})).json()["id"]

    approval = (await until(client, turn_id, "waiting"))["approvals"][0]
    path = f"/v1/approvals/{approval['id']}"
    assert approval["arguments"] == {"text": "My cat is grey."}  # the approver decides by them
    assert (await client.get(path)).json() == approval

    body = {"decision": "approve", "digest": approval["digest"], "arguments": {"text": "My cat is red."}}
    decided = (await client.post(path, json=body)).json()
    await until(client, turn_id, "completed")
    names = ("digest", "arguments", "argumentsText", "edited", "hidden")
    assert [decided[name] for name in names] == [None, None, None, None, True]
    assert (await client.get(path)).json() == decided
    (call,) = await calls(client, turn_id)
    assert (call["arguments"], call["approval"]) == (None, decided)
    events = (await client.get(f"/v1/turns/{turn_id}/events")).text
    assert "approval.required" in events
    assert "cat is" not in events
