"""Approvals over HTTP: questions, decisions, and the principals that may decide."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import ToolCallPart

from torana.messages import EVERYONE, GATEWAY_OWNER, SCHEDULE_PRINCIPAL, Inbound
from torana.store.rows.approval_questions import call_digest, question_text
from torana.testing import ScriptedModel

Start = Callable[..., Awaitable[tuple[Any, httpx2.AsyncClient]]]

OPERATOR = "operators-own-token-1234"
ASKS = '[{"tool": "calculate", "permission": "ask"}]'


def no_more(_connection: object, _turn: object) -> None:
    """Store nothing else with a reminder."""


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def calculate(expression: str = "1+1", id_: str = "c1") -> ToolCallPart:
    return ToolCallPart("calculate", {"expression": expression}, tool_call_id=id_)


@pytest.fixture
async def model() -> ScriptedModel:
    return ScriptedModel(["Let me see. ", calculate()], "It is 2.")


@pytest.fixture
async def operator(start: Start, model: ScriptedModel) -> httpx2.AsyncClient:
    _, client = await start(model, gateway_token=OPERATOR, permissions=ASKS)
    client.headers.update(bearer(OPERATOR))
    return client


async def waiting(client: httpx2.AsyncClient, *, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Start a turn that asks whether it may calculate."""
    later = {"Prefer": "respond-async"}
    posted = await client.post("/message", json={"content": "1+1?"}, headers={**(headers or {}), **later})
    path = f"/v1/turns/{posted.json()['id']}"
    while not (turn := (await client.get(path)).json())["approvals"]:
        assert turn["status"] in ("running", "waiting")
    return turn


async def ended(client: httpx2.AsyncClient, turn: dict[str, Any]) -> dict[str, Any]:
    await client.get(f"/v1/turns/{turn['id']}/events")  # it ends with the turn
    return (await client.get(f"/v1/turns/{turn['id']}")).json()


async def token(operator: httpx2.AsyncClient, **body: Any) -> dict[str, str]:
    return bearer((await operator.post("/v1/tokens", json=body)).json()["token"])


async def test_turn_lists_open_approval_and_continues_when_approved(operator: httpx2.AsyncClient) -> None:
    turn = await waiting(operator)

    assert turn["status"] == "waiting"
    (asked,) = turn["approvals"]
    told = {name: asked[name] for name in ("turnId", "callId", "tool", "arguments", "state", "edited")}
    assert asked["id"].startswith("apr_")
    assert asked["digest"] == call_digest("calculate", {"expression": "1+1"})
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


async def test_event_stream_carries_approval_and_continues_after_decision(operator: httpx2.AsyncClient) -> None:
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
    assert {name: listed[0][name] for name in asked} == asked
    assert {"id", "digest", "argumentsText", "expiresAt"} < set(asked)
    assert seen == [
        "turn.accepted",
        "message.delta",
        "tool.started",
        "approval.required",
        "tool.finished",
        "message.delta",
        "turn.completed",
    ]


