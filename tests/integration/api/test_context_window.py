"""Long conversations with models whose context window is small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai.models import Model
from tests.conftest import ROOT
from tests.integration.api.conftest import Gateway, Start
from tests.standins.tiny_llama import TinyLlama, write_model

from torana.models.providers import open_model
from torana.testing import Call, ChatRequest, OpenAIStandIn, ScriptedModel
from torana.testing.openai_server.wire import Answer, count_tokens

TEXTS = (
    "Tell me more about the harbour of Lisbon, and what the ships carry. ",
    "Erzähle mir mehr über den Hafen, und was die Schiffe bringen. ",
    "请告诉我更多关于港口的事情。",
    "🦜🌍 {'key': [1, 2, 3]} <tag attribute=\"value\"/> ",
)


def opened(server: OpenAIStandIn) -> Model:
    return open_model(["openai-chat:m"], environ={}, base_url=server.url, api_key=None, builtin=ScriptedModel)


def message(number: int) -> str:
    """Return the message of a turn; each seventh is longer than the window has room for."""
    return f"{number}: " + TEXTS[number % 4] * (200 if number % 7 == 6 else number % 9 + 1)


async def talk(gateway: Gateway, turns: int) -> None:
    """Have a conversation, and wait for the summaries: they need the model's server."""
    app, client = gateway
    for number in range(turns):
        sent = {"content": message(number)[:9_000], "channelId": "home", "userId": "ana"}
        answer = await client.post("/message", json=sent, timeout=120)
        assert answer.status_code == 200, answer.text
    assert app.core.compaction is not None
    await app.core.compaction.idle()


@pytest.mark.parametrize("window", [2_048, 4_096])
async def test_requests_fit_into_the_window_that_the_server_states(start: Start, window: int) -> None:
    sizes: list[int] = []

    def count(request: ChatRequest) -> int:
        sizes.append(count_tokens(request))
        return sizes[-1]

    def answer(request: ChatRequest) -> Answer:
        said = request.text.partition("\n")[0]
        return "It is noted. " * 20 if request.results or ":" not in said else [Call("current_time", {})]

    with OpenAIStandIn(reply=answer, context_window=window, tokens_of=count) as server:
        await talk(await start(opened(server)), 30)

    assert max(sizes) < window
    assert max(sizes) > window // 2


async def test_window_of_the_settings_is_used_without_asking(start: Start) -> None:
    with OpenAIStandIn(reply=lambda _: "It is noted. " * 20, context_window=4_096) as server:
        await talk(await start(opened(server), context_window=3_000), 20)

        assert max(map(count_tokens, server.requests)) < 3_000


async def test_smaller_window_than_known_costs_one_refused_request(start: Start) -> None:
    with OpenAIStandIn(reply=lambda _: "It is noted. " * 20, context_window=2_048) as server:
        await talk(await start(opened(server), context_window=100_000), 20)

        refused = [asked for asked in server.requests if count_tokens(asked) >= 2_048]
        assert len(refused) == 1


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model of random weights, whose tokenizer knows the words of the documentation."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path, [page.read_text("utf-8") for page in sorted((ROOT / "docs").rglob("*.md"))])
    yield path
    path.unlink()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_real_engine_answers_200_turns_within_2048_tokens(start: Start, tiny_model: Path) -> None:
    llama = TinyLlama(path=tiny_model, window=2_048)
    sizes: list[int] = []

    def count(request: ChatRequest) -> int:
        sizes.append(llama.tokens_of(request))
        return sizes[-1]

    with OpenAIStandIn(reply=llama.reply, context_window=2_048, tokens_of=count) as server:
        await talk(await start(opened(server)), 200)

    assert max(sizes) < 2_048
    assert max(sizes) > 1_024
