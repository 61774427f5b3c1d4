"""A user makes the model reply with Markdown that is costly to render."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from functools import partial

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.standins.telegram import ME, TelegramStandIn

from torana.testing.openai_server import ChatRequest, OpenAIStandIn

_SIZE = 20_000
_PLAIN = "word " * (_SIZE // 5)
#: The first reply loads what a connector needs.
_REPLIES = {"first": _PLAIN, "plain": _PLAIN, "brackets": "[" * _SIZE, "images": "![[" * (_SIZE // 3)}


@pytest.fixture
async def platform() -> AsyncGenerator[TelegramStandIn]:
    async with TelegramStandIn() as platform:
        yield platform


async def test_costly_replies_do_not_delay_other_users(
    platform: TelegramStandIn,
    new_gateway: Callable[..., GatewayProcess],
    new_model: Callable[..., OpenAIStandIn],
) -> None:
    begun = threading.Event()

    def reply(request: ChatRequest) -> str:
        if request.text not in _REPLIES:
            return "42"
        begun.set()
        return _REPLIES[request.text]

    settings = platform.settings()
    gateway = new_gateway(
        toml=f"""
            [connectors.telegram]
            token = "{settings["token"]}"
            api_url = "{settings["api_url"]}"
            allow = ["*"]
        """,
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=new_model(reply=reply).url,
    )
    await asyncio.to_thread(gateway.start)
    costs: dict[str, float] = {}
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as client:
        for name, text in _REPLIES.items():
            wanted = _letters(text)
            before = gateway.cpu_seconds()
            answered = asyncio.Event()
            platform.next["sendMessage"] = [partial(_wait_for, answered)]  # the first part waits for the others
            begun.clear()
            await platform.say(name, sender=name)
            assert await asyncio.to_thread(begun.wait, 60)
            answer = await client.post("/message", json={"content": "question", "userId": "alice"})
            health = await client.get("/health")
            assert answer.json()["reply"] == "42"
            assert health.json()["status"] == "ok"
            assert _delivered(platform, name) < wanted
            answered.set()
            await platform.until(partial(_is_delivered, platform, name, wanted))
            costs[name] = gateway.cpu_seconds() - before

    assert max(costs["brackets"], costs["images"]) < 10 * costs["plain"], costs


async def _wait_for(event: asyncio.Event, _request: object) -> None:
    await event.wait()


def _letters(text: str) -> int:
    return len("".join(text.split()))


def _is_delivered(platform: TelegramStandIn, name: str, wanted: int) -> bool:
    return _delivered(platform, name) == wanted


def _delivered(platform: TelegramStandIn, name: str) -> int:
    """Return the number of letters of the reply that the platform shows."""
    chat = platform.person(name)["id"]
    return sum(
        _letters(one["text"])
        for (where, _), one in platform.messages.items()
        if where == chat and one["from"] == ME
    )
