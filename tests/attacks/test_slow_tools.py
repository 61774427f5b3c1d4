"""A user makes the model call tools that take long, many at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx2
import psutil
from tests.attacks.conftest import GatewayProcess
from tests.attacks.scripts import install_script
from tests.parts import require
from tests.waiting import eventually

from torana.testing.openai_server import Answer, Call, ChatRequest, OpenAIStandIn

NewGateway = Callable[..., GatewayProcess]
NewModel = Callable[..., OpenAIStandIn]

#: A character that normalisation makes eighteen of.
_LIGATURE = "\ufdfa"
_CALLS = 12
#: The number of measurements of the threads before the other user searches.
_LOOKS = 20
#: Seconds that a request may wait. The searches of one call take one second.
_LONGEST_STALL = 3.0
#: More threads than a user's search may take, and fewer than the shared threads of the smallest machine.
_FEW_THREADS = 3

_SCRIPT = """
import sys, time
time.sleep(float(sys.argv[1]))
print("slept", sys.argv[1])
"""


def test_searches_of_a_long_conversation_occupy_one_thread(
    new_gateway: NewGateway, new_model: NewModel
) -> None:
    about = {"about": "nothing", "count": 50}
    with _attacked(new_gateway, new_model, [Call("earlier_messages", about)] * _CALLS) as (gateway, client):
        for number in range(12):
            _send(client, "mallory", f"{number} {_LIGATURE * 9_990}")
        _check_threads(gateway, client)


def test_searches_of_long_schedules_do_not_stop_the_gateway(
    new_gateway: NewGateway, new_model: NewModel
) -> None:
    schedule = Call("schedule_once", {"text": _LIGATURE * 2_000, "at": "in 300 days"})
    cancel = [Call("cancel_schedule", {"which": "nothing"})] * _CALLS
    with _attacked(new_gateway, new_model, cancel, prepare=[schedule] * 50) as (gateway, client):
        assert "Scheduled" in _send(client, "mallory", "prepare").json()["reply"]
        with ThreadPoolExecutor(1) as pool, gateway.client() as other:
            attack = pool.submit(_send, client, "mallory", "attack")
            answered = [time.monotonic()]
            while not wait([attack], timeout=0.1).done:
                other.get("/health").raise_for_status()
                answered.append(time.monotonic())
            attack.result()
        assert max(after - before for before, after in pairwise(answered)) < _LONGEST_STALL


def test_searches_of_crowded_memories_occupy_one_thread(new_gateway: NewGateway, new_model: NewModel) -> None:
    with _attacked(new_gateway, new_model, [Call("forget", {"query": "x"})] * _CALLS) as (gateway, client):
        for number in range(100):
            _remember(client, "mallory", " ".join(f"p{number}n{other}'s x" for other in range(200)))
        _check_threads(gateway, client)


def test_search_for_similar_words_does_not_stop_the_gateway(
    new_gateway: NewGateway, new_model: NewModel
) -> None:
    query = {"query": f"{'zz ' * 6_000}nothing", "every_word": True}
    with _attacked(new_gateway, new_model, [Call("recall", query)] * _CALLS) as (gateway, client):
        for number in range(100):
            _remember(client, "mallory", f"{number} {_LIGATURE * 1_100} zz")
        _check_threads(gateway, client)


def test_long_lists_delay_no_other_user(new_gateway: NewGateway, new_model: NewModel) -> None:
    entries = [f"{number:x}" for number in range(2_500)]  # more values in an event are refused
    remove = Call("remove_from_list", {"name": "shopping", "entries": entries})
    write = Call("write_file", {"name": "lists/shopping.txt", "text": "a\nb\n" * 45_000})
    with _attacked(new_gateway, new_model, [remove] * 3, prepare=[write]) as (_, client):
        assert "Saved" in _send(client, "mallory", "prepare").json()["reply"]
        with ThreadPoolExecutor(1) as pool:
            attack = pool.submit(_send, client, "mallory", "attack")
            assert "Added" in _send(client, "alice", "add").json()["reply"]
            assert "at most 500 entries" in attack.result().json()["reply"]


def test_scripts_of_one_user_leave_slots_for_others(new_gateway: NewGateway, new_model: NewModel) -> None:
    require("bwrap", "bubblewrap")
    with _attacked(new_gateway, new_model, [_script("3")] * 8) as (gateway, client):
        install_script(client, _SCRIPT)
        with ThreadPoolExecutor(1) as pool:
            attack = pool.submit(_send, client, "mallory", "attack")
            eventually(lambda: _sandboxes(gateway))
            assert "slept 0" in _send(client, "alice", "script").json()["reply"]
            assert not attack.done()
            assert "slept 3" in attack.result().json()["reply"]


@contextmanager
def _attacked(
    new_gateway: NewGateway, new_model: NewModel, attack: Answer, **answers_by_text: Answer
) -> Generator[tuple[GatewayProcess, httpx2.Client]]:
    """Yield a started gateway whose model makes the calls of ``attack`` for the message "attack".

    ``answers_by_text`` are its answers to other messages.
    """

    def reply(request: ChatRequest) -> Answer:
        if request.results:
            return " ".join(request.results)[:1_000]
        answers: dict[str, Answer] = {
            "attack": attack,
            "recall": [Call("recall", {"query": "cat"})],
            "script": [_script("0")],
            "add": [Call("add_to_list", {"name": "shopping", "entries": ["milk"]})],
            **answers_by_text,
        }
        return answers.get(request.text, "noted")

    model = new_model(reply=reply)
    gateway = new_gateway(model="openai-chat:stand-in", model_api_key="none", model_base_url=model.url)
    gateway.start()
    with gateway.client(timeout=300) as client:
        yield gateway, client


def _script(seconds: str) -> Call:
    return Call("run_skill_script", {"slug": "attack", "script": "scripts/attack.py", "arguments": [seconds]})


def _send(client: httpx2.Client, user: str, content: str) -> httpx2.Response:
    body: dict[str, Any] = {"content": content, "userId": user, "channelId": user}
    return client.post("/message", json=body).raise_for_status()


def _remember(client: httpx2.Client, user: str, text: str) -> None:
    client.post(f"/v1/users/{user}/memories", json={"text": text[:2_000]}).raise_for_status()


def _check_threads(gateway: GatewayProcess, client: httpx2.Client) -> None:
    """Check that the attack occupies few threads, and that another user's search is answered meanwhile."""
    _remember(client, "alice", "My cat is called Mina")
    calm = gateway.process.num_threads()
    with ThreadPoolExecutor(1) as pool:
        attack = pool.submit(_send, client, "mallory", "attack")
        threads = [calm]
        while not wait([attack], timeout=0.02).done:
            threads.append(gateway.process.num_threads())
            if len(threads) == _LOOKS:
                assert "Mina" in _send(client, "alice", "recall").json()["reply"]
        attack.result()
    assert max(threads) <= calm + _FEW_THREADS


def _sandboxes(gateway: GatewayProcess) -> list[psutil.Process]:
    return [child for child in gateway.process.children(recursive=True) if child.name() == "bwrap"]
