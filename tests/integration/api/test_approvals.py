"""Approvals over HTTP: asked, seen, decided, and by whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from pydantic_ai.messages import ToolCallPart

from torana.testing import ScriptedModel

Start = Callable[..., Awaitable[tuple[Any, httpx.AsyncClient]]]

OPERATOR = "operators-own-token-1234"
ASKS = '[{"tool": "calculate", "permission": "ask"}]'


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def calculate(expression: str = "1+1", id_: str = "c1") -> ToolCallPart:
    return ToolCallPart("calculate", {"expression": expression}, tool_call_id=id_)


@pytest.fixture
async def model() -> ScriptedModel:
    return ScriptedModel(["Let me see. ", calculate()], "It is 2.")


@pytest.fixture
async def operator(start: Start, model: ScriptedModel) -> httpx.AsyncClient:
    _, client = await start(model, gateway_token=OPERATOR, permissions=ASKS)
    client.headers.update(bearer(OPERATOR))
    return client


async def waiting(client: httpx.AsyncClient, *, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """A turn that asks whether it may calculate."""
    later = {"Prefer": "respond-async"}
    posted = await client.post("/message", json={"content": "1+1?"}, headers={**(headers or {}), **later})
    path = f"/v1/turns/{posted.json()['id']}"
    while not (turn := (await client.get(path)).json())["approvals"]:
        assert turn["status"] in ("running", "waiting")
    return turn


async def ended(client: httpx.AsyncClient, turn: dict[str, Any]) -> dict[str, Any]:
    await client.get(f"/v1/turns/{turn['id']}/events")  # it ends with the turn
    return (await client.get(f"/v1/turns/{turn['id']}")).json()


async def token(operator: httpx.AsyncClient, **body: Any) -> dict[str, str]:
    return bearer((await operator.post("/v1/tokens", json=body)).json()["token"])


async def test_a_turn_shows_what_it_asks_and_goes_on_when_it_is_approved(operator: httpx.AsyncClient) -> None:
    turn = await waiting(operator)

    assert turn["status"] == "waiting"
    (asked,) = turn["approvals"]
    told = {name: asked[name] for name in ("turnId", "callId", "tool", "arguments", "state", "edited")}
    assert told == {
        "turnId": turn["id"],
        "callId": "c1",
        "tool": "calculate",
        "arguments": {"expression": "1+1"},
        "state": "open",
        "edited": None,
    }
    assert (await operator.get("/v1/approvals")).json() == {"items": [asked], "next": None}
    assert (await operator.get("/v1/status")).json()["turns"] == {"running": 0, "waiting": 1, "queued": 0}

    path = f"/v1/turns/{turn['id']}/approvals/c1"
    first = await operator.post(path, json={"decision": "approve"})

    assert (first.status_code, first.json()["state"]) == (200, "approved")
    assert (await ended(operator, turn))["reply"] == "Let me see. \n\nIt is 2."
    assert (await operator.get("/v1/approvals")).json()["items"] == []
    again = await operator.post(path, json={"decision": "approve"})
    assert (again.status_code, again.json()) == (200, first.json())
    other = await operator.post(path, json={"decision": "deny"})
    assert (other.status_code, other.json()["code"]) == (409, "already_decided")
    (entry,) = [
        entry
        for entry in (await operator.get("/v1/audit")).json()["items"]
        if entry["action"].startswith("approval.")
    ]
    assert (entry["principal"], entry["action"], entry["target"]) == (
        "operator",
        "approval.approve",
        turn["id"],
    )
    assert entry["detail"] == {"callId": "c1", "tool": "calculate", "edited": False}


async def test_the_stream_asks_and_goes_on(operator: httpx.AsyncClient) -> None:
    headers = {"Accept": "text/event-stream"}
    streaming = asyncio.create_task(operator.post("/message", json={"content": "1+1?"}, headers=headers))
    while not (listed := (await operator.get("/v1/approvals")).json()["items"]):
        assert not streaming.done()
    path = f"/v1/turns/{listed[0]['turnId']}/approvals/{listed[0]['callId']}"
    denied = await operator.post(path, json={"decision": "deny", "reason": "use your head"})
    lines = (await streaming).text.splitlines()

    assert denied.json()["reason"] == "use your head"
    seen = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    (told,) = [line for line in lines if line.startswith("data: ") and "expiresAt" in line]
    asked = json.loads(told.removeprefix("data: "))
    assert (asked["callId"], asked["tool"], asked["arguments"]) == ("c1", "calculate", {"expression": "1+1"})
    assert asked["expiresAt"] == listed[0]["expiresAt"]
    assert seen == [
        "turn.accepted",
        "message.delta",
        "tool.started",
        "approval.required",
        "tool.finished",
        "message.delta",
        "turn.completed",
    ]


async def test_other_arguments_are_checked_when_they_are_decided(
    operator: httpx.AsyncClient, model: ScriptedModel
) -> None:
    turn = await waiting(operator)
    path = f"/v1/turns/{turn['id']}/approvals/c1"

    faulty: list[tuple[object, str]] = [
        ({"expression": 5}, "/arguments/expression"),
        ({}, "/arguments/expression"),
        ([], "/arguments"),
        ("x", "/arguments"),
    ]
    for arguments, pointer in faulty:
        refused = await operator.post(path, json={"decision": "approve", "arguments": arguments})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_field")
        assert refused.json()["errors"][0]["pointer"] == pointer
    body = {"decision": "approve", "arguments": {"expression": "20+1"}}
    decided = (await operator.post(path, json=body)).json()

    assert (decided["edited"], decided["arguments"]) == ({"expression": "20+1"}, {"expression": "1+1"})
    await ended(operator, turn)
    assert "21" in str(model.requests[1].messages[-1])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_field"),
        ({"decision": "yes"}, "invalid_field"),
        ({"decision": True}, "invalid_field"),
        ({"decision": "deny", "arguments": {}}, "invalid_field"),
        ({"decision": "deny", "reason": 5}, "invalid_field"),
        ({"decision": "deny", "reason": "x" * 501}, "invalid_field"),
    ],
)
async def test_a_faulty_decision_decides_nothing(
    operator: httpx.AsyncClient, body: dict[str, Any], code: str
) -> None:
    turn = await waiting(operator)

    refused = await operator.post(f"/v1/turns/{turn['id']}/approvals/c1", json=body)

    assert (refused.status_code, refused.json()["code"]) == (400, code)
    assert (await operator.get(f"/v1/turns/{turn['id']}")).json()["status"] == "waiting"


async def test_a_number_that_no_json_holds_decides_nothing(operator: httpx.AsyncClient) -> None:
    turn = await waiting(operator)
    body = b'{"decision": "approve", "arguments": {"expression": 1e999}}'
    headers = {"Content-Type": "application/json"}

    refused = await operator.post(f"/v1/turns/{turn['id']}/approvals/c1", content=body, headers=headers)

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_field")


async def test_an_owner_decides_about_their_own_and_the_operator_about_all(operator: httpx.AsyncClient) -> None:
    alice, bob = [await token(operator, user=user) for user in ("alice", "bob")]
    reader = await token(operator, user="alice", scopes=["read"])
    turn = await waiting(operator, headers=alice)
    path = f"/v1/turns/{turn['id']}/approvals/c1"
    approve = {"decision": "approve"}

    assert (await operator.post(path, json=approve, headers=bob)).json()["code"] == "not_found"
    assert (await operator.post(path, json=approve, headers=reader)).json()["code"] == "scope_missing"
    assert (await operator.get("/v1/approvals", headers=bob)).json()["items"] == []
    assert len((await operator.get("/v1/approvals", headers=reader)).json()["items"]) == 1
    assert len((await operator.get("/v1/approvals")).json()["items"]) == 1

    assert (await operator.post(path, json=approve, headers=alice)).json()["state"] == "approved"
    assert (await ended(operator, turn))["status"] == "completed"


async def test_a_plain_request_waits_and_is_told_where_the_turn_goes_on(operator: httpx.AsyncClient) -> None:
    answer = await operator.post("/message", json={"content": "1+1?"}, headers={"Prefer": "wait=1"})

    assert (answer.status_code, answer.json()["code"]) == (504, "wait_expired")
    turn = (await operator.get(answer.json()["instance"].replace("v1/", "/v1/", 1))).json()
    assert [asked["callId"] for asked in turn["approvals"]] == ["c1"]


async def test_whoever_stands_behind_a_question_is_told_of_it(operator: httpx.AsyncClient) -> None:
    asking = await waiting(operator)
    message = {"content": "and this?", "channelId": asking["channelId"], "userId": asking["userId"]}
    answer = await operator.post("/message", json=message, headers={"Prefer": "wait=1"})
    assert f"a call of {asking['id']} waits for a yes or no" in answer.json()["detail"]


async def test_any_id_that_a_model_chooses_can_be_decided(start: Start) -> None:
    model = ScriptedModel([calculate(id_="a/b?c#d é")], "Done.")
    _, client = await start(model, gateway_token=OPERATOR, permissions=ASKS)
    client.headers.update(bearer(OPERATOR))
    turn = await waiting(client)

    path = f"/v1/turns/{turn['id']}/approvals/a%2Fb%3Fc%23d%20%C3%A9"
    decided = await client.post(path, json={"decision": "approve"})

    assert decided.json()["callId"] == "a/b?c#d é"
    assert (await ended(client, turn))["reply"] == "Done."


async def test_the_tools_are_listed_with_what_holds_and_why(start: Start) -> None:
    rules = [
        {"tool": "calculate", "user": "ana", "permission": "deny"},
        {"tool": "kalculate", "permission": "deny"},
        {"tool": "count_*", "skill": "text-tools", "permission": "ask"},
    ]
    _, client = await start(ScriptedModel(), gateway_token=OPERATOR, permissions=json.dumps(rules))
    client.headers.update(bearer(OPERATOR))

    async def held(tool: str, **query: str) -> tuple[str, str]:
        items = (await client.get("/v1/tools", params=query)).json()["items"]
        (found,) = [item for item in items if item["name"] == tool]
        return found["permission"], found["why"]

    assert await held("calculate") == ("allow", "the tool's default")
    assert await held("calculate", user="ana") == ("deny", "rule 1 of [[permissions]]")
    assert await held("count_text", skill="text-tools") == ("ask", "rule 3 of [[permissions]]")
    assert (await client.get("/v1/tools")).json()["unknown"] == ["kalculate"]
