"""A chat platform behind the whole gateway: its hook, its status, its deliveries, and its senders."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing
from socket import create_server
from typing import Any

import httpx2
import pytest
from pydantic_ai.exceptions import ModelHTTPError
from tests.standins.webhook import SECRET, Program
from tests.waiting import PATIENCE

from torana.app import App
from torana.testing import ScriptedModel

Start = Callable[..., Awaitable[tuple[App, httpx2.AsyncClient]]]


class Running:
    """A gateway with a webhook account, and the program that calls it."""

    def __init__(self, app: App, client: httpx2.AsyncClient, program: Program, hooks: str) -> None:
        self.app = app
        self.client = client
        self.program = program
        self._hooks = hooks
        self._numbers = 0

    async def call(self, content: str, *, sender: str = "ana", path: str = "home") -> httpx2.Response:
        """Send a signed call of the program over the hooks' port."""
        self._numbers += 1
        body = json.dumps({"content": content, "sender": sender}).encode()
        request = self.program.request(body, name=f"msg_{self._numbers}")
        async with httpx2.AsyncClient(timeout=PATIENCE) as client:
            return await client.post(f"{self._hooks}/hooks/{path}", content=body, headers=dict(request.headers))

    async def get(self, path: str) -> Any:
        """Return the JSON of a path for the operator."""
        return (await self.client.get(path)).raise_for_status().json()

    async def deliveries(self, *states: str) -> list[dict[str, Any]]:
        """Return all deliveries, as soon as they are in these states, the newest first."""
        while True:
            items = (await self.get("/v1/deliveries"))["items"]
            if [item["state"] for item in items] == list(states):
                return items


@pytest.fixture
async def open_running(start: Start) -> AsyncGenerator[Callable[..., Awaitable[Running]]]:
    """``await open_running(allow=[…])`` starts the account ``home`` with these settings."""
    async with Program() as program:

        async def make(*answers: Any, **settings: Any) -> Running:
            with closing(create_server(("127.0.0.1", 0))) as free:
                port = free.getsockname()[1]
            account = {"kind": "webhook"} | dict(program.settings()) | settings
            app, client = await start(
                ScriptedModel(*answers), connectors=json.dumps({"home": account}), hooks_port=port
            )
            running = Running(app, client, program, f"http://127.0.0.1:{port}")
            async with httpx2.AsyncClient(timeout=PATIENCE) as caller:
                while (await caller.get(f"http://127.0.0.1:{port}/hooks/home")).status_code == 503:
                    pass  # it connects
            assert (await running.get("/health"))["connectors"] == ["home"]
            return running

        yield make


async def test_webhook_call_is_answered_and_its_delivery_listed(
    open_running: Callable[..., Awaitable[Running]],
) -> None:
    running = await open_running("It is 4.", allow=["ana"])

    assert (await running.call("2+2?")).status_code == 200

    (delivery,) = await running.deliveries("sent")
    assert (delivery["account"], delivery["part"], delivery["text"]) == ("home", 0, "")
    turn = await running.get(f"/v1/turns/{delivery['turnId']}")
    assert turn["status"] == "completed"
    assert [one.text for one in await running.program.shown(1)] == ["It is 4."]
    (status,) = (await running.get("/v1/status"))["connectors"]
    assert (status["account"], status["kind"], status["state"]) == ("home", "webhook", "active")


async def test_webhook_receives_ends_of_all_turns_in_order(
    open_running: Callable[..., Awaitable[Running]],
) -> None:
    model = ("one", [ModelHTTPError(400, "m", {"error": "bad"})])
    running = await open_running(*model, events=["turn.completed", "turn.failed"])
    await running.program.limit(0.1)

    first = await running.client.post("/message", json={"content": "hello", "channelId": "a", "userId": "ana"})
    await running.client.post("/message", json={"content": "hello again", "channelId": "a"})

    await running.deliveries("sent", "sent")
    completed, failed = running.program.events
    assert (completed["type"], failed["type"]) == ("turn.completed", "turn.failed")
    told = completed["data"]
    assert (told["id"], told["channelId"], told["userId"]) == (first.json()["id"], "a", "ana")
    assert (told["content"], told["reply"], told["error"]) == ("hello", "one", None)
    assert failed["data"]["error"]["code"] == "model_failed"
    (await running.client.delete("/v1/users/ana")).raise_for_status()
    assert len((await running.get("/v1/deliveries"))["items"]) == 1


