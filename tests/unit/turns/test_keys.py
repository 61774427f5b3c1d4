"""A message sent again with its idempotency key returns the same turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ToolCallPart

from torana.errors import KeyReused, SessionBusy
from torana.messages import Inbound, Turn
from torana.store.engine.database import Connection
from torana.store.rows.shared_turns import list_interrupted
from torana.testing import ScriptedModel
from torana.tools import ToolContext
from torana.turns import Turns

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@dataclass
class Digging:
    """A tool that runs until it is cancelled, and then until ``tidy`` is set."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    tidy: asyncio.Event = field(default_factory=asyncio.Event)

    async def dig(self) -> str:
        """Dig."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
            await self.tidy.wait()
        return "never"

    def toolset(self) -> FunctionToolset[ToolContext]:
        return FunctionToolset[ToolContext]([self.dig], metadata={"permission": "allow"})


async def test_key_returns_the_same_turn_after_its_end_and_a_crash(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    once = message("a", channel=None, key="k")
    assert await gateway.turns.reader.find_by_key(once) is None
    turn = await gateway.turns.accept(once)
    assert (await gateway.turns.reader.find_by_key(once)).id == (await gateway.turns.accept(once)).id == turn.id
    await gateway.agent.until("a")
    await gateway.crash()

    gateway = await boot(obedient=True)
    assert (await gateway.turns.reader.find_by_key(once)).id == turn.id
    await gateway.agent.until("a")
    gateway.agent.end("a")
    ended = await gateway.turns.reader.wait_for_end(turn)

    assert await gateway.turns.reader.find_by_key(once) == ended
    assert await gateway.turns.accept(once) == ended
    assert gateway.agent.running == {}


async def test_concurrent_identical_requests_create_one_turn(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)

    turns = await asyncio.gather(*(gateway.turns.accept(message("a", key="k")) for _ in range(5)))
    await gateway.agent.until("a")
    gateway.agent.end("a")
    ended = await asyncio.gather(*(gateway.turns.reader.wait_for_end(turn) for turn in turns))

    assert len({turn.id for turn in turns}) == 1
    assert [turn.reply for turn in ended] == ["done"] * 5
    assert (await gateway.turns.accept(message("b"))).seq == 2


@pytest.mark.parametrize(
    "other",
    [{"content": "b"}, {"channel": "b"}, {"user": "b"}, {"on_busy": "steer"}],
    ids=lambda other: next(iter(other)),
)
async def test_key_with_a_different_message_is_refused(
    boot: Boot, message: Message, other: dict[str, Any]
) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a", key="k"))
    second = message(**{"content": "a", "key": "k", **other})

    for ask in (gateway.turns.reader.find_by_key, gateway.turns.accept):
        with pytest.raises(KeyReused):
            await ask(second)
    assert (await gateway.turns.accept(message("c"))).seq == 2


async def test_key_is_valid_for_a_day(boot: Boot, message: Message) -> None:
    now = NOON
    gateway = await boot(obedient=True, clock=lambda: now)
    first = await gateway.turns.accept(message("a", key="k"))
    now = NOON + timedelta(hours=23, minutes=59)
    assert (await gateway.turns.accept(message("a", key="k"))).id == first.id
    now = NOON + timedelta(days=1)

    assert await gateway.turns.reader.find_by_key(message("other", key="k")) is None
    second = await gateway.turns.accept(message("other", key="k"))
    now = NOON - timedelta(hours=2)  # the clock was set back

    assert (await gateway.turns.reader.find_by_key(message("other", key="k"))).id == second.id != first.id


async def test_keys_are_separate_for_each_owner(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    hers = await gateway.turns.accept(message("a", key="k", owner="ana"))
    his = await gateway.turns.accept(message("b", key="k", owner="bob"))

    assert hers.id != his.id
    assert (await gateway.turns.reader.find_by_key(message("a", key="k", owner="ana"))).id == hers.id


async def test_key_returns_a_failed_turn_without_running_it(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    once = message("a", key="k")
    turn = await gateway.turns.accept(once)
    await gateway.agent.until("a")
    gateway.agent.end("a", LookupError("a bug"))
    ended = await gateway.turns.reader.wait_for_end(turn)

    assert await gateway.turns.reader.find_by_key(once) == ended
    assert gateway.agent.running == {}


async def test_refused_message_does_not_bind_its_key(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a"))
    with pytest.raises(SessionBusy):
        await gateway.turns.accept(message("b", key="k", on_busy="reject"))

    assert await gateway.turns.reader.find_by_key(message("anything", key="k")) is None


async def test_message_without_key_is_not_found(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a"))

    assert await gateway.turns.reader.find_by_key(message("a")) is None


@pytest.mark.parametrize(
    "name", [{"key": "k"}, {"account": "chat", "message": "7"}], ids=["a key", "a platform's message"]
)
async def test_control_word_with_a_key_runs_once(boot: Boot, message: Message, name: dict[str, str]) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a"))
    await gateway.agent.until("a")
    stop = replace(message("/stop"), **name)
    first = await gateway.turns.submit(stop)
    await gateway.turns.accept(message("b"))
    await gateway.agent.until("b")

    again = await gateway.turns.submit(stop)

    assert (first.turn.reply, again.turn, first.new, again.new) == ("Stopped.", first.turn, True, False)
    assert set(gateway.agent.running) == {"b"}


async def test_end_of_a_control_word_is_reported_once(
    open_turns: Callable[..., Turns], message: Message
) -> None:
    told: list[Turn] = []
    turns = open_turns(ended=told.append)
    word = message("/status", key="k")

    turn = await turns.accept(word)
    await turns.accept(word)

    assert told == [turn]


async def test_control_word_with_a_used_key_is_refused(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a", key="k"))
    await gateway.agent.until("a")

    with pytest.raises(KeyReused):
        await gateway.turns.accept(message("/stop", key="k"))

    assert set(gateway.agent.running) == {"a"}


async def test_control_word_completes_after_caller_disconnects_and_gateway_stops(
    boot: Boot, message: Message
) -> None:
    digging = Digging()
    gateway = await boot(ScriptedModel([ToolCallPart("dig", {})]), digging.toolset())
    turn = await gateway.turns.accept(message())
    await digging.begun.wait()
    caller = asyncio.ensure_future(gateway.turns.submit(message("/stop", key="k")))
    await digging.stopped.wait()
    caller.cancel()
    stopping = asyncio.ensure_future(gateway.turns.stop(grace=60))
    await asyncio.sleep(0)
    digging.tidy.set()
    await stopping
    gateway.database.close()

    gateway = await boot(obedient=True)

    assert (await gateway.turns.reader.get("gateway", turn.id)).state == "cancelled"
    assert (await gateway.turns.reader.find_by_key(message("/stop", key="k"))).reply == "Stopped."


async def test_stop_word_that_is_repeated_after_a_crash_stops_no_later_turn(
    boot: Boot, message: Message
) -> None:
    digging = Digging()
    gateway = await boot(ScriptedModel([ToolCallPart("dig", {})]), digging.toolset())
    first = await gateway.turns.accept(message("a"))
    await digging.begun.wait()
    await gateway.turns.accept(message("b"))
    stop = message("/stop", key="k")
    caller = asyncio.ensure_future(gateway.turns.submit(stop))
    await digging.stopped.wait()
    await gateway.crash()

    gateway = await boot(obedient=True)
    await gateway.agent.until("b")
    again = await gateway.turns.submit(stop)

    assert (again.turn.reply, again.new) == ("Stopped.", False)
    assert (await gateway.turns.reader.get("gateway", first.id)).state == "cancelled"
    assert set(gateway.agent.running) == {"b"}
    digging.tidy.set()
    await asyncio.wait([caller])


async def test_gateway_stop_does_not_wait_for_a_control_word(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    turn = await gateway.turns.accept(message("a"))
    await gateway.agent.until("a")
    go_on = threading.Event()

    def read(_: Connection) -> bool:
        return go_on.wait(30)

    reading = asyncio.ensure_future(gateway.database.run(read))
    caller = asyncio.ensure_future(gateway.turns.submit(message("/stop", key="k")))
    await asyncio.sleep(0)  # the message is being looked up
    stopping = asyncio.ensure_future(gateway.turns.stop(grace=0))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(reading, stopping)

    assert (await caller).turn.reply == "Stopped."
    # The next start ends the turn as cancelled.
    left = await gateway.database.run(list_interrupted)
    assert [one.id for one in left] == [turn.id]
