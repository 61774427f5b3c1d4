"""A token limit holds although a user stops each answer while the model thinks or writes a tool call."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import ChatRequest, OpenAIStandIn, RawReply

_LIMIT = 200_000
#: The output of one answer when it is stopped: 25,000 tokens, at four bytes a token.
_PIECES, _PIECE = 20, "word " * 1_000
_BYTES_PER_TOKEN = 4
_MESSAGES = 30
#: A text that the gateway passes on at once.
_END = "all-pieces-are-written"


def _frame(delta: dict[str, Any]) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


def _text(piece: str) -> dict[str, Any]:
    return {"content": piece}


def _thinking(piece: str) -> dict[str, Any]:
    return {"reasoning_content": piece}


def _call(piece: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}


@pytest.mark.parametrize("delta", [_text, _thinking, _call])
def test_stopped_answers_are_charged_whatever_the_model_was_writing(
    new_gateway: Callable[..., GatewayProcess],
    new_model: Callable[..., OpenAIStandIn],
    delta: Callable[[str], dict[str, Any]],
) -> None:
    costs: list[int] = []
    written = threading.Semaphore(0)
    over = threading.Event()
    opening = {"index": 0, "id": "c", "type": "function", "function": {"name": "write_file", "arguments": ""}}

    def body(request: ChatRequest) -> Iterator[bytes]:
        size = len(request.model_dump_json(include={"messages", "tools"}).encode())
        yield _frame({"tool_calls": [opening]} if delta is _call else {"role": "assistant", "content": ""})
        for _ in range(_PIECES):
            yield _frame(delta(_PIECE))
        yield _frame(_text(_END))
        costs.append((size + _PIECES * len(_PIECE) + len(_END)) // _BYTES_PER_TOKEN)
        written.release()
        over.wait(20)

    def reply(request: ChatRequest) -> RawReply:
        return RawReply(body=body(request))

    gateway = new_gateway(
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=new_model(reply=reply).url,
        max_output_tokens="32000",
        limits_per_user=json.dumps([f"{_LIMIT} tokens/day"]),
    )
    gateway.start()
    message, later = {"content": "go on", "userId": "eve"}, {"Prefer": "respond-async"}
    with gateway.client() as client:
        refused = False
        for _ in range(_MESSAGES):
            answer = client.post("/message", json=message, headers=later)
            if refused := answer.status_code == 429:
                break
            assert written.acquire(timeout=20)
            place = f"/v1/turns/{answer.json()['id']}"
            # The end arrives after all pieces.
            with client.stream("GET", f"{place}/events") as events:
                assert any(_END in line for line in events.iter_lines())
            client.post(f"{place}/cancel").raise_for_status()
        over.set()

    assert refused
    assert sum(costs) <= _LIMIT + max(costs)
