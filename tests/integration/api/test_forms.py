"""Forms of requests and responses: ``Prefer``, ``onBusy``, control words."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import ModelRequest, ToolCallPart, UserPromptPart

from torana.app import App
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

HI = {"content": "hi", "channelId": "c"}


async def until(happened: Callable[[], object]) -> None:
    """Run other tasks until the condition holds; the test's own time limit ends the wait otherwise."""
    while not happened():  # noqa: ASYNC110 - the script has no event for having been asked
        await asyncio.sleep(0)


async def ended(app: App, turn_id: str) -> str:
    """Return the state in which a turn has ended."""
    return (await app.turns.reader.wait_for_end(await app.turns.reader.get("gateway", turn_id))).state


async def later(client: httpx2.AsyncClient, **body: Any) -> str:
    """Send a message without waiting, and return its turn."""
    answer = await client.post("/message", json=HI | body, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def user_texts(model: ScriptedModel, number: int) -> list[str]:
    """Return the users' texts in a request to the model."""
    return [
        str(part.content)
        for message in model.requests[number].messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


# --- Prefer


async def test_respond_async_is_202_with_location(start: Start):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "late"]), rate_global=9)
    answer = await client.post("/message", json=HI, headers={"Prefer": "respond-async"})
    turn = answer.json()
    assert (answer.status_code, turn["status"], turn["reply"]) == (202, "running", None)
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.headers["location"] == f"v1/turns/{turn['id']}"
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["ratelimit"].startswith('"global";r=8')
    gate.set()
    await ended(app, turn["id"])
    found = await client.get(str(answer.url.join(answer.headers["location"])))
    assert (found.json()["status"], found.json()["reply"]) == ("completed", "late")


async def test_location_of_async_response_works_under_prefix(client: httpx2.AsyncClient):
    answer = await client.post("/api/message", json=HI, headers={"Prefer": "respond-async"})
    place = answer.url.join(answer.headers["location"])
    assert place.path.startswith("/api/v1/turns/")
    assert (await client.get(place)).status_code == 200


async def test_reply_within_wait_preference_is_sent_at_once(client: httpx2.AsyncClient):
    answer = await client.post("/message", json=HI, headers={"Prefer": "respond-async, wait=60"})
    assert (answer.status_code, answer.json()["reply"]) == (200, "yes")
    assert "preference-applied" not in answer.headers


async def test_reply_after_wait_preference_is_202(start: Start):
    _, client = await start(ScriptedModel([asyncio.Event(), "never"]))
    answer = await client.post("/message", json=HI, headers={"Prefer": "wait=0, respond-async"})
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert answer.headers["preference-applied"] == "respond-async, wait=0"


async def test_wait_preference_without_respond_async_times_out(start: Start):
    _, client = await start(ScriptedModel([asyncio.Event(), "never"]))
    answer = await client.post("/message", json=HI, headers={"Prefer": "wait=0"})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (504, "wait_expired")
    found = await client.get(str(answer.url.join(problem["instance"])))
    assert found.json()["status"] == "running"


@pytest.mark.parametrize("prefer", ["", ",,", "return=minimal", "wait", "wait=soon", "wait=-1", "é", "=", '"'])
@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_preference_is_ignored(shared_client: httpx2.AsyncClient, prefer: str):
    answer = await shared_client.post("/message", json=HI, headers={"Prefer": prefer.encode("latin-1")})  # pyright: ignore[reportArgumentType]
    assert answer.status_code == 200


class Left:
    """A client of the ASGI application that disconnects when an event is set."""

    def __init__(self, app: App, **headers: str) -> None:
        self.leaves = asyncio.Event()
        self.sent: list[MutableMapping[str, Any]] = []
        self._app = app
        self._headers = {"host": "localhost", "content-type": "application/json"} | headers
        self._body = [b'{"content": "hi", "channelId": "c"}']

    async def ask(self) -> None:
        await self._app.asgi(
            {
                "type": "http",
                "method": "POST",
                "path": "/message",
                "query_string": b"",
                "headers": [(name.encode(), value.encode()) for name, value in self._headers.items()],
                "client": ("127.0.0.1", 4),
            },
            self._receive,
            self._send,
        )

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_disconnect_cancels_turn_when_requested(start: Start, accept: str):
    model = ScriptedModel([asyncio.Event(), "never"], "next")
    app, client = await start(model)
    caller = Left(app, prefer="cancel-on-disconnect", accept=accept)
    asking = asyncio.create_task(caller.ask())
    await until(lambda: model.requests)
    caller.leaves.set()
    await asking
    [turn] = await newest(client)
    assert turn["status"] == "cancelled"
    assert (await client.post("/message", json=HI)).json()["reply"] == "next"


