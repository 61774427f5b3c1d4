"""A token limit holds although the summaries of a conversation are too long."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

from torana.testing.openai_server import ChatRequest, OpenAIStandIn, Reply

_LIMIT = 200_000
_RESPONSE_BYTES = 100_000
_BYTES_PER_TOKEN = 4
_MESSAGES = 25
_TOO_LONG = "word " * (_RESPONSE_BYTES // 4)
_HALF = len(_TOO_LONG) // 2
_USAGE = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}


def test_summaries_that_are_cut_off_are_charged(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    costs: list[int] = []

    def reply(request: ChatRequest) -> Reply:
        if "You keep the notes" not in json.dumps(request.messages):
            return Reply(answer="ok", usage=_USAGE)
        costs.append(len(_TOO_LONG) // _BYTES_PER_TOKEN)
        return Reply(pieces=[_TOO_LONG[:_HALF], _TOO_LONG[_HALF:]])

    gateway = new_gateway(
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=new_model(reply=reply).url,
        history_messages="4",
        compact_percent="100",
        max_response_bytes=str(_RESPONSE_BYTES),
        limits_per_user=json.dumps([f"{_LIMIT} tokens/day"]),
    )
    gateway.start()
    refused = False
    with gateway.client() as client:
        for number in range(_MESSAGES):
            message = {"content": f"message {number}", "userId": "eve", "channelId": "desk"}
            refused = client.post("/message", json=message).status_code == 429
            if refused:
                break
            # The first two turns fit into the history.
            ended = number - 1
            eventually(lambda: gateway.output.count('"summary_') >= ended)  # noqa: B023 - called at once

    assert refused
    assert sum(costs) <= _LIMIT + max(costs)
