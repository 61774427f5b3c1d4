"""Attacks by a model's server: endless responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import pytest

from torana.testing.openai_server import ChatRequest, OpenAIStandIn, RawReply, Reply, Rule

#: Bytes by which the gateway's memory may grow while it reads an endless response.
_GROWTH = 64_000_000

_PIECE = "x" * 65_536


@pytest.fixture
def piece_sizes() -> list[int]:
    """The sizes of the pieces that the gateway has read of the attacker's response."""
    return []


def _counting(pieces: Iterator[Any], piece_sizes: list[int]) -> Iterator[Any]:
    for piece in pieces:
        piece_sizes.append(len(piece))
        yield piece


def _events(**delta: Any) -> Iterator[bytes]:
    choice = {"index": 0, "delta": delta}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
    return repeat(f"data: {json.dumps(event)}\n\n".encode())


_CALL = {"index": 0, "id": "c", "function": {"name": "calculate", "arguments": _PIECE}}
_ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "arguments": lambda: _events(tool_calls=[_CALL]),
    "thinking": lambda: _events(reasoning_content=_PIECE),
    "refusal": lambda: _events(refusal=_PIECE),
    "line": lambda: repeat(_PIECE.encode()),
    "event": lambda: repeat(b"data: " + _PIECE.encode() + b"\n"),
}


@pytest.mark.parametrize("attack", ["text", *_ATTACKS])
def test_endless_response_fails_its_turn_in_bounded_memory(
    new_gateway: Callable[..., Any],
    new_model: Callable[..., OpenAIStandIn],
    piece_sizes: list[int],
    attack: str,
) -> None:
    def endless(request: ChatRequest) -> Reply | RawReply | str:
        if request.text != "attack":
            return "fine"
        if attack == "text":
            return Reply(pieces=_counting(repeat(_PIECE, 3_200), piece_sizes))
        return RawReply(body=_counting(_limited(_ATTACKS[attack]()), piece_sizes))

    gateway = _started(new_gateway, new_model, endless)
    with gateway.client() as client:
        assert client.post("/message", json={"content": "hello"}).json()["reply"] == "fine"
        before = gateway.process.memory_info().rss

        failed = client.post("/message", json={"content": "attack"})

        peak = gateway.process.memory_full_info().rss - before
        after = client.post("/message", json={"content": "hello"}).json()

    assert (failed.status_code, failed.json()["code"]) == (502, "model_response_too_large")
    assert "TORANA_MAX_RESPONSE_BYTES" in failed.json()["detail"]
    assert after["reply"] == "fine"
    assert sum(piece_sizes) < 100_000_000  # of over 200 MB
    assert peak < _GROWTH
    kept = sum(file.stat().st_size for file in gateway.data_dir.glob("torana.db*"))
    assert kept < 10_000_000


def test_costly_error_event_does_not_delay_other_requests(
    new_gateway: Callable[..., Any], new_model: Callable[..., OpenAIStandIn]
) -> None:
    message = "-eyJ" * 500 + "aaaaaaaa." + "b" * 1_000_000
    event = {"error": {"message": message, "type": "server_error"}}

    def fail(request: ChatRequest) -> RawReply | str:
        return (
            RawReply(body=[f"data: {json.dumps(event)}\n\n".encode()]) if request.text == "attack" else "fine"
        )

    gateway = _started(new_gateway, new_model, fail)
    with gateway.client() as client:
        client.post("/message", json={"content": "hello"})
        before = gateway.cpu_seconds()

        failed = client.post("/message", json={"content": "attack"})

    assert (failed.status_code, failed.json()["code"]) == (502, "model_failed")
    assert gateway.cpu_seconds() - before < 2


def _limited(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield more than 200 MB, so that a gateway that reads everything also ends."""
    for _ in range(3_200):
        yield next(pieces)


def _started(new_gateway: Callable[..., Any], new_model: Callable[..., OpenAIStandIn], rule: Rule) -> Any:
    model = new_model(reply=rule)
    gateway = new_gateway(model="openai-chat:stand-in", model_api_key="none", model_base_url=model.url)
    gateway.start()
    return gateway
