"""A user makes the model call tools with the most expensive arguments."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import psutil
from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

from torana.testing.openai_server import Answer, Call, ChatRequest, OpenAIStandIn

#: The filter follows its path of 60 names for each of 300,000 values. That takes ten times the processor time
#: that a call may use, also on a fast machine.
_COSTLY = {
    "text": "[[" + ",".join("0" * 10_000) + "]," + '{"a":' * 60 + "0" + "}" * 60 + "]",
    "path": f"$[{','.join('*' * 30)}][?$[1]{'.a' * 60}.b]",
}


def test_costly_calls_end_without_delaying_other_users(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    results: list[str] = []

    def reply(request: ChatRequest) -> Answer:
        attacks = request.text.endswith("attack")
        if request.results:
            if attacks:
                results.extend(request.results)
            return " ".join(request.results)
        if attacks:
            return [Call("query_json", _COSTLY)] * 40
        return [
            Call("query_json", {"text": '{"a": 17}', "path": "$.a"}),
            Call("calculate", {"expression": "6 * 7"}),
        ]

    model = new_model(reply=reply)
    gateway = new_gateway(model="openai-chat:stand-in", model_api_key="none", model_base_url=model.url)
    gateway.start()
    with gateway.client(timeout=300) as client, ThreadPoolExecutor(1) as pool:
        attack = pool.submit(_send, client, "mallory", "attack")
        eventually(lambda: _workers(gateway))
        answer = _send(client, "alice", "question")
        assert not attack.done()
        attack.result()

    assert "17 6 * 7 = 42" in answer.json()["reply"]
    assert len(results) == 40
    stopped = [result for result in results if "processor time" in result or "machine is busy" in result]
    not_run = [result for result in results if "at once" in result]
    assert stopped
    assert not_run
    assert len(stopped) + len(not_run) == 40, results
    eventually(lambda: _is_idle(gateway))


def test_comparisons_of_texts_do_not_compute_in_the_gateway(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    letters = string.ascii_lowercase * 7
    anagrams = ["".join(random.Random(number).sample(letters, len(letters))) for number in range(260)]
    remove = Call("remove_from_list", {"name": "shopping", "entries": anagrams[250:]})
    answers: dict[str, Answer] = {
        "prepare": [Call("add_to_list", {"name": "shopping", "entries": anagrams[:250]})],
        "attack": [remove] * 20,
    }

    def reply(request: ChatRequest) -> Answer:
        return " ".join(request.results)[:1_000] if request.results else answers[request.text]

    model = new_model(reply=reply)
    gateway = new_gateway(model="openai-chat:stand-in", model_api_key="none", model_base_url=model.url)
    gateway.start()
    with gateway.client(timeout=300) as client:
        _send(client, "mallory", "prepare")
        before = gateway.process.cpu_times().user
        assert "Not on your shopping list" in _send(client, "mallory", "attack").json()["reply"]
        own = gateway.process.cpu_times().user - before
        others = sum(worker.cpu_times().user for worker in _workers(gateway))

    assert others > 2 * own


def _send(client: httpx2.Client, user: str, content: str) -> httpx2.Response:
    body: dict[str, Any] = {"content": content, "userId": user, "channel": user}
    return client.post("/message", json=body).raise_for_status()


def _workers(gateway: GatewayProcess) -> list[psutil.Process]:
    return [child for child in gateway.process.children() if "program.py" in " ".join(child.cmdline())]


def _is_idle(gateway: GatewayProcess) -> bool:
    """Return whether the gateway and its processes use less than a tenth of a processor."""
    before = gateway.cpu_seconds()
    time.sleep(1)
    return gateway.cpu_seconds() - before < 0.1
