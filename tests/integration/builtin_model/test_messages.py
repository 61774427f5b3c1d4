"""The builtin model answers ordinary messages of people: `messages.toml` lists them with the wanted answers."""

from __future__ import annotations

import re
import shutil
import time
import tomllib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from torana.app import build
from torana.config import load

#: About twelve seconds of processor time; tests/unit/models/builtin covers the rules in the fast tier.
pytestmark = pytest.mark.long

#: The wanted share of all messages that get a useful answer.
USEFUL_SHARE = 0.79
#: Maximum characters of an answer, unless the message asks for the whole list.
LONGEST = 600


@dataclass(frozen=True, slots=True)
class Example:
    """A message, the messages before it, and the wanted answer."""

    say: str
    want: str
    before: list[str] = field(default_factory=list[str])
    useful: bool = True
    long: bool = False

    def matches(self, answer: str) -> bool:
        """Return whether an answer is the wanted one. The fallback is never a useful answer."""
        fallback = "none of them fits" in answer
        return bool(re.search(self.want, answer, re.IGNORECASE)) and not (self.useful and fallback)


EXAMPLES = [
    Example(**entry)
    for entry in tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))["message"]
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(
    tmp_path_factory: pytest.TempPathFactory, empty_database: Path
) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of a gateway with the builtin model and without limits."""
    directory = tmp_path_factory.mktemp("builtin")
    shutil.copy(empty_database, directory)
    settings: dict[str, Any] = {"rate_per_user": 0, "rate_global": 0, "data_dir": directory, "model": "builtin"}
    environ = {f"TORANA_{name.upper()}": str(value) for name, value in settings.items()}
    app = build(
        load(flags={}, environ=environ, cwd=directory, user_dir=directory), started=time.monotonic(), model=None
    )
    await app.start()
    transport = httpx2.ASGITransport(app=app.asgi)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:18789") as client:
        yield client
    await app.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answers(client: httpx2.AsyncClient) -> list[str]:
    """The answer to each example, each sent by another user in a channel of its own."""
    return [
        await _converse(client, example, user=f"person-{number}") for number, example in enumerate(EXAMPLES)
    ]


async def _converse(client: httpx2.AsyncClient, example: Example, *, user: str) -> str:
    answer = ""
    for text in [*example.before, example.say]:
        response = await client.post("/message", json={"content": text, "userId": user, "channelId": user})
        assert response.status_code == 200, response.text
        answer = response.json()["reply"]
    return answer


@pytest.mark.asyncio(loop_scope="module")
async def test_most_ordinary_messages_get_a_useful_answer(answers: list[str]) -> None:
    useful = [example for example, answer in _pairs(answers) if example.useful and example.matches(answer)]

    assert len(EXAMPLES) >= 200
    assert len(useful) / len(EXAMPLES) >= USEFUL_SHARE


@pytest.mark.asyncio(loop_scope="module")
async def test_no_answer_is_wrong(answers: list[str]) -> None:
    wrong = {example.say: answer for example, answer in _pairs(answers) if not example.matches(answer)}

    assert wrong == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_answers_are_short_unless_the_message_asks_for_a_list(answers: list[str]) -> None:
    long = {
        example.say: len(answer)
        for example, answer in _pairs(answers)
        if not example.long and len(answer) > LONGEST
    }

    assert long == {}


def _pairs(answers: list[str]) -> list[tuple[Example, str]]:
    return list(zip(EXAMPLES, answers, strict=True))
