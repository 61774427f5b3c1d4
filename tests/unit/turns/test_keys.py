"""A message sent again under its key is the same turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from torana.errors import KeyReused, SessionBusy
from torana.messages import Inbound

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def test_the_same_message_under_its_key_is_the_same_turn_also_after_its_end_and_a_crash(
    boot: Boot, message: Message
) -> None:
    gateway = await boot(obedient=True)
    once = message("a", channel=None, key="k")
    assert await gateway.turns.known(once) is None
    turn = await gateway.turns.accept(once)
    assert (await gateway.turns.known(once)).id == (await gateway.turns.accept(once)).id == turn.id
    await gateway.agent.until("a")
    await gateway.crash()

    gateway = await boot(obedient=True)
    assert (await gateway.turns.known(once)).id == turn.id
    await gateway.agent.until("a")
    gateway.agent.end("a")
    ended = await gateway.turns.ended(turn)

    assert await gateway.turns.known(once) == ended
    assert await gateway.turns.accept(once) == ended
    assert gateway.agent.running == {}


async def test_identical_requests_at_the_same_instant_are_one_turn(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)

    turns = await asyncio.gather(*(gateway.turns.accept(message("a", key="k")) for _ in range(5)))
    await gateway.agent.until("a")
    gateway.agent.end("a")
    ended = await asyncio.gather(*(gateway.turns.ended(turn) for turn in turns))

    assert len({turn.id for turn in turns}) == 1
    assert [turn.reply for turn in ended] == ["done"] * 5
    assert (await gateway.turns.accept(message("b"))).seq == 2


@pytest.mark.parametrize(
    "other",
    [{"content": "b"}, {"channel": "b"}, {"user": "b"}, {"on_busy": "steer"}],
    ids=lambda other: next(iter(other)),
)
async def test_a_key_with_another_message_is_refused(
    boot: Boot, message: Message, other: dict[str, Any]
) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a", key="k"))
    second = message(**{"content": "a", "key": "k", **other})

    for ask in (gateway.turns.known, gateway.turns.accept):
        with pytest.raises(KeyReused):
            await ask(second)
    assert (await gateway.turns.accept(message("c"))).seq == 2


async def test_a_key_stands_for_a_day(boot: Boot, message: Message) -> None:
    now = NOON
    gateway = await boot(obedient=True, clock=lambda: now)
    first = await gateway.turns.accept(message("a", key="k"))
    now = NOON + timedelta(hours=23, minutes=59)
    assert (await gateway.turns.accept(message("a", key="k"))).id == first.id
    now = NOON + timedelta(days=1)

    assert await gateway.turns.known(message("other", key="k")) is None
    second = await gateway.turns.accept(message("other", key="k"))
    now = NOON - timedelta(hours=2)  # the clock was put back

    assert (await gateway.turns.known(message("other", key="k"))).id == second.id != first.id


async def test_owners_have_keys_of_their_own(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    hers = await gateway.turns.accept(message("a", key="k", owner="ana"))
    his = await gateway.turns.accept(message("b", key="k", owner="bob"))

    assert hers.id != his.id
    assert (await gateway.turns.known(message("a", key="k", owner="ana"))).id == hers.id


async def test_a_turn_that_failed_for_good_is_told_again(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    once = message("a", key="k")
    turn = await gateway.turns.accept(once)
    await gateway.agent.until("a")
    gateway.agent.end("a", LookupError("a bug"))
    ended = await gateway.turns.ended(turn)

    assert await gateway.turns.known(once) == ended
    assert gateway.agent.running == {}


async def test_a_refused_message_binds_no_key(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a"))
    with pytest.raises(SessionBusy):
        await gateway.turns.accept(message("b", key="k", on_busy="reject"))

    assert await gateway.turns.known(message("anything", key="k")) is None


async def test_a_message_without_a_key_is_known_to_nobody(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a"))

    assert await gateway.turns.known(message("a")) is None
