"""The forms of an answer: a stream of events, a late answer, and an error."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import httpx2
import pytest
from pydantic_ai.messages import ToolCallPart
from starlette.exceptions import HTTPException

from torana.api.application import ApiAccess, create_api
from torana.app import App
from torana.errors import ModelFailed
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

EVENTS = {"Accept": "text/event-stream"}
Event = tuple[str, str, dict[str, Any]]


def events_of(answer: httpx2.Response) -> list[Event]:
    """Return the events of a whole stream: type, id and data."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    events: list[Event] = []
    for frame in answer.text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        events.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return events


async def until(happened: Callable[[], object]) -> None:
    """Run other tasks until the condition holds; the test's own time limit ends the wait otherwise."""
    while not happened():  # noqa: ASYNC110 - the script has no event for having been asked
        await asyncio.sleep(0)


# --- event streams


async def test_events_report_turn_from_acceptance_to_reply(start: Start):
    model = ScriptedModel([ToolCallPart("calculate", {"expression": "1+1"})], ["It ", "is 2."])
    _, client = await start(model, rate_global=100)
    answer = await client.post("/message", json={"content": "1+1?", "channelId": "c"}, headers=EVENTS)
    events = events_of(answer)
    assert [type_ for type_, _, _ in events] == [
        "turn.accepted",
        "tool.started",
        "tool.finished",
        "message.delta",
        "message.delta",
        "turn.completed",
    ]
    assert [id_ for _, id_, _ in events] == [f"1-{number}" for number in range(1, 7)]
    assert events[0][2]["channelId"] == "c"
    assert answer.headers["ratelimit"].startswith('"global";r=99')
    assert answer.headers["cache-control"] == "no-store"


async def test_last_event_equals_response_to_plain_request(start: Start):
    _, client = await start(ScriptedModel(["It ", "is 2."], "It is 2."))
    body = {"content": "1+1?", "channelId": "c", "userId": "ana"}
    last = events_of(await client.post("/message", json=body, headers=EVENTS))[-1][2]
    plain = (await client.post("/message", json=body)).json()
    assert set(last) == set(plain)
    assert {name: last[name] for name in last if name not in ("id", "createdAt", "usage")} == {
        name: plain[name] for name in plain if name not in ("id", "createdAt", "usage")
    }
    turn = (await client.get(f"/v1/turns/{last['id']}")).json()
    assert last == {name: turn[name] for name in last}


async def test_deltas_add_up_to_reply(start: Start):
    _, client = await start(ScriptedModel(["a\n\n", "b: é\u2028", "\ndata: c", "😀"]))
    events = events_of(await client.post("/message", json={"content": "hi"}, headers=EVENTS))
    deltas = [data["text"] for type_, _, data in events if type_ == "message.delta"]
    assert "".join(deltas) == events[-1][2]["reply"] == "a\n\nb: é\u2028\ndata: c😀"


async def test_failed_turn_ends_event_stream_with_problem(start: Start):
    _, client = await start(ScriptedModel(["It ", ModelFailed("no credit")]))
    answer = await client.post("/message", json={"content": "hi"}, headers=EVENTS)
    assert answer.status_code == 200
    type_, _, problem = events_of(answer)[-1]
    assert type_ == "turn.failed"
    assert (problem["status"], problem["code"], problem["detail"]) == (502, "model_failed", "no credit")
    assert problem["requestId"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(("body", "status"), [({"content": " "}, 400), ({"content": "x" * 10_001}, 413)])
async def test_refusal_before_first_event_has_its_own_status(
    client: httpx2.AsyncClient, body: dict[str, Any], status: int
):
    answer = await client.post("/message", json=body, headers=EVENTS)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


# --- late answers


async def test_reply_after_wait_limit_is_504_with_turn_path(start: Start):
    gate = asyncio.Event()
    app, _ = await start(ScriptedModel([gate, "late"]))
    async with over(app, wait=0) as client:
        answer = await client.post("/message", json={"content": "hi"})
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["error"]) == (504, "wait_expired", "Timed out")
        assert problem["instance"].startswith("v1/turns/turn_")
        for path in ("/message", "/api/message"):
            place = httpx2.URL(f"http://localhost{path}").join(problem["instance"]).path
            turn = (await client.get(place)).json()
            assert (turn["status"], turn["reply"], turn["error"], turn["endedAt"]) == (
                "running",
                None,
                None,
                None,
            )
        gate.set()
        found = await app.turns.reader.get("gateway", turn["id"])
        await app.turns.reader.wait_for_end(found)
        turn = (await client.get(place)).json()
        assert (turn["status"], turn["reply"]) == ("completed", "late")


