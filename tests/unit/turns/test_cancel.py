"""Cancelling stops a turn wherever it is, keeps what it said, and lets its session go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ToolCallPart

from torana.errors import NotFailed, NotFound
from torana.messages import Inbound
from torana.testing import ScriptedModel
from torana.tools import ToolContext

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


async def test_a_turn_that_waits_is_cancelled_at_once(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    first, second, third = [await gateway.turns.accept(message(text)) for text in ("1", "2", "3")]
    waiting = asyncio.ensure_future(gateway.turns.ended(second))
    watching = asyncio.ensure_future(gateway.watch(second))
    await asyncio.sleep(0)

    ended = await gateway.turns.cancel("gateway", second.id)

    assert (ended.state, ended.failure.code, ended.reply) == ("cancelled", "turn_cancelled", None)
    assert await waiting == ended == await gateway.turns.get("gateway", second.id)
    assert [event.type for event in await watching] == ["turn.accepted", "turn.failed"]
    for turn in (first, third):
        await gateway.agent.until(turn.content)
        gateway.agent.end(turn.content)
        assert (await gateway.turns.ended(turn)).state == "completed"


async def test_a_turn_is_cancelled_while_the_model_speaks_and_its_words_are_kept(
    boot: Boot, message: Message
) -> None:
    gateway = await boot(ScriptedModel(["As I was", " saying", asyncio.Event()], "next"))
    turn = await gateway.turns.accept(message("speak"))
    queued = await gateway.turns.accept(message("go on"))
    async for event in gateway.turns.events(turn):
        if event.data.get("text") == " saying":
            break

    ended = await gateway.turns.cancel("gateway", turn.id)

    assert (ended.state, ended.reply, ended.failure.code) == ("cancelled", "As I was saying", "turn_cancelled")
    assert (await gateway.watch(turn))[-1].type == "turn.failed"
    assert (await gateway.turns.ended(queued)).reply == "next"
    shown = [part.content for message in gateway.model.requests[1].messages for part in message.parts]
    assert shown == ["speak", "As I was saying\n\n(Cancelled here.)", "go on"]


async def test_a_turn_is_cancelled_while_a_tool_runs(boot: Boot, message: Message) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def dig() -> str:
        """Dig."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    tools = FunctionToolset[ToolContext]([dig], metadata={"permission": "allow"})
    model = ScriptedModel(["I dig. ", ToolCallPart("dig", {})], "next")
    gateway = await boot(model, tools)
    turn = await gateway.turns.accept(message())
    await begun.wait()

    ended = await gateway.turns.cancel("gateway", turn.id)

    assert stopped.is_set()
    assert (ended.state, ended.reply) == ("cancelled", "I dig. ")
    following = await gateway.turns.accept(message())
    assert (await gateway.turns.ended(following)).reply == "next"


async def test_of_a_resumed_turn_that_is_cancelled_the_settled_words_are_kept_too(
    boot: Boot, message: Message
) -> None:
    before = await boot(
        ScriptedModel(["One.", ToolCallPart("calculate", {"expression": "1"})], [asyncio.Event()])
    )
    turn = await before.turns.accept(message())
    await before.until_asked(2)
    await before.crash()
    after = await boot(ScriptedModel(["Two", asyncio.Event()]))
    async for event in after.turns.events(turn):
        if event.type == "message.delta":
            break

    assert (await after.turns.cancel("gateway", turn.id)).reply == "One.\n\nTwo"


@pytest.mark.parametrize("channel", ["home", "garage"])
async def test_of_a_turn_that_waits_to_go_on_the_settled_words_are_kept_too(
    boot: Boot, message: Message, channel: str
) -> None:
    """It waits behind a turn of its session, and else for room."""
    calls = ["One.", ToolCallPart("calculate", {"expression": "1"})]
    gateway = await boot(ScriptedModel(calls, [LookupError()], [asyncio.Event()], "next"), concurrency=1)
    turn = await gateway.turns.accept(message("count"))
    assert (await gateway.turns.ended(turn)).state == "failed"
    running = await gateway.turns.accept(message("speak", channel=channel))
    await gateway.model.asked(3)
    await gateway.turns.retry("gateway", turn.id)

    assert (await gateway.turns.cancel("gateway", turn.id)).reply == "One."

    await gateway.turns.cancel("gateway", running.id)
    await gateway.turns.ended(await gateway.turns.accept(message("and now?")))
    shown = [part.content for message in gateway.model.requests[3].messages for part in message.parts]
    assert shown[:2] == ["count", "One.\n\n(Cancelled here.)"]