async def test_yes_does_not_answer_a_question_whose_client_has_left(start: Start):
    gate = asyncio.Event()
    model = ScriptedModel([gate, ToolCallPart("calculate", {"expression": "1+1"})], "It is 2.")
    app, client = await start(model, permissions='[{"tool": "calculate", "permission": "ask"}]')
    caller = Left(app)
    asking = asyncio.create_task(caller.ask())
    await model.asked()
    caller.leaves.set()
    gate.set()
    while not (found := (await client.get("/v1/approvals")).json()["items"]):
        assert not asking.done()
    for _ in range(3):  # until a response with the question would have been sent
        await client.get("/v1/approvals")
    assert not caller.sent
    answer = await client.post("/message", json={"content": "ok", "channelId": "c"})
    assert "May I run `calculate`" in answer.json()["reply"]
    assert (await client.get(f"/v1/approvals/{found[0]['id']}")).json()["state"] == "open"
    # The reply of this message contains the question, so that it can be answered now.
    assert (await client.post("/message", json={"content": "ok", "channelId": "c"})).json()[
        "reply"
    ] == "It is 2."
    await asking


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_stopping_gateway_does_not_cancel_turn_on_disconnect(start: Start, accept: str):
    model = ScriptedModel([asyncio.Event(), "never"])
    app, _ = await start(model)
    caller = Left(app, prefer="cancel-on-disconnect", accept=accept)
    asking = asyncio.create_task(caller.ask())
    await until(lambda: model.requests)
    await app.turns.stop(grace=0)
    await asking
    await app.close()
    app, client = await start(ScriptedModel("after the restart"))
    [turn] = await newest(client)
    assert await ended(app, turn["id"]) == "completed"


async def newest(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    """Return the turns of the newest session."""
    [session] = (await client.get("/v1/sessions")).json()["items"]
    said = (await client.get(f"/v1/sessions/{session['id']}/messages")).json()["items"]
    return [(await client.get(f"/v1/turns/{item['turnId']}")).json() for item in said if item["role"] == "user"]


# --- onBusy


async def test_message_to_busy_session_is_queued_by_default(start: Start):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "one"], "two"))
    first, second = await later(client), await later(client, onBusy="queue")
    assert (await client.get(f"/v1/turns/{second}")).json()["status"] == "queued"
    gate.set()
    assert [await ended(app, turn) for turn in (first, second)] == ["completed"] * 2
    assert (await client.get(f"/v1/turns/{second}")).json()["reply"] == "two"


async def test_on_busy_reject_refuses_message_to_busy_session(start: Start):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "one"], "two"))
    first = await later(client)
    refused = await client.post("/message", json=HI | {"onBusy": "reject"}, headers={"Idempotency-Key": "k"})
    assert (refused.status_code, refused.json()["code"]) == (409, "session_busy")
    gate.set()
    await ended(app, first)
    taken = await client.post("/message", json=HI | {"onBusy": "reject"}, headers={"Idempotency-Key": "k"})
    assert (taken.status_code, taken.json()["reply"]) == (200, "two")
    assert "idempotency-replayed" not in taken.headers  # a refusal binds no key