async def test_turn_over_its_time_limit_is_504(start: Start):
    _, client = await start(ScriptedModel([asyncio.Event(), "never"]), turn_timeout=1)
    answer = await client.post("/message", json={"content": "hi"})
    assert (answer.status_code, answer.json()["code"]) == (504, "turn_timeout")
    assert "TORANA_TURN_TIMEOUT" in answer.json()["detail"]


async def test_failed_turn_can_be_read(start: Start):
    _, client = await start(ScriptedModel([ModelFailed("no credit")]))
    events = events_of(await client.post("/message", json={"content": "hi"}, headers=EVENTS))
    turn = (await client.get(f"/v1/turns/{events[0][2]['id']}")).json()
    assert (turn["status"], turn["error"]) == ("failed", {"code": "model_failed", "detail": "no credit"})


async def test_stopping_gateway_answers_waiting_client_with_turn_path(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"])
    app, client = await start(model)
    waiting = asyncio.create_task(client.post("/message", json={"content": "hi"}))
    await until(lambda: model.requests)
    await app.turns.stop(grace=0)
    answer = await waiting
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert answer.json()["instance"].startswith("v1/turns/turn_")
    assert int(answer.headers["retry-after"]) > 0


async def test_stopping_gateway_ends_event_streams(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"])
    app, client = await start(model)
    watching = asyncio.create_task(client.post("/message", json={"content": "hi"}, headers=EVENTS))
    await until(lambda: model.requests)
    await app.turns.stop(grace=0)
    assert [type_ for type_, _, _ in events_of(await watching)] == ["turn.accepted"]


# --- errors: a bug, a slow body


def over(app: App, **changed: Any) -> httpx2.AsyncClient:
    """Return a client of another application over the same turns, with some services replaced."""
    services = replace(app.services, **changed)
    asgi = create_api(services, ApiAccess(token=None, allowed_hosts=(), cors_origins=()))
    transport = httpx2.ASGITransport(app=cast("Any", asgi), raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost")


class FailingLibrary:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def catalogue(self) -> None:
        raise self._error


class FailingHealth:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def report(self) -> None:
        raise self._error


def failing(app: App, error: Exception) -> httpx2.AsyncClient:
    """Return a client of the application whose skills and health raise an error."""
    skills = replace(app.services.skills, library=cast("Any", FailingLibrary(error)))
    return over(app, skills=skills, health=FailingHealth(error))


@pytest.mark.parametrize("path", ["/skills", "/v1/status"])
async def test_bug_in_handler_is_problem_with_logged_traceback(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, path: str
):
    async with failing(gateway[0], ZeroDivisionError("a secret place")) as client:
        answer = await client.get(path)
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem["error"], problem["code"]) == (500, "Internal error", "internal_error")
    assert problem["requestId"] == answer.headers["x-request-id"]
    assert "secret" not in answer.text
    assert "ZeroDivisionError: a secret place" in caplog.text


async def test_http_error_of_framework_is_problem(gateway: Gateway):
    async with failing(gateway[0], HTTPException(418, "no coffee")) as client:
        answer = await client.get("/v1/status")
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem["code"], problem["detail"]) == (400, "bad_request", "no coffee")


async def test_stalled_body_is_408_and_stores_nothing(
    gateway: Gateway, stored: Callable[[App], Awaitable[int]]
):
    async def stalling() -> AsyncIterator[bytes]:
        yield b'{"content": '
        await asyncio.Event().wait()

    app, _ = gateway
    async with over(app, body_timeout=0) as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/message", content=stalling(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"
    assert await stored(app) == 0


async def test_failed_database_write_is_503_with_retry_after(gateway: Gateway):
    app, client = gateway

    def fail(connection: Any) -> None:
        connection.exec_driver_sql("PRAGMA query_only = ON")

    await app.database.run(fail)
    answer = await client.post("/message", json={"content": "hi"})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "degraded")
