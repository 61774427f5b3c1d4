"""A token limit holds although a process ends again and again while it waits for the model."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

from torana.testing.openai_server import Answer, ChatRequest, OpenAIStandIn

_LIMIT = 100_000
#: A turn that crashed this many processes fails; see ``max_crashes``.
_CRASHES = 5


@pytest.mark.parametrize("end", [GatewayProcess.stop, GatewayProcess.terminate])
def test_interrupted_calls_are_charged(
    new_gateway: Callable[..., GatewayProcess],
    new_model: Callable[..., OpenAIStandIn],
    end: Callable[[GatewayProcess], None],
) -> None:
    costs: list[int] = []
    ended = threading.Semaphore(0)

    def reply(request: ChatRequest) -> Answer:
        costs.append(len(request.model_dump_json(include={"messages", "tools"}).encode()))
        ended.acquire(timeout=20)
        return "done"

    gateway = new_gateway(
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=new_model(reply=reply).url,
        limits_per_user=json.dumps([f"{_LIMIT} tokens/day"]),
        drain="0",
    )
    gateway.start()
    with gateway.client() as client:
        later = {"Prefer": "respond-async"}
        turn = client.post("/message", json={"content": "go on", "userId": "eve"}, headers=later).json()["id"]
        for calls in range(1, _CRASHES + 1):
            eventually(partial(_is_called_or_failed, client, turn, costs, calls))
            if len(costs) < calls:
                break
            end(gateway)
            ended.release()  # the stand-in answers one request at a time
            gateway.start()
        eventually(lambda: _failure(client, turn) is not None)

        assert _failure(client, turn) == "budget_spent"
    assert sum(costs) <= _LIMIT + max(costs), costs


def _failure(client: httpx2.Client, turn: str) -> str | None:
    error = client.get(f"/v1/turns/{turn}").json()["error"]
    return error and error["code"]


def _is_called_or_failed(client: httpx2.Client, turn: str, costs: list[int], calls: int) -> bool:
    return len(costs) >= calls or _failure(client, turn) is not None
