"""A server may say much, or often, and not both."""

from __future__ import annotations

import asyncio

import pytest

from torana.tools.mcp.throttle import MESSAGE_LIMIT, Throttle


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are made, none of which takes any time."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return made


async def test_a_few_short_messages_wait_for_nothing(pauses: list[float]) -> None:
    throttle = Throttle()
    for _ in range(100):
        await throttle.spend(200)

    assert pauses == []


async def test_many_short_messages_wait(pauses: list[float]) -> None:
    throttle = Throttle()
    for _ in range(1_000):
        await throttle.spend(200)

    assert pauses


async def test_a_message_of_the_greatest_length_waits_for_seconds(pauses: list[float]) -> None:
    await Throttle().spend(MESSAGE_LIMIT)

    assert pauses[0] > 3
