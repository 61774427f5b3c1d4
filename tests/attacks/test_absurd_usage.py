"""Attacks by a model's server: impossible usage values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torana.testing.openai_server import ChatRequest, OpenAIStandIn, Reply

_USAGES: dict[str, dict[str, Any]] = {
    "huge": {"prompt_tokens": 2**63, "completion_tokens": 2**63, "total_tokens": 2**64},
    "nearly": {"prompt_tokens": 2**63 - 1, "completion_tokens": 2**62, "total_tokens": 2**63},
    "beyond floats": {"prompt_tokens": 10**400, "completion_tokens": 1},
    "no details": {"prompt_tokens": 1, "prompt_tokens_details": "x", "completion_tokens_details": [1]},
    "negative": {"prompt_tokens": -(2**63), "completion_tokens": -1, "total_tokens": -1},
    "texts": {"prompt_tokens": "9" * 5_000, "completion_tokens": [], "total_tokens": None},
}


@pytest.mark.parametrize("usage", _USAGES)
def test_sessions_continue_after_absurd_usage(
    new_gateway: Callable[..., Any], new_model: Callable[..., OpenAIStandIn], usage: str
) -> None:
    def rule(request: ChatRequest) -> Reply | str:
        return Reply(answer="first", usage=_USAGES[usage]) if request.text == "attack" else "fine"

    model = new_model(reply=rule)
    gateway = new_gateway(
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=model.url,
        limits_per_user="1000000000 tokens/month",
        prices="openai-chat:stand-in 999999 999999",
    )
    gateway.start()
    with gateway.client() as client:
        for _ in range(3):
            attack = {"content": "attack", "channelId": "a", "userId": "mallory"}
            assert client.post("/message", json=attack).status_code in (200, 429, 502)

        same = client.post("/message", json={"content": "hello", "channelId": "a", "userId": "ana"})
        other = client.post("/message", json={"content": "hello", "channelId": "b", "userId": "ana"})
        health = client.get("/health")
        usage_of_all = client.get("/v1/usage")

    assert (same.status_code, same.json()["reply"]) == (200, "fine")
    assert (other.status_code, other.json()["reply"]) == (200, "fine")
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    assert usage_of_all.status_code == 200
