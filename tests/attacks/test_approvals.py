"""An approval applies only to the call that was shown, whatever the model and its provider do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

from torana.testing.openai_server import Answer, Call, ChatRequest

TOOL = "calculate"
ASKS = json.dumps([{"tool": TOOL, "permission": "ask"}])
YES = {"decision": "approve"}
DESK = {"channelId": "desk", "userId": "ana"}

Make = Callable[..., Any]


class CallsInTurn:
    """A rule that answers each request of a turn with the next call, and then with all results."""

    def __init__(self, *calls: Call) -> None:
        self._calls = calls

    def __call__(self, request: ChatRequest) -> Answer:
        done = [message["content"] for message in request.messages if message.get("role") == "tool"]
        return [self._calls[len(done)]] if len(done) < len(self._calls) else "\n".join(map(str, done))


def call(expression: str, id_: str | None = None) -> Call:
    return Call(TOOL, {"expression": expression}, id_)


@contextmanager
def gateway_over(new_gateway: Make, new_model: Make, *calls: Call) -> Generator[tuple[Any, httpx2.Client]]:
    server = new_model(reply=CallsInTurn(*calls))
    gateway: GatewayProcess = new_gateway(
        model="openai-chat:stand-in", model_api_key="none", model_base_url=server.url, permissions=ASKS
    )
    gateway.start()
    with gateway.client() as client:
        yield gateway, client


def send(client: httpx2.Client, content: str = "pay", *, channel: str = "desk") -> str:
    """Send a message without waiting, and return the id of its turn."""
    message = {"content": content, "channelId": channel, "userId": "ana"}
    return client.post("/message", json=message, headers={"Prefer": "respond-async"}).json()["id"]


def wait_for_approval(client: httpx2.Client, turn: str, expression: str) -> dict[str, Any]:
    """Wait until the turn's only open approval is for this expression, and return it."""

    def look() -> dict[str, Any] | None:
        found = client.get(f"/v1/turns/{turn}").json()["approvals"]
        return found[0] if [one["arguments"] for one in found] == [{"expression": expression}] else None

    return eventually(look)


def ended(client: httpx2.Client, turn: str) -> dict[str, Any]:
    """Wait for the end of the turn, and return it."""
    client.get(f"/v1/turns/{turn}/events")
    return client.get(f"/v1/turns/{turn}").json()


def path_of(approval: dict[str, Any]) -> str:
    return f"/v1/turns/{approval['turnId']}/approvals/{quote(approval['callId'], safe='')}"


def test_command_does_not_approve_a_call_that_was_not_listed(new_gateway: Make, new_model: Make) -> None:
    with gateway_over(new_gateway, new_model, call("1+1"), call("6*7")) as (gateway, client):
        turn = send(client)
        wait_for_approval(client, turn, "1+1")
        listed = client.get("/v1/approvals").json()["items"]
        client.post(path_of(listed[0]), json=YES)  # the owner is faster
        unseen = wait_for_approval(client, turn, "6*7")

        by_turn = [gateway.run_command("approvals", "approve", turn, *more) for more in ((), ("--yes",))]

        assert [done.returncode for done in by_turn] == [1, 1]
        assert wait_for_approval(client, turn, "6*7") == unseen
        by_id = gateway.run_command("approvals", "approve", listed[0]["id"], "--yes")
        assert "1+1" in by_id.stdout
        assert wait_for_approval(client, turn, "6*7") == unseen
        stale = client.post(f"/v1/approvals/{unseen['id']}", json=YES | {"digest": listed[0]["digest"]})
        assert (stale.status_code, stale.json()["code"]) == (409, "approval_changed")
        fresh = client.post(f"/v1/approvals/{unseen['id']}", json=YES | {"digest": unseen["digest"]})
        assert fresh.json()["state"] == "approved"
        assert ended(client, turn)["status"] == "completed"


def test_repeated_decision_approves_only_one_of_two_calls_with_equal_ids(
    new_gateway: Make, new_model: Make
) -> None:
    with gateway_over(new_gateway, new_model, call("1+1", "call_0"), call("6*7", "call_0")) as (_, client):
        turn = send(client)
        first = wait_for_approval(client, turn, "1+1")
        assert client.post(path_of(first), json=YES).json()["arguments"] == {"expression": "1+1"}
        second = wait_for_approval(client, turn, "6*7")

        again = client.post(path_of(first), json=YES).json()

        assert again["arguments"] == {"expression": "1+1"}
        assert wait_for_approval(client, turn, "6*7") == second
        assert client.post(path_of(second), json=YES).json()["arguments"] == {"expression": "6*7"}
        assert "42" in ended(client, turn)["reply"]


