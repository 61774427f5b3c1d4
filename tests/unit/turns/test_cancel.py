"""A cancellation stops a turn at any point, stores its partial reply, and lets its session continue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ToolCallPart

from torana.errors import NotFailed, NotFound
from torana.messages import Inbound, Turn
from torana.testing import ScriptedModel
from torana.tools import ToolContext
from torana.turns import Runner

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


async def test_queued_turn_is_cancelled_at_once(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    first, second, third = [await gateway.turns.accept(message(text)) for text in ("1", "2", "3")]
    waiting = asyncio.ensure_future(gateway.turns.reader.wait_for_end(second))
    watching = asyncio.ensure_future(gateway.watch(second))
    await asyncio.sleep(0)

    ended = await gateway.turns.cancel("gateway", second.id)

    assert (ended.state, ended.failure.code, ended.reply) == ("cancelled", "turn_cancelled", None)
    assert await waiting == ended == await gateway.turns.reader.get("gateway", second.id)
    assert [event.type for event in await watching] == ["turn.accepted", "turn.failed"]
    for turn in (first, third):
        await gateway.agent.until(turn.content)
        gateway.agent.end(turn.content)
        assert (await gateway.turns.reader.wait_for_end(turn)).state == "completed"


async def test_turn_cancelled_while_streaming_keeps_its_partial_reply(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel(["As I was", " saying", asyncio.Event()], "next"))
    turn = await gateway.turns.accept(message("speak"))
    queued = await gateway.turns.accept(message("go on"))
    async for event in gateway.turns.reader.events(turn):
        if event.data.get("text") == " saying":
            break

    ended = await gateway.turns.cancel("gateway", turn.id)

    assert (ended.state, ended.reply, ended.failure.code) == ("cancelled", "As I was saying", "turn_cancelled")
    assert (await gateway.watch(turn))[-1].type == "turn.failed"
    assert (await gateway.turns.reader.wait_for_end(queued)).reply == "next"
    shown = [part.content for message in gateway.model.requests[1].messages for part in message.parts]
    assert shown == ["speak", "As I was saying\n\n(Cancelled at this point.)", "go on"]


async def test_turn_is_cancelled_while_a_tool_runs(boot: Boot, message: Message) -> None:
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
    assert (await gateway.turns.reader.wait_for_end(following)).reply == "next"


async def test_resumed_turn_that_is_cancelled_keeps_its_settled_text(boot: Boot, message: Message) -> None:
    before = await boot(
        ScriptedModel(["One.", ToolCallPart("calculate", {"expression": "1"})], [asyncio.Event()])
    )
    turn = await before.turns.accept(message())
    await before.until_asked(2)
    await before.crash()
    after = await boot(ScriptedModel(["Two", asyncio.Event()]))
    async for event in after.turns.reader.events(turn):
        if event.type == "message.delta":
            break

    assert (await after.turns.cancel("gateway", turn.id)).reply == "One.\n\nTwo"


@pytest.mark.parametrize("channel", ["home", "garage"])
async def test_retried_turn_cancelled_while_waiting_keeps_its_settled_text(
    boot: Boot, message: Message, channel: str
) -> None:
    """It waits behind a turn of its session, or for a free slot."""
    calls = ["One.", ToolCallPart("calculate", {"expression": "1"})]
    gateway = await boot(ScriptedModel(calls, [LookupError()], [asyncio.Event()], "next"), concurrency=1)
    turn = await gateway.turns.accept(message("count"))
    assert (await gateway.turns.reader.wait_for_end(turn)).state == "failed"
    running = await gateway.turns.accept(message("speak", channel=channel))
    await gateway.model.asked(3)
    await gateway.turns.retry("gateway", turn.id)

    assert (await gateway.turns.cancel("gateway", turn.id)).reply == "One."

    await gateway.turns.cancel("gateway", running.id)
    await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("and now?")))
    shown = [part.content for message in gateway.model.requests[3].messages for part in message.parts]
    assert shown[:2] == ["count", "One.\n\n(Cancelled at this point.)"]


async def test_turn_cancelled_between_its_claim_and_its_start_does_not_run(
    boot: Boot, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    gateway = await boot(ScriptedModel([LookupError()], [gate, "one"], [asyncio.Event()]))
    failed = await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message()))
    await gateway.turns.accept(message("other"))
    again = await gateway.turns.retry(failed.owner, failed.id)
    adopt = Runner.adopt
    cancelling: asyncio.Future[asyncio.Task[Turn]] = asyncio.get_running_loop().create_future()

    async def cancel_and_adopt(runner: Runner, turn: Turn) -> None:
        task = asyncio.create_task(gateway.turns.cancel(turn.owner, turn.id))
        cancelling.set_result(task)
        await gateway.look()  # the cancellation is stored
        await adopt(runner, turn)

    monkeypatch.setattr(Runner, "adopt", cancel_and_adopt)
    gate.set()
    cancelled = await (await cancelling)

    assert (cancelled.id, cancelled.state) == (again.id, "cancelled")
    assert len(gateway.model.requests) == 2


async def test_concurrent_cancellations_both_return_the_cancelled_turn(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    turn = await gateway.turns.accept(message("a"))
    await gateway.agent.until("a")

    both = await asyncio.gather(*(gateway.turns.cancel("gateway", turn.id) for _ in range(2)))

    assert [ended.state for ended in both] == ["cancelled", "cancelled"]


async def test_cancelling_an_ended_turn_changes_nothing(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel("done"))
    ended = await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message()))

    assert await gateway.turns.cancel("gateway", ended.id) == ended


async def test_unknown_turns_and_turns_of_other_owners_cannot_be_cancelled(
    boot: Boot, message: Message
) -> None:
    gateway = await boot(obedient=True)
    turn = await gateway.turns.accept(message("a", owner="ana"))

    for owner, turn_id in [("gateway", turn.id), ("ana", "turn_x")]:
        with pytest.raises(NotFound):
            await gateway.turns.cancel(owner, turn_id)
    assert (await gateway.turns.reader.get("ana", turn.id)).state == "running"


async def test_turn_ends_once_when_cancelled_around_its_end(boot: Boot, message: Message) -> None:
    """Wherever a cancellation falls around its end, the turn ends once and its session continues."""
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

        assert ended.has_ended
        assert ended == await gateway.turns.reader.get("gateway", turn.id)
        assert (await gateway.turns.reader.wait_for_end(queued)).state == "completed"


async def test_interrupt_at_the_end_of_a_turn_cancels_the_next_one(boot: Boot, message: Message) -> None:
    """An interrupt may coincide with the end of the previous turn."""
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
                if (await gateway.turns.reader.get("gateway", turn.id)).has_ended:
                    break
            if name in gateway.agent.running:
                gateway.agent.end(name)

        assert (await gateway.turns.reader.wait_for_end(urgent)).state == "completed"
        assert (await gateway.turns.reader.wait_for_end(queued)).has_ended


async def test_turn_is_cancelled_while_it_waits_for_a_slot(boot: Boot, message: Message) -> None:
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
    assert (await gateway.turns.reader.wait_for_end(third)).state == "completed"


async def test_cancellation_completes_after_its_caller_disconnects(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("a"))
    queued = await gateway.turns.accept(message("b"))
    for moments in range(1, 6):
        caller = asyncio.ensure_future(gateway.turns.cancel("gateway", queued.id))
        for _ in range(moments):
            await asyncio.sleep(0)
        caller.cancel()

    assert (await gateway.turns.reader.wait_for_end(queued)).state == "cancelled"


async def test_only_failed_turns_can_be_retried(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel("done", [asyncio.Event()]))
    done = await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message()))
    running = await gateway.turns.accept(message())
    queued = await gateway.turns.accept(message())
    cancelled = await gateway.turns.cancel("gateway", queued.id)

    for turn in (done, running, cancelled):
        with pytest.raises(NotFailed):
            await gateway.turns.retry("gateway", turn.id)
    for owner, turn_id in [("gateway", "turn_x"), ("ana", done.id)]:
        with pytest.raises(NotFound):
            await gateway.turns.retry(owner, turn_id)


async def test_retried_turn_runs_after_queued_turns(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    failing = await gateway.turns.accept(message("failing"))
    await gateway.agent.until("failing")
    gateway.agent.end("failing", LookupError("a bug"))
    await gateway.turns.reader.wait_for_end(failing)
    await gateway.turns.accept(message("running"))
    await gateway.turns.accept(message("waiting"))

    again = await gateway.turns.retry("gateway", failing.id)

    assert (again.state, again.seq, again.failure) == ("queued", 4, None)
    for content in ("running", "waiting", "failing"):
        await gateway.agent.until(content)
        gateway.agent.end(content)
    assert (await gateway.turns.reader.wait_for_end(again)).state == "completed"
    assert (await gateway.watch(again))[0].id == "2-1"


async def test_retry_completes_after_its_caller_disconnects(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    turn = await gateway.turns.accept(message("a"))
    await gateway.agent.until("a")
    gateway.agent.end("a", LookupError("a bug"))
    await gateway.turns.reader.wait_for_end(turn)

    caller = asyncio.ensure_future(gateway.turns.retry("gateway", turn.id))
    for _ in range(3):
        await asyncio.sleep(0)
    caller.cancel()

    await gateway.agent.until("a")
