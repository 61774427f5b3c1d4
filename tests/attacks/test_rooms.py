"""A user joins a channel after the agent has used private data of another user there."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import Answer, Call, ChatRequest, OpenAIStandIn

_SECRETS = ("4711", "in the cellar", "call the lawyer")
_CALLS = {
    "remember": [Call("remember", {"text": "the PIN is 4711"})],
    "save": [Call("write_file", {"name": "a.txt", "text": "the key is in the cellar"})],
    "remind": [Call("schedule_once", {"text": "call the lawyer", "at": "tomorrow at 9"})],
    "look": [
        Call("recall", {"query": "PIN"}),
        Call("read_file", {"name": "a.txt"}),
        Call("list_schedules", {}),
    ],
}


def _secrets_in(request: ChatRequest) -> list[bool]:
    text = json.dumps(request.messages)
    return [secret in text for secret in _SECRETS]


def _say(client: httpx2.Client, user: str, channel: str, content: str) -> None:
    message = {"content": content, "userId": user, "channelId": channel}
    client.post("/message", json=message).raise_for_status()


def test_calls_and_results_of_one_user_alone_are_not_shown_when_another_speaks(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    def reply(request: ChatRequest) -> Answer:
        return "I keep that to myself." if request.results else _CALLS.get(request.text, "Hello.")

    model = new_model(reply=reply)
    gateway = new_gateway(model="openai-chat:stand-in", model_api_key="none", model_base_url=model.url)
    gateway.start()
    with gateway.client() as client:
        for content in ("remember", "save", "remind"):
            _say(client, "alice", "home", content)
        _say(client, "alice", "room", "look")
        assert _secrets_in(model.requests[-1]) == [True, True, True]
        for content in ("remember", "save", "remind"):
            _say(client, "alice", "workshop", content)
        assert _secrets_in(model.requests[-1]) == [True, True, True]

        for channel in ("room", "workshop"):
            _say(client, "bob", channel, "what did your tools tell you?")
            assert _secrets_in(model.requests[-1]) == [False, False, False]
