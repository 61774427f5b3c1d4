"""A user requests approvals of calls with long arguments, many at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

from torana.testing.openai_server import Answer, Call, ChatRequest

_TOKEN = "0123456789abcdef0123456789"
#: Almost the longest arguments that a person may approve.
_ARGUMENTS = {"expression": "\u200b" * 41_000}
_TURNS = 8
_REQUESTS = 48
#: Seconds that another user waits for a response: 1.5 on a slow machine, and more beside other tests.
_PROMPT = 8.0


@pytest.mark.parametrize("request_of", ["list", "turn", "decision"])
def test_long_arguments_delay_no_other_user(
    start_asking_gateway: Callable[..., GatewayProcess], request_of: str
) -> None:
    def reply(request: ChatRequest) -> Answer:
        return [Call("calculate", _ARGUMENTS)] if request.text == "attack" else "hello"

    gateway = start_asking_gateway(reply, _TOKEN)
    attackers, others = gateway.create_tokens("mallory", "alice", operator=_TOKEN)
    with (
        gateway.client(token=attackers, timeout=300) as mallory,
        gateway.client(token=others, timeout=_PROMPT) as alice,
        ThreadPoolExecutor(_REQUESTS) as pool,
    ):
        asked = [_ask(mallory, number) for number in range(_TURNS)]

        def attack(number: int) -> httpx2.Response:
            approval = asked[number % _TURNS]
            if request_of == "list":
                return mallory.get("/v1/approvals")
            if request_of == "turn":
                return mallory.get(f"/v1/turns/{approval['turnId']}")
            return mallory.post(f"/v1/approvals/{asked[0]['id']}", json={"decision": "deny"})

        attacks = [pool.submit(attack, number) for number in range(_REQUESTS)]
        alice.post("/message", json={"content": "hi"}).raise_for_status()
        while wait(attacks, timeout=0).not_done:
            alice.post("/message", json={"content": "hi"}).raise_for_status()

    assert {one.result().status_code for one in attacks} == {200}


def _ask(client: httpx2.Client, number: int) -> dict[str, str]:
    """Start a turn that asks, and return its approval."""
    message = {"content": "attack", "channelId": f"c{number}"}
    turn = client.post("/message", json=message, headers={"Prefer": "respond-async"}).json()["id"]
    (approval,) = eventually(lambda: client.get(f"/v1/turns/{turn}").json()["approvals"])
    return approval
