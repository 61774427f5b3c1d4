"""A limit on money holds although a provider answers under a name that is not in the settings."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import ChatRequest, OpenAIStandIn, RawReply

_TOML = """
model = ["openai-chat:first", "openai-chat:second"]
prices = ["openai-chat:first 10 30", "openai-chat:second 1 3"]
limits_global = ["1 usd/day"]
"""
#: Dollars for a call of 5,000 input tokens and 4,000 output tokens, by the most expensive model.
_COST = 0.17
_MESSAGES = 10


def _frame(delta: dict[str, str], usage: dict[str, int] | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": "stop" if usage else None}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "other", "choices": [choice]}
    return f"data: {json.dumps(chunk | {'usage': usage})}\n\n".encode()


def _answer(_request: ChatRequest) -> RawReply:
    usage = {"prompt_tokens": 5_000, "completion_tokens": 4_000, "total_tokens": 9_000}
    frames = [_frame({"role": "assistant", "content": "hello"}), _frame({}, usage), b"data: [DONE]\n\n"]
    return RawReply(body=iter(frames))


def test_answers_under_another_name_are_charged(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    gateway = new_gateway(toml=_TOML, model_api_key="none", model_base_url=new_model(reply=_answer).url)
    gateway.start()
    with gateway.client() as client:
        answers = [client.post("/message", json={"content": "go on"}) for _ in range(_MESSAGES)]

    charged = [answer.status_code for answer in answers].count(200) * _COST
    assert charged <= 1 + _COST
    assert answers[-1].json()["violatedPolicies"] == ["global-usd-day"]