async def test_on_busy_interrupt_cancels_running_turn(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"], "instead", "then")
    app, client = await start(model)
    first = await later(client)
    queued = await later(client, content="waits")
    await until(lambda: model.requests)
    answer = await client.post("/message", json=HI | {"content": "stop that", "onBusy": "interrupt"})
    assert answer.json()["reply"] == "instead"
    assert await ended(app, first) == "cancelled"
    assert await ended(app, queued) == "completed"


async def test_on_busy_steer_merges_message_into_running_turn(start: Start):
    gate = asyncio.Event()
    model = ScriptedModel([gate, ToolCallPart("calculate", {"expression": "1+1"})], "both at once")
    _, client = await start(model)
    first = asyncio.create_task(client.post("/message", json=HI))
    await until(lambda: model.requests)
    steering = asyncio.create_task(
        client.post("/message", json=HI | {"content": "and more", "onBusy": "steer"})
    )
    [session] = (await client.get("/v1/sessions")).json()["items"]
    while (await client.get(f"/v1/sessions/{session['id']}")).json()["turns"] < 2:
        pass
    gate.set()
    bodies = [(await request).json() for request in (first, steering)]
    assert [body["reply"] for body in bodies] == ["both at once"] * 2
    assert any("and more" in text for text in user_texts(model, 1))
    merged = (await client.get(f"/v1/turns/{bodies[1]['id']}")).json()
    assert (merged["status"], merged["mergedInto"]) == ("completed", bodies[0]["id"])


@pytest.mark.parametrize("on_busy", ["steer", "interrupt"])
async def test_message_of_other_user_is_queued_for_any_on_busy(start: Start, on_busy: str):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "for ana"], "for ben"))
    first = await later(client, userId="ana")
    second = await later(client, userId="ben", onBusy=on_busy)
    gate.set()
    assert [await ended(app, turn) for turn in (first, second)] == ["completed"] * 2
    replies = [(await client.get(f"/v1/turns/{turn}")).json()["reply"] for turn in (first, second)]
    assert replies == ["for ana", "for ben"]


@pytest.mark.parametrize("value", ["", "QUEUE", "drop", 1, True, ["queue"], {"queue": 1}])
@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_on_busy_value_is_refused(shared_client: httpx2.AsyncClient, value: Any):
    answer = await shared_client.post("/message", json=HI | {"onBusy": value})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    assert answer.json()["errors"][0]["pointer"] == "/onBusy"


# --- control words


async def test_stop_cancels_running_turn_and_session_continues(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"], "next")
    app, client = await start(model)
    first = await later(client)
    await until(lambda: model.requests)
    answer = await client.post("/message", json=HI | {"content": " /Stop\n"})
    assert (answer.status_code, answer.json()["reply"]) == (200, "Stopped.")
    assert await ended(app, first) == "cancelled"
    assert (await client.post("/message", json=HI)).json()["reply"] == "next"


async def test_stop_leaves_other_channels_running(start: Start):
    gate = asyncio.Event()
    app, client = await start(ScriptedModel([gate, "late"]))
    first = await later(client)
    answer = await client.post("/message", json={"content": "/stop", "channelId": "other"})
    assert answer.json()["reply"] == "Nothing is running here."
    gate.set()
    assert await ended(app, first) == "completed"


async def test_status_counts_running_and_queued_turns_of_channel(start: Start):
    gate = asyncio.Event()
    _, client = await start(ScriptedModel([gate, "late"], "later"))
    for _ in range(2):
        await later(client)
    answer = await client.post("/message", json=HI | {"content": "/status"})
    assert answer.json()["reply"] == "Running here: 1. Waiting: 1."


async def test_new_hides_earlier_messages_from_agent(start: Start):
    model = ScriptedModel("one", "two", "three")
    _, client = await start(model)
    await client.post("/message", json=HI | {"content": "before"})
    await client.post("/message", json=HI | {"content": "/new"})
    await client.post("/message", json=HI | {"content": "after"})
    assert [user_texts(model, number) for number in (0, 1)] == [["before"], ["after"]]
    await client.post("/message", json=HI | {"content": "last"})
    assert user_texts(model, 2) == ["after", "last"]


async def test_control_word_sends_events(client: httpx2.AsyncClient):
    answer = await client.post(
        "/message", json=HI | {"content": "/status"}, headers={"Accept": "text/event-stream"}
    )
    types = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert types == ["turn.accepted", "message.snapshot", "turn.completed"]


async def test_control_word_with_repeated_key_runs_once(start: Start):
    model = ScriptedModel([asyncio.Event(), "never"], [gate := asyncio.Event(), "kept"])
    app, client = await start(model)

    async def stop() -> httpx2.Response:
        return await client.post("/message", json=HI | {"content": "/stop"}, headers={"Idempotency-Key": "1"})

    await later(client)
    await until(lambda: model.requests)
    first = await stop()
    kept = await later(client)
    again = await stop()
    assert again.json()["id"] == first.json()["id"]
    gate.set()
    assert await ended(app, kept) == "completed"


@pytest.mark.parametrize("content", ["/stop it", "stop", "/status?", "//stop", "/newer"])
async def test_text_resembling_control_word_goes_to_agent(client: httpx2.AsyncClient, content: str):
    assert (await client.post("/message", json=HI | {"content": content})).json()["reply"] == "yes"