async def test_edited_arguments_are_validated_at_decision(
    operator: httpx2.AsyncClient, model: ScriptedModel
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
async def test_invalid_decision_leaves_approval_open(
    operator: httpx2.AsyncClient, body: dict[str, Any], code: str
) -> None:
    turn = await waiting(operator)

    refused = await operator.post(f"/v1/turns/{turn['id']}/approvals/c1", json=body)

    assert (refused.status_code, refused.json()["code"]) == (400, code)
    assert (await operator.get(f"/v1/turns/{turn['id']}")).json()["status"] == "waiting"


async def test_non_json_number_in_decision_leaves_approval_open(operator: httpx2.AsyncClient) -> None:
    turn = await waiting(operator)
    body = b'{"decision": "approve", "arguments": {"expression": 1e999}}'
    headers = {"Content-Type": "application/json"}

    refused = await operator.post(f"/v1/turns/{turn['id']}/approvals/c1", content=body, headers=headers)

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_field")


async def test_owner_decides_own_approvals_and_operator_decides_all(
    operator: httpx2.AsyncClient,
) -> None:
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


async def test_plain_request_times_out_with_path_of_waiting_turn(operator: httpx2.AsyncClient) -> None:
    answer = await operator.post("/message", json={"content": "1+1?"}, headers={"Prefer": "wait=1"})

    assert (answer.status_code, answer.json()["code"]) == (504, "wait_expired")
    turn = (await operator.get(answer.json()["instance"].replace("v1/", "/v1/", 1))).json()
    assert [asked["callId"] for asked in turn["approvals"]] == ["c1"]


async def test_message_behind_open_approval_times_out_with_reason(operator: httpx2.AsyncClient) -> None:
    asking = await waiting(operator)
    message = {"content": "and this?", "channelId": asking["channelId"], "userId": asking["userId"]}
    answer = await operator.post("/message", json=message, headers={"Prefer": "wait=1"})
    assert f"a call of {asking['id']} waits for approval" in answer.json()["detail"]


@pytest.mark.parametrize("id_", ["a/b?c#d é", "call\n0", "..", "x" * 65])
async def test_any_call_id_from_model_can_be_decided(start: Start, id_: str) -> None:
    model = ScriptedModel([calculate(id_=id_)], "Done.")
    _, client = await start(model, gateway_token=OPERATOR, permissions=ASKS)
    client.headers.update(bearer(OPERATOR))
    turn = await waiting(client)
    (asked,) = turn["approvals"]

    decided = await client.post(
        f"/v1/turns/{turn['id']}/approvals/{asked['callId']}", json={"decision": "approve"}
    )

    assert decided.json()["callId"] == asked["callId"]
    assert asked["callId"].isalnum()
    assert (await ended(client, turn))["reply"] == "Done."


async def test_approval_is_decided_by_its_id_and_digest(operator: httpx2.AsyncClient) -> None:
    turn = await waiting(operator)
    (asked,) = turn["approvals"]
    path = f"/v1/approvals/{asked['id']}"
    approve = {"decision": "approve", "digest": asked["digest"]}
    other = {**approve, "digest": call_digest("calculate", {"expression": "2+2"})}

    assert (await operator.get(path)).json() == asked
    for place, body, status, code, pointer in (
        (path, {"decision": "approve"}, 400, "invalid_field", "/digest"),
        (path, {"decision": "approve", "digest": 5}, 400, "invalid_field", "/digest"),
        (path, other, 409, "approval_changed", None),
        (path, {**other, "decision": "deny"}, 409, "approval_changed", None),
        (f"/v1/turns/{turn['id']}/approvals/c1", other, 409, "approval_changed", None),
        ("/v1/approvals/apr_1", approve, 404, "not_found", None),
    ):
        refused = (await operator.post(place, json=body)).json()
        assert (refused["status"], refused["code"]) == (status, code)
        assert [fault["pointer"] for fault in refused.get("errors", [])] == ([pointer] if pointer else [])
    assert (await operator.get(path)).json()["state"] == "open"

    first = await operator.post(path, json=approve)

    assert (first.status_code, first.json()["state"]) == (200, "approved")
    assert (await ended(operator, turn))["status"] == "completed"
    assert (await operator.post(path, json=approve)).json() == first.json()
    assert (await operator.post(path, json={"decision": "deny"})).json()["code"] == "already_decided"
    assert (await operator.get(path)).json() == first.json()


async def test_denial_by_approval_id_needs_no_digest(operator: httpx2.AsyncClient) -> None:
    turn = await waiting(operator)

    path = f"/v1/approvals/{turn['approvals'][0]['id']}"
    denied = await operator.post(path, json={"decision": "deny", "reason": "no"})

    assert (denied.json()["state"], denied.json()["reason"]) == ("denied", "no")


async def test_approval_of_another_owner_is_unknown(operator: httpx2.AsyncClient) -> None:
    alice, bob = [await token(operator, user=user) for user in ("alice", "bob")]
    (asked,) = (await waiting(operator, headers=alice))["approvals"]
    path = f"/v1/approvals/{asked['id']}"
    approve = {"decision": "approve", "digest": asked["digest"]}

    assert (await operator.get(path, headers=bob)).status_code == 404
    assert (await operator.post(path, json=approve, headers=bob)).status_code == 404
    assert (await operator.post(path, json=approve, headers=alice)).json()["state"] == "approved"


async def test_word_answers_approval_from_event_stream(start: Start, model: ScriptedModel) -> None:
    app, client = await start(model, permissions=ASKS)
    said = {"channelId": "desk", "userId": "ana"}
    headers = {"Accept": "text/event-stream"}
    streaming = asyncio.create_task(client.post("/message", json=said | {"content": "1+1?"}, headers=headers))
    while not (listed := (await client.get("/v1/approvals")).json()["items"]):
        assert not streaming.done()
    while not (await app.turns.approvals.get(EVERYONE, listed[0]["id"])).streamed:
        assert not streaming.done()

    word = (await client.post("/message", json=said | {"content": "yes"})).json()["reply"]

    assert word == "Let me see. \n\nIt is 2."
    assert "It is 2." in (await streaming).text


def _posted(client: httpx2.AsyncClient, content: str, *, channel: str = "desk", **headers: str) -> Any:
    return client.post(
        "/message", json={"content": content, "channelId": channel, "userId": "ana"}, headers=headers
    )


async def test_plain_request_returns_question_and_yes_returns_reply(operator: httpx2.AsyncClient) -> None:
    asked = (await _posted(operator, "1+1?")).json()

    assert asked["status"] == "waiting"
    assert asked["reply"].startswith("Let me see.\n\nMay I run `calculate` with this?")
    approval = asked["approval"]
    assert approval["expiresAt"][:16].replace("T", " ") in asked["reply"]
    turn = (await operator.get(f"/v1/turns/{asked['id']}")).json()
    assert turn["approvals"] == [{name: approval[name] for name in approval if name != "url"}]
    assert (await operator.get(f"/{approval['url']}")).json() == turn["approvals"][0]

    answered = await _posted(operator, "yes")

    assert answered.status_code == 200
    body = answered.json()
    assert (body["id"], body["status"], "approval" in body) == (asked["id"], "completed", False)
    assert body["reply"] == "Let me see. \n\nIt is 2."


async def test_no_to_question_in_response_returns_reply_without_the_call(
    operator: httpx2.AsyncClient, model: ScriptedModel
) -> None:
    await _posted(operator, "1+1?")

    assert (await _posted(operator, "no")).json()["reply"] == "Let me see. \n\nIt is 2."
    assert "was denied" in str(model.requests[1].messages[-1])


async def test_url_of_response_decides_the_approval(operator: httpx2.AsyncClient) -> None:
    asked = (await _posted(operator, "1+1?")).json()
    approval = asked["approval"]

    body = {"decision": "approve", "digest": approval["digest"]}
    assert (await operator.post(f"/{approval['url']}", json=body)).json()["state"] == "approved"
    assert (await ended(operator, asked))["status"] == "completed"


async def test_yes_returns_the_next_question_of_the_turn(start: Start) -> None:
    model = ScriptedModel([calculate("1+1", "c1")], [calculate("2+2", "c2")], "2 and 4.")
    _, client = await start(model, permissions=ASKS)

    first = (await _posted(client, "both?")).json()
    second = (await _posted(client, "yes")).json()
    last = (await _posted(client, "yes")).json()

    assert [first["status"], second["status"], last["status"]] == ["waiting", "waiting", "completed"]
    assert (first["approval"]["arguments"], second["approval"]["arguments"]) == (
        {"expression": "1+1"},
        {"expression": "2+2"},
    )
    assert (last["id"], last["reply"]) == (first["id"], "2 and 4.")


async def test_parallel_calls_are_asked_one_after_another(start: Start) -> None:
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")], "2, but not 4.")
    _, client = await start(model, permissions=ASKS)

    first = (await _posted(client, "both?")).json()
    second = (await _posted(client, "yes")).json()
    last = (await _posted(client, "no")).json()

    assert {first["approval"]["callId"], second["approval"]["callId"]} == {"c1", "c2"}
    assert (second["status"], last["status"], last["reply"]) == ("waiting", "completed", "2, but not 4.")
    states = [(await client.get(f"/{one['approval']['url']}")).json()["state"] for one in (first, second)]
    assert states == ["approved", "denied"]


async def test_repeated_requests_return_the_stored_responses(operator: httpx2.AsyncClient) -> None:
    asked = await _posted(operator, "1+1?", **{"Idempotency-Key": "ask"})
    again = await _posted(operator, "1+1?", **{"Idempotency-Key": "ask"})
    answered = await _posted(operator, "yes", **{"Idempotency-Key": "yes"})
    repeated = await _posted(operator, "yes", **{"Idempotency-Key": "yes"})

    assert asked.json() == again.json()
    assert answered.json() == repeated.json()
    assert answered.json()["reply"] == "Let me see. \n\nIt is 2."
    assert again.headers["Idempotency-Replayed"] == repeated.headers["Idempotency-Replayed"] == "true"


async def test_yes_of_another_channel_or_user_decides_nothing(start: Start) -> None:
    model = ScriptedModel(["Let me see. ", calculate()], "Yes what?", "Yes what?", "It is 2.")
    _, client = await start(model, permissions=ASKS)
    asked = (await _posted(client, "1+1?")).json()

    elsewhere = (await _posted(client, "yes", channel="kitchen")).json()
    other = {"content": "yes", "channelId": "desk", "userId": "bob"}
    later = await client.post("/message", json=other, headers={"Prefer": "respond-async"})

    assert elsewhere["reply"] == "Yes what?"
    assert later.json()["status"] == "queued"
    assert (await client.get(f"/{asked['approval']['url']}")).json()["state"] == "open"


@pytest.mark.parametrize("word", ["/status", "/new", "/help"])
async def test_yes_after_a_control_word_repeats_the_question(start: Start, word: str) -> None:
    _, client = await start(ScriptedModel(["Let me see. ", calculate()], "It is 2."), permissions=ASKS)
    await _posted(client, "1+1?")
    await _posted(client, word)

    again = (await _posted(client, "yes")).json()["reply"]

    assert again.startswith("That does not count as an answer")
    assert "May I run `calculate` with this?" in again
    assert (await _posted(client, "yes")).json()["reply"] == "Let me see. \n\nIt is 2."


async def test_yes_after_a_message_that_waits_repeats_the_question(start: Start) -> None:
    _, client = await start(ScriptedModel([calculate()], "It is 2.", "As you like."), permissions=ASKS)
    asked = (await _posted(client, "1+1?")).json()
    await _posted(client, "No thanks, do not do that", Prefer="respond-async")

    again = (await _posted(client, "ok")).json()["reply"]

    assert again.startswith("That does not count as an answer")
    assert (await client.get(f"/{asked['approval']['url']}")).json()["state"] == "open"
    assert (await _posted(client, "ok")).json()["reply"] == "It is 2."


@pytest.mark.parametrize(("imitated", "user"), [("1+1", "ana"), ("2+2", "ana"), ("1+1", "ben"), ("2+2", None)])
async def test_yes_after_a_reminder_decides_no_call_that_no_response_has_shown(
    start: Start, imitated: str, user: str | None
) -> None:
    """The text of a reminder, or of the agent, may imitate a question."""
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")], "Done.")
    app, client = await start(model, permissions=ASKS)
    asked = (await _posted(client, "both?")).json()
    shown = (await client.get(f"/{asked['approval']['url']}")).json()
    text = f"Reminder: x\n\n{question_text('calculate', {'expression': imitated})}"
    reminder = Inbound(
        owner=GATEWAY_OWNER,
        principal=f"{SCHEDULE_PRINCIPAL}sch_1",
        content="A reminder is due: x",
        channel="desk",
        user=user,
    )
    await app.turns.store_answered(reminder, text, also=no_more)

    again = (await _posted(client, "yes")).json()["reply"]

    assert again.startswith("That does not count as an answer")
    assert shown["arguments"]["expression"] in again
    assert len((await client.get("/v1/approvals")).json()["items"]) == 2
    await _posted(client, "yes")
    assert (await client.get(f"/{asked['approval']['url']}")).json()["state"] == "approved"
    assert len((await client.get("/v1/approvals")).json()["items"]) == 1


async def test_yes_of_a_client_that_decides_by_id_approves_nothing(start: Start, model: ScriptedModel) -> None:
    _, client = await start(model, permissions=ASKS)
    asked = (await _posted(client, "1+1?")).json()

    answered = (await _posted(client, "yes", Prefer="decide-by-id")).json()

    assert answered["reply"] == "The question is still open. Answer it where it is shown, not with a message."
    assert (await client.get(f"/{asked['approval']['url']}")).json()["state"] == "open"
    await _posted(client, "no", Prefer="decide-by-id")
    assert (await client.get(f"/{asked['approval']['url']}")).json()["state"] == "denied"


async def test_question_survives_restart_and_yes_returns_reply(start: Start, model: ScriptedModel) -> None:
    app, client = await start(model, permissions=ASKS)
    asked = (await _posted(client, "1+1?")).json()
    await app.close()
    _, client = await start(model, permissions=ASKS)

    answered = (await _posted(client, "yes", **{"Idempotency-Key": "yes"})).json()

    assert (answered["id"], answered["reply"]) == (asked["id"], "Let me see. \n\nIt is 2.")


async def test_log_names_the_command_that_decides(
    operator: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "torana")
    asked = (await _posted(operator, "1+1?")).json()

    (record,) = [record for record in caplog.records if record.msg == "approval_required"]
    assert vars(record)["decide"] == f"torana approvals approve {asked['approval']['id']}"


async def test_tools_are_listed_with_permission_and_its_source(start: Start) -> None:
    rules = [
        {"tool": "calculate", "user": "ana", "permission": "deny"},
        {"tool": "kalculate", "permission": "deny"},
        {"tool": "count_*", "skill": "text-tools", "permission": "ask"},
    ]
    _, client = await start(ScriptedModel(), gateway_token=OPERATOR, permissions=json.dumps(rules))
    client.headers.update(bearer(OPERATOR))

    async def permission_of(tool: str, **query: str) -> tuple[str, str]:
        items = (await client.get("/v1/tools", params=query)).json()["items"]
        (found,) = [item for item in items if item["name"] == tool]
        return found["permission"], found["why"]

    assert await permission_of("calculate") == ("allow", "the tool's default")
    assert await permission_of("calculate", user="ana") == ("deny", "rule 1 of [[permissions]]")
    assert await permission_of("count_text", skill="text-tools") == ("ask", "rule 3 of [[permissions]]")
    assert (await client.get("/v1/tools")).json()["unknown"] == ["kalculate"]
