"""The throttle limits long messages and frequent messages of an MCP server."""

from __future__ import annotations

import asyncio

import pytest

from torana.tools.mcp.throttle import MESSAGE_LIMIT, VALUES_LIMIT, Throttle


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were requested; none takes time."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return made


async def test_few_short_messages_are_not_delayed(pauses: list[float]) -> None:
    throttle = Throttle()
    for _ in range(100):
        await throttle.spend(200)

    assert pauses == []


async def test_many_short_messages_are_delayed(pauses: list[float]) -> None:
    throttle = Throttle()
    for _ in range(1_000):
        await throttle.spend(200)

    assert pauses


async def test_few_large_texts_do_not_delay_other_calls_of_the_server(pauses: list[float]) -> None:
    throttle = Throttle()
    for _ in range(3):
        await throttle.spend(MESSAGE_LIMIT)

    assert pauses == []


async def test_many_large_texts_are_delayed(pauses: list[float]) -> None:
    throttle = Throttle()
    for _ in range(10):
        await throttle.spend(MESSAGE_LIMIT)

    assert pauses[-1] > 2


async def test_message_of_many_values_is_delayed(pauses: list[float]) -> None:
    await Throttle().spend(2 * VALUES_LIMIT, values=VALUES_LIMIT)

    assert pauses[0] > 1
