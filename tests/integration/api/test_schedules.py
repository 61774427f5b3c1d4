"""Reminders and scheduled tasks over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from torana.app import App
from torana.store.engine.tables import schedules
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

TOKEN = "operators-token"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


async def bearer(client: httpx2.AsyncClient, **body: Any) -> dict[str, str]:
    """Create a token, and return its header."""
    made = await client.post("/v1/tokens", json=body, headers=OPERATOR)
    return {"Authorization": f"Bearer {made.json()['token']}"}


async def make_due(app: App, client: httpx2.AsyncClient) -> None:
    """Make all waiting schedules due; a new schedule wakes the ticker."""
    past = {"due_at": schedules.c.created_at, "try_at": schedules.c.created_at}
    await app.database.run(
        lambda c: c.execute(sa.update(schedules).where(schedules.c.state == "active").values(past)).rowcount
    )
    await client.post("/v1/schedules", json={"text": "later", "at": "in 2 hours"})


async def eventually(client: httpx2.AsyncClient, path: str, **wanted: Any) -> dict[str, Any]:
    """Return the resource as soon as it has these values."""
    async with asyncio.timeout(10):
        while True:
            body = (await client.get(path)).json()
            if wanted.items() <= body.items():
                return body


async def test_schedule_is_created_listed_paused_resumed_and_deleted(client: httpx2.AsyncClient) -> None:
    body = {
        "text": " call Ana ",
        "rule": "every weekday at 17:00",
        "timezone": "Europe/Berlin",
        "userId": "ana",
    }
    answer = await client.post("/v1/schedules", json=body | {"channelId": "home", "missed": "skip"})
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"schedules/{made['id']}")
    assert (made["text"], made["rule"], made["kind"]) == ("call Ana", "0 17 * * MON-FRI", "remind")
    assert (made["state"], made["missed"], made["userId"], made["channelId"]) == (
        "active",
        "skip",
        "ana",
        "home",
    )

    place = f"/v1/schedules/{made['id']}"
    assert (await client.get(place)).json() == made
    assert (await client.get("/v1/schedules")).json() == {"items": [made], "next": None}
    assert (await client.get("/v1/schedules", params={"userId": "ben"})).json()["items"] == []
    assert (await client.post(f"{place}/pause")).json()["state"] == "paused"
    assert (await client.post(f"{place}/pause")).json()["state"] == "paused"
    assert (await client.get("/v1/schedules", params={"state": "active"})).json()["items"] == []
    assert (await client.post(f"{place}/resume")).json() == made
    assert (await client.delete(place)).json() == made
    assert (await client.get(place)).status_code == 404
    assert (await client.delete(place)).json()["code"] == "not_found"


async def test_schedules_are_listed_in_pages(client: httpx2.AsyncClient) -> None:
    ids = [
        (await client.post("/v1/schedules", json={"text": f"{n}", "at": "in 2 hours"})).json()["id"]
        for n in range(5)
    ]
    seen: list[str] = []
    after = ""
    for _ in range(3):
        page = (await client.get("/v1/schedules", params={"limit": "2", "after": after})).json()
        seen += [item["id"] for item in page["items"]]
        after = page["next"]
    assert (seen, after) == (ids[::-1], None)


async def test_reminder_appears_in_session_and_task_is_answered(start: Start) -> None:
    app, client = await start(ScriptedModel("sunny"))
    for text, kind in (("call Ana", "remind"), ("the weather?", "task")):
        body = {"text": text, "kind": kind, "at": "in 2 hours", "channelId": kind}
        made = (await client.post("/v1/schedules", json=body)).json()
        await make_due(app, client)
        ended = await eventually(client, f"/v1/schedules/{made['id']}", state="ended")
        turn = await eventually(client, f"/v1/turns/{ended['turnId']}", status="completed")
        said = "Reminder: call Ana" if kind == "remind" else "sunny"
        assert (turn["reply"], turn["channelId"]) == (said, kind)
        messages = (await client.get(f"/v1/sessions/{turn['sessionId']}/messages")).json()["items"]
        assert messages[-1]["content"] == said
        events = (await client.get(f"/v1/turns/{turn['id']}/events")).text
        assert "turn.completed" in events
        assert (await client.post(f"/v1/schedules/{made['id']}/resume")).json()["code"] == "schedule_ended"


async def test_rule_runs_now_and_continues_with_its_next_time(start: Start) -> None:
    _, client = await start()
    body = {"text": "call Ana", "rule": "every day at 9", "channelId": "home"}
    made = (await client.post("/v1/schedules", json=body)).json()
    path = f"/v1/schedules/{made['id']}"
    assert (await client.post(f"{path}/run")).status_code == 200

    ran = await eventually(client, path, dueAt=made["dueAt"])
    turn = await eventually(client, f"/v1/turns/{ran['turnId']}", status="completed")
    assert (turn["reply"], ran["state"]) == ("Reminder: call Ana", "active")


async def test_paused_schedule_does_not_run_now(start: Start) -> None:
    _, client = await start()
    made = (await client.post("/v1/schedules", json={"text": "call Ana", "at": "tomorrow at 9"})).json()
    path = f"/v1/schedules/{made['id']}"
    await client.post(f"{path}/pause")

    assert (await client.post(f"{path}/run")).json()["code"] == "schedule_paused"
    await client.post(f"{path}/resume")
    await client.post(f"{path}/run")
    await eventually(client, path, state="ended")
    assert (await client.post(f"{path}/run")).json()["code"] == "schedule_ended"


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ({}, "invalid_field", ""),
        ({"text": 1, "at": "tomorrow at 9"}, "invalid_field", ""),
        ({"text": "x", "at": 5}, "invalid_field", ""),
        ({"text": "x", "kind": "shout", "at": "tomorrow"}, "invalid_field", ""),
        ({"text": "x", "missed": "later", "rule": "hourly"}, "invalid_field", ""),
        ({"text": "x"}, "schedule_invalid", "either `at`, for one time, or `rule`"),
        (
            {"text": "x", "at": "tomorrow", "rule": "hourly"},
            "schedule_invalid",
            "either `at`, for one time, or `rule`",
        ),
        ({"text": "   ", "at": "tomorrow"}, "schedule_invalid", "1 to 2,000 characters"),
        ({"text": "x" * 2001, "at": "tomorrow"}, "schedule_invalid", "1 to 2,000 characters"),
        ({"text": "/stop", "at": "tomorrow"}, "schedule_invalid", "a command to the gateway"),
        ({"text": "x", "at": "2020-01-01 09:00"}, "schedule_invalid", "is in the past"),
        ({"text": "x", "at": "2222-01-01 09:00"}, "schedule_invalid", "more than 10 years ahead"),
        ({"text": "x", "at": "when pigs fly"}, "schedule_invalid", "is not a date"),
        ({"text": "x", "at": "tomorrow", "timezone": "Mars/Olympus"}, "schedule_invalid", "no time zone"),
        ({"text": "x", "rule": "0 9 30 2 *"}, "schedule_invalid", "never due"),
        ({"text": "x", "rule": "* * * * *"}, "schedule_invalid", "every 5 minutes"),
        ({"text": "x", "rule": "0,2 9 * * *"}, "schedule_invalid", "every 5 minutes"),
        (
            {"text": "x", "rule": "59 23,0 * * *", "timezone": "../etc/passwd"},
            "schedule_invalid",
            "no time zone",
        ),
        ({"text": "x", "rule": "every other day"}, "schedule_invalid", "is not a rule"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_invalid_schedule_is_refused_with_a_reason(
    shared_client: httpx2.AsyncClient, body: dict[str, Any], code: str, told: str
) -> None:
    answer = await shared_client.post("/v1/schedules", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert told in answer.json()["detail"]
    assert (await shared_client.get("/v1/schedules")).json()["items"] == []


async def test_schedule_limit_applies_per_user(start: Start) -> None:
    _, client = await start(schedules_per_user=2)
    body = {"text": "x", "at": "in 2 hours"}
    for user in ("ana", "ben", None):
        codes = [
            (await client.post("/v1/schedules", json=body | {"userId": user})).status_code for _ in range(3)
        ]
        assert codes == [201, 201, 409]
    first = (await client.get("/v1/schedules", params={"userId": "ana"})).json()["items"][0]["id"]
    await client.delete(f"/v1/schedules/{first}")
    assert (await client.post("/v1/schedules", json=body | {"userId": "ana"})).status_code == 201


async def test_user_sees_own_schedules_and_operator_access_is_audited(start: Start) -> None:
    _, client = await start(gateway_token=TOKEN)
    ana, ben = [await bearer(client, user=user, scopes=["message", "read"]) for user in ("ana", "ben")]
    body = {"text": "ana's", "rule": "every day at 9"}
    made = (await client.post("/v1/schedules", json=body, headers=ana)).json()
    assert made["userId"] == "ana"
    await client.post("/v1/schedules", json=body | {"userId": "ana"}, headers=OPERATOR)

    place = f"/v1/schedules/{made['id']}"
    for method, path in (("GET", place), ("DELETE", place), ("POST", f"{place}/pause")):
        assert (await client.request(method, path, headers=ben)).status_code == 404
    listed = [
        len((await client.get("/v1/schedules", headers=headers)).json()["items"])
        for headers in (ana, ben, OPERATOR)
    ]
    assert listed == [1, 0, 2]
    assert (await client.post("/v1/schedules", json=body | {"userId": "ben"}, headers=ana)).status_code == 403
    for path in (f"{place}/pause", f"{place}/resume"):
        assert (await client.post(path, headers=OPERATOR)).status_code == 200
    assert (await client.delete(place, headers=OPERATOR)).status_code == 200
    acts = (await client.get("/v1/audit", headers=OPERATOR)).json()["items"]
    told = [(entry["action"], entry["target"]) for entry in acts if entry["action"].startswith("schedule")]
    assert told == [(f"schedule.{act}", made["id"]) for act in ("remove", "resume", "pause")]


async def test_new_schedules_and_runs_count_as_messages(start: Start) -> None:
    _, client = await start(rate_global=2)
    wanted = {"text": "later", "at": "in 2 hours"}
    made = await client.post("/v1/schedules", json=wanted)
    assert made.status_code == 201
    run = f"/v1/schedules/{made.json()['id']}/run"
    assert (await client.post(run)).status_code == 200

    for answer in [await client.post("/v1/schedules", json=wanted), await client.post(run)]:
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert len((await client.get("/v1/schedules")).json()["items"]) == 1