async def test_hook_port_serves_only_hooks_and_api_port_serves_none(
    open_running: Callable[..., Awaitable[Running]],
) -> None:
    running = await open_running(allow=["*"])

    assert (await running.call("hello", path="nobody")).status_code == 404
    assert (await running.client.post("/hooks/home", json={})).status_code == 404


async def test_wrong_signature_stores_nothing(open_running: Callable[..., Awaitable[Running]]) -> None:
    running = await open_running(allow=["*"])
    running.program.request = lambda body, name: Program.request(  # type: ignore[method-assign]
        running.program, body, name=name, secret="whsec_d3Jvbmc="
    )

    assert (await running.call("hello")).status_code == 401

    assert (await running.get("/v1/sessions"))["items"] == []
    assert SECRET not in json.dumps(await running.get("/v1/status"))


async def test_rejected_delivery_is_retried_then_dropped_by_operator(
    open_running: Callable[..., Awaitable[Running]],
) -> None:
    running = await open_running("one", "two", allow=["*"])
    await running.program.refuse_message()
    await running.call("hello")
    (refused,) = await running.deliveries("refused")
    assert refused["text"] == "one"

    path = f"/v1/deliveries/{refused['id']}"
    again = (await running.client.post(f"{path}/retry")).raise_for_status().json()
    assert again["state"] == "pending"
    await running.deliveries("sent")
    assert [one.text for one in await running.program.shown(1)] == ["one"]
    answer = await running.client.post(f"{path}/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_held")

    await running.program.refuse_message()
    await running.call("again")
    second, _ = await running.deliveries("refused", "sent")
    dropped = await running.client.post(f"/v1/deliveries/{second['id']}/drop")
    assert dropped.json()["state"] == "dropped"
    acts = [entry["action"] for entry in (await running.get("/v1/audit"))["items"]]
    assert acts == ["delivery.drop", "delivery.retry"]


async def test_unknown_sender_is_approved_then_revoked(open_running: Callable[..., Awaitable[Running]]) -> None:
    running = await open_running("welcome")
    await running.call("hello", sender="eve")
    await running.deliveries("sent")
    (asked,) = (await running.get("/v1/pairing"))["items"]
    assert (asked["sender"], asked["state"], asked["user"]) == ("home:eve", "pending", None)
    code = (await running.program.shown(1, to="eve"))[0].text.split("`")[1]

    body = {"who": code, "user": "eve@example.org"}
    approved = (await running.client.post("/v1/pairing/approve", json=body)).raise_for_status().json()
    assert (approved["state"], approved["user"]) == ("approved", "eve@example.org")
    await running.call("and now?", sender="eve")
    assert [one.text for one in await running.program.shown(2, to="eve")][1] == "welcome"

    wrong = await running.client.post("/v1/pairing/approve", json={"who": code})
    assert wrong.status_code == 404
    denied = await running.client.post("/v1/pairing/deny", json={"who": "home:eve"})
    assert denied.json()["state"] == "denied"


async def test_erased_sender_must_pair_again(open_running: Callable[..., Awaitable[Running]]) -> None:
    running = await open_running("welcome")
    body = {"who": "home:eve", "user": "eve"}
    await running.client.post("/v1/pairing/approve", json=body)
    await running.call("hello", sender="eve")
    await running.deliveries("sent")

    (await running.client.delete("/v1/users/eve")).raise_for_status()

    assert (await running.get("/v1/pairing"))["items"] == []
    assert (await running.get("/v1/deliveries"))["items"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/pairing/approve", {}),
        ("/v1/pairing/approve", {"who": 7}),
        ("/v1/pairing/approve", {"who": ""}),
        ("/v1/pairing/approve", {"who": "telegram:1", "user": True}),
        ("/v1/pairing/deny", {"who": "x" * 301}),
    ],
)
async def test_pairing_request_without_sender_is_refused(
    client: httpx2.AsyncClient, path: str, body: Any
) -> None:
    answer = await client.post(path, json=body)

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")


async def test_unknown_delivery_state_is_refused(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/v1/deliveries?state=lost")).status_code == 400
    assert (await client.get("/v1/deliveries?state=sent&limit=1")).json() == {"items": [], "next": None}
