"""A user sends runs of combining marks, for which Unicode normalization takes quadratic time."""

from __future__ import annotations

import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import Answer, Call, ChatRequest, OpenAIStandIn, Reply

_SIZE = 20_000
_PLAIN = "ab" * (_SIZE // 2)
#: Marks of two classes in turn: a mark of one class is moved before all marks of the other.
_MARKS = "a" + "\u0301\u0323" * (_SIZE // 2)
#: The first message loads what the tools need.
_TEXTS = {"first": _PLAIN, "plain": _PLAIN, "marks": _MARKS}


def _calls(text: str) -> list[Call]:
    return [
        Call("remember", {"text": text, "subject": text}),
        Call("recall", {"query": text}),
        Call("write_file", {"name": text, "text": "x"}),
        Call("convert_units", {"value": 1, "from_unit": text, "to_unit": text}),
        Call("earlier_messages", {"about": text}),
    ]


def test_runs_of_marks_cost_as_much_as_letters_and_do_not_delay_other_users(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    begun, answered = threading.Event(), threading.Event()

    def end_when_answered() -> Iterator[str]:
        answered.wait(60)
        yield "Done."

    def reply(request: ChatRequest) -> Answer | Reply:
        if "question" in request.text:
            return "42"
        if request.results:
            assert len(request.results) == 5
            return Reply(pieces=end_when_answered())
        begun.set()
        return _calls(next(text for text in _TEXTS.values() if text[:9_000] in request.text))

    model = new_model(reply=reply)
    gateway = new_gateway(
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=model.url,
        # The texts of the calls fill a smaller window, and the request would leave out the message.
        context_window="200_000",
    )
    gateway.start()
    costs: dict[str, float] = {}
    with gateway.client(timeout=120) as client, ThreadPoolExecutor(1) as pool:
        for name, text in _TEXTS.items():
            begun.clear()
            answered.clear()
            before = gateway.cpu_seconds()
            attack = pool.submit(_send, client, name, text[:9_900])
            assert begun.wait(60)
            answer = _send(client, "alice", "question")
            assert not attack.done()
            answered.set()
            assert attack.result().json()["reply"] == "Done."
            assert answer.json()["reply"] == "42"
            costs[name] = gateway.cpu_seconds() - before

    assert costs["marks"] - costs["plain"] < 3 * _cost_of_normalization(), costs


def _cost_of_normalization() -> float:
    """Return the processor time of one quadratic normalization. Each of the calls would need at least one."""
    before = time.process_time()
    unicodedata.normalize("NFKC", _MARKS)
    return time.process_time() - before


def _send(client: httpx2.Client, user: str, content: str) -> httpx2.Response:
    body = {"content": content, "userId": user, "channelId": user}
    return client.post("/message", json=body).raise_for_status()