async def test_cancelling_twice_at_once_is_cancelling(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    turn = await gateway.turns.accept(message("a"))
    await gateway.agent.until("a")

    both = await asyncio.gather(*(gateway.turns.cancel("gateway", turn.id) for _ in range(2)))

    assert [ended.state for ended in both] == ["cancelled", "cancelled"]


async def test_a_turn_that_ended_is_left_as_it_is(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel("done"))
    ended = await gateway.turns.ended(await gateway.turns.accept(message()))

    assert await gateway.turns.cancel("gateway", ended.id) == ended


async def test_an_unknown_turn_and_another_owners_cannot_be_cancelled(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    turn = await gateway.turns.accept(message("a", owner="ana"))

    for owner, turn_id in [("gateway", turn.id), ("ana", "turn_x")]:
        with pytest.raises(NotFound):
            await gateway.turns.cancel(owner, turn_id)
    assert (await gateway.turns.get("ana", turn.id)).state == "running"


async def test_an_end_that_is_being_written_is_not_lost_to_a_cancel(boot: Boot, message: Message) -> None:
    """At every moment around its end a turn ends once, and its session goes on."""
    gateway = await boot(obedient=True)
    for moments in range(12):
        first, second = f"{moments} first", f"{moments} second"
        turn = await gateway.turns.accept(message(first))
        queued = await gateway.turns.accept(message(second))
        await gateway.agent.until(first)
        gateway.agent.end(first)
        for _ in range(moments):
            await asyncio.sleep(0)
        ended = await gateway.turns.cancel("gateway", turn.id)
        await gateway.agent.until(second)
        gateway.agent.end(second)

        assert ended.ended
        assert ended == await gateway.turns.get("gateway", turn.id)
        assert (await gateway.turns.ended(queued)).state == "completed"


async def test_a_turn_is_cancelled_before_it_took_its_first_step(boot: Boot, message: Message) -> None:
    """An interrupt may come together with the end of the turn before."""
    gateway = await boot(obedient=True)
    for moments in range(12):
        first, second, third = (f"{moments} {name}" for name in ("first", "second", "third"))
        await gateway.turns.accept(message(first))
        queued = await gateway.turns.accept(message(second))
        await gateway.agent.until(first)
        gateway.agent.end(first)
        for _ in range(moments):
            await asyncio.sleep(0)
        urgent = await gateway.turns.accept(message(third, on_busy="interrupt"))
        for name, turn in ((second, queued), (third, urgent)):
            while name not in gateway.agent.running:
                if (await gateway.turns.get("gateway", turn.id)).ended:
                    break
            if name in gateway.agent.running:
                gateway.agent.end(name)

        assert (await gateway.turns.ended(urgent)).state == "completed"
        assert (await gateway.turns.ended(queued)).ended


async def test_a_turn_is_cancelled_while_it_waits_for_room(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True, concurrency=1)
    await gateway.turns.accept(message("1", channel="a"))
    second = await gateway.turns.accept(message("2", channel="b"))
    third = await gateway.turns.accept(message("3", channel="c"))
    await gateway.agent.until("1")
    assert second.state == "running"

    assert (await gateway.turns.cancel("gateway", second.id)).state == "cancelled"

    gateway.agent.end("1")
    await gateway.agent.until("3")
    gateway.agent.end("3")
    assert (await gateway.turns.ended(third)).state == "completed"


async def test_a_cancel_whose_caller_goes_away_is_carried_out(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a"))
    queued = await gateway.turns.accept(message("b"))
    for moments in range(1, 6):
        caller = asyncio.ensure_future(gateway.turns.cancel("gateway", queued.id))
        for _ in range(moments):
            await asyncio.sleep(0)
        caller.cancel()

    assert (await gateway.turns.ended(queued)).state == "cancelled"


async def test_only_a_failed_turn_is_run_again(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel("done", [asyncio.Event()]))
    done = await gateway.turns.ended(await gateway.turns.accept(message()))
    running = await gateway.turns.accept(message())
    queued = await gateway.turns.accept(message())
    cancelled = await gateway.turns.cancel("gateway", queued.id)

    for turn in (done, running, cancelled):
        with pytest.raises(NotFailed):
            await gateway.turns.retry("gateway", turn.id)
    for owner, turn_id in [("gateway", "turn_x"), ("ana", done.id)]:
        with pytest.raises(NotFound):
            await gateway.turns.retry(owner, turn_id)


async def test_a_retried_turn_comes_behind_what_waits(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    failing = await gateway.turns.accept(message("failing"))
    await gateway.agent.until("failing")
    gateway.agent.end("failing", LookupError("a bug"))
    await gateway.turns.ended(failing)
    await gateway.turns.accept(message("running"))
    await gateway.turns.accept(message("waiting"))

    again = await gateway.turns.retry("gateway", failing.id)

    assert (again.state, again.seq, again.failure) == ("queued", 4, None)
    for content in ("running", "waiting", "failing"):
        await gateway.agent.until(content)
        gateway.agent.end(content)
    assert (await gateway.turns.ended(again)).state == "completed"
    assert (await gateway.watch(again))[0].id == "2-1"


async def test_a_retry_whose_caller_goes_away_is_carried_out(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    turn = await gateway.turns.accept(message("a"))
    await gateway.agent.until("a")
    gateway.agent.end("a", LookupError("a bug"))
    await gateway.turns.ended(turn)

    caller = asyncio.ensure_future(gateway.turns.retry("gateway", turn.id))
    for _ in range(3):
        await asyncio.sleep(0)
    caller.cancel()

    await gateway.agent.until("a")
