"""A user retries many failed turns at once, to hold all slots and the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import ChatRequest, OpenAIStandIn, RawReply

_PER_USER, _FAILED = 4, 10


def test_retries_do_not_exceed_the_queue_of_a_user(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    is_up, over = threading.Event(), threading.Event()

    def never() -> Iterator[bytes]:
        over.wait(60)
        yield b""

    def reply(_: ChatRequest) -> RawReply:
        return RawReply(body=never()) if is_up.is_set() else RawReply(body=[b"{}"], status=500)

    gateway = new_gateway(
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=new_model(reply=reply).url,
        queue_per_user=str(_PER_USER),
        concurrency=str(_FAILED),
    )
    gateway.start()
    later = {"Prefer": "respond-async"}
    with gateway.client() as client:
        failed: list[str] = []
        for number in range(_FAILED):
            message = {"content": "hello", "userId": "eve", "channelId": f"{number}"}
            failed.append(client.post("/message", json=message, headers=later).json()["id"])
            with client.stream("GET", f"/v1/turns/{failed[-1]}/events") as events:
                assert "turn.failed" in events.read().decode()
        is_up.set()

        answers = [client.post(f"/v1/turns/{turn}/retry") for turn in failed]

        assert [answer.status_code for answer in answers] == [202] * _PER_USER + [429] * (_FAILED - _PER_USER)
        assert answers[-1].json()["code"] == "queue_full"
        live: dict[str, Any] = client.get("/v1/status").json()["turns"]
        assert sum(live.values()) == _PER_USER
        over.set()