def test_call_id_with_a_newline_is_decided_over_http(new_gateway: Make, new_model: Make) -> None:
    with gateway_over(new_gateway, new_model, call("6*7", "call\n1/..")) as (_, client):
        turn = send(client)
        approval = wait_for_approval(client, turn, "6*7")

        decided = client.post(path_of(approval), json=YES)

        assert (decided.status_code, decided.json()["state"]) == (200, "approved")
        assert "42" in ended(client, turn)["reply"]


def test_http_yes_does_not_approve_a_call_that_was_not_shown(new_gateway: Make, new_model: Make) -> None:
    """The client shows the first question to the user; meanwhile the operator approves it."""
    with gateway_over(new_gateway, new_model, call("1+1"), call("6*7")) as (_, client):
        turn = send(client)
        client.post(path_of(wait_for_approval(client, turn, "1+1")), json=YES)
        unseen = wait_for_approval(client, turn, "6*7")
        word = {"content": "yes", "channelId": "desk", "userId": "ana"}

        told = client.post("/message", json=word).json()["reply"]

        assert wait_for_approval(client, turn, "6*7") == unseen
        assert "6*7" in told
        reply = client.post("/message", json=word).json()["reply"]
        assert reply == ended(client, turn)["reply"]
        assert "42" in reply


def test_yes_does_not_answer_a_question_that_was_sent_to_no_client(new_gateway: Make, new_model: Make) -> None:
    """The user's program gives up before the model asks, and the next message is an ok to another matter."""
    may_answer = threading.Event()
    rule = CallsInTurn(call("6*7"))

    def slow(request: ChatRequest) -> Answer:
        assert may_answer.wait(30)
        return rule(request)

    server = new_model(reply=slow)
    gateway: GatewayProcess = new_gateway(
        model="openai-chat:stand-in", model_api_key="none", model_base_url=server.url, permissions=ASKS
    )
    gateway.start()
    with gateway.client() as client:
        with pytest.raises(httpx2.ReadTimeout):
            client.post("/message", json={"content": "pay"} | DESK, timeout=1)
        client.get("/health").raise_for_status()  # answered after the end of the other connection was seen
        may_answer.set()
        (unseen,) = eventually(lambda: client.get("/v1/approvals").json()["items"])

        told = client.post("/message", json={"content": "ok"} | DESK).json()["reply"]

        assert "6*7" in told
        assert client.get(f"/v1/approvals/{unseen['id']}").json()["state"] == "open"
        assert "42" in client.post("/message", json={"content": "ok"} | DESK).json()["reply"]


def test_yes_does_not_answer_a_question_that_only_the_operator_has_watched(
    start_asking_gateway: Callable[..., GatewayProcess],
) -> None:
    """The user's program shows no questions. The operator's page follows the turn while the user writes ok."""
    operator = "operators-own-token-1234"
    gateway = start_asking_gateway(CallsInTurn(call("6*7")), operator)
    (ana,) = gateway.create_tokens("ana", operator=operator)
    with gateway.client(token=ana) as client, gateway.client(token=operator) as watching:
        later = {"Prefer": "respond-async"}
        said = {"content": "pay", "channelId": "desk"}
        turn = client.post("/message", json=said, headers=later).json()["id"]
        with watching.stream("GET", f"/v1/turns/{turn}/events") as events:
            assert any(line == "event: approval.required" for line in events.iter_lines())
            watching.get("/v1/status").raise_for_status()

            told = client.post("/message", json=said | {"content": "ok"}).json()["reply"]

        assert "6*7" in told
        (unseen,) = client.get("/v1/approvals").json()["items"]
        assert unseen["state"] == "open"
        with client.stream("GET", f"/v1/turns/{turn}/events") as events:
            assert any(line == "event: approval.required" for line in events.iter_lines())


def test_command_lists_the_calls_of_all_pages(start_asking_gateway: Callable[..., GatewayProcess]) -> None:
    """A page ends after long arguments, so that a few calls can push the others off the first page."""
    token = "operators-own-token-1234"
    gateway = start_asking_gateway(CallsInTurn(call("1+" * 60_000 + "1")), token)
    with gateway.client(token=token) as client:
        turns = {send(client, channel=f"channel-{number}") for number in range(5)}
        for turn in turns:
            eventually(lambda turn=turn: client.get(f"/v1/turns/{turn}").json()["approvals"])
        assert len(client.get("/v1/approvals").json()["items"]) < len(turns)

        listed = json.loads(gateway.run_command("approvals", "list", "--json").stdout)

    assert {item["turnId"] for item in listed["items"]} == turns
    assert listed["next"] is None
