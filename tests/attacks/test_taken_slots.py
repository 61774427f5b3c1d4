"""Users occupy all running turns with messages that the model answers slowly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import Answer, ChatRequest, OpenAIStandIn, RawReply

_CONCURRENCY = 20
_USERS = ("eve", "mallory", "trudy")
#: Seconds to wait for the slow turns.
_PATIENCE = 20


def test_user_without_a_running_turn_does_not_wait_for_slow_turns_of_others(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    begun = threading.Semaphore(0)
    over = threading.Event()

    def think() -> Iterator[bytes]:
        begun.release()
        over.wait(2 * _PATIENCE)
        yield b""

    def reply(request: ChatRequest) -> Answer | RawReply:
        is_slow = "slow" in request.model_dump_json(include={"messages"})
        return RawReply(body=think()) if is_slow else "done"

    gateway = new_gateway(
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=new_model(reply=reply).url,
        concurrency=str(_CONCURRENCY),
    )
    gateway.start()
    later = {"Prefer": "respond-async"}
    with gateway.client(timeout=_PATIENCE) as client:
        try:
            for _ in range(_CONCURRENCY):
                for user in _USERS:
                    message = {"content": "slow", "userId": user}
                    client.post("/message", json=message, headers=later).raise_for_status()
            for _ in range(_CONCURRENCY - 2):
                assert begun.acquire(timeout=_PATIENCE)
            answer = client.post("/message", json={"content": "hello", "userId": "ana"}).json()
        finally:
            over.set()

    assert answer["reply"] == "done"
