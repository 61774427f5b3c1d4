"""A message to a busy session waits, steers, interrupts or is rejected, as `on_busy` says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart

from torana.errors import ModelFailed, SessionBusy
from torana.messages import Inbound, OnBusy, Usage
from torana.store.rows import turns as rows
from torana.store.rows.turns import NewTurn
from torana.testing import ScriptedModel

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


async def test_reject_mode_refuses_messages_to_a_busy_session(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    first = await gateway.turns.accept(message("1", on_busy="reject"))
    await gateway.agent.until("1")
    with pytest.raises(SessionBusy):
        await gateway.turns.accept(message("2", on_busy="reject"))
    elsewhere = await gateway.turns.accept(message("3", channel="elsewhere", on_busy="reject"))
    gateway.agent.end("1")
    await gateway.turns.reader.wait_for_end(first)

    after = await gateway.turns.accept(message("4", on_busy="reject"))

    assert (first.state, elsewhere.state, after.state, after.seq) == ("running", "running", "running", 2)


async def test_interrupt_cancels_running_turn_and_precedes_queued_ones(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    running = await gateway.turns.accept(message("1", user="ana"))
    waiting = await gateway.turns.accept(message("2", user="ana"))
    await gateway.agent.until("1")
    gateway.agent.say("1", "half a")

    urgent = await gateway.turns.accept(message("3", user="ana", on_busy="interrupt"))
    await gateway.agent.until("3")
    gateway.agent.end("3")
    await gateway.agent.until("2")
    gateway.agent.end("2")

    ended = await gateway.turns.reader.wait_for_end(running)
    assert (ended.state, ended.reply) == ("cancelled", "half a")
    assert [(await gateway.turns.reader.wait_for_end(turn)).state for turn in (urgent, waiting)] == [
        "completed"
    ] * 2


async def test_interrupt_accepted_before_a_crash_cancels_the_turn_that_ran(
    boot: Boot, message: Message
) -> None:
    gateway = await boot(obedient=True)
    failed = await gateway.turns.accept(message("failed"))
    await gateway.agent.until("failed")
    gateway.agent.end("failed", ModelFailed())
    await gateway.turns.reader.wait_for_end(failed)
    running = await gateway.turns.accept(message("running"))
    await gateway.agent.until("running")
    retried = await gateway.turns.retry("gateway", failed.id)
    new = NewTurn(turn_id="turn_u", session_id="ses_u", channel=running.channel, at=running.created_at)
    urgent = message("urgent", on_busy="interrupt")
    await gateway.database.run(partial(rows.accept, inbound=urgent, new=new, hold=False))
    await gateway.crash()

    gateway = await boot(obedient=True)
    for content in ("urgent", "failed"):
        await gateway.agent.until(content)
        gateway.agent.end(content)

    ended = [await gateway.turns.reader.wait_for_end(turn) for turn in (running, retried)]
    assert [turn.state for turn in ended] == ["cancelled", "completed"]
    assert [event.type for event in await gateway.watch(running)] == ["turn.accepted", "turn.failed"]


@pytest.mark.parametrize("on_busy", ["steer", "interrupt"])
@pytest.mark.parametrize(
    ("user", "other"),
    [
        ("ana", {"user": "bob"}),
        ("ana", {"user": None}),
        ("ana", {"user": "ana", "token": "tok_1"}),
        (None, {"user": None, "token": "tok_1"}),
    ],
)
async def test_other_users_and_tokens_cannot_steer_or_interrupt(
    boot: Boot, message: Message, on_busy: OnBusy, user: str | None, other: dict[str, str | None]
) -> None:
    gateway = await boot(obedient=True)
    running = await gateway.turns.accept(message("1", user=user))
    await gateway.agent.until("1")

    second = await gateway.turns.accept(message("2", on_busy=on_busy, **other))
    third = await gateway.turns.accept(message("3", user=user))

    assert [turn.on_busy for turn in (second, third)] == ["queue", "queue"]
    for content in ("1", "2", "3"):
        await gateway.agent.until(content)
        gateway.agent.end(content)
    ended = [await gateway.turns.reader.wait_for_end(turn) for turn in (running, second, third)]
    assert [(turn.state, turn.merged_into) for turn in ended] == [("completed", None)] * 3


@pytest.mark.parametrize("on_busy", ["steer", "interrupt", "queue", "reject"])
async def test_every_mode_runs_at_once_in_an_idle_session(
    boot: Boot, message: Message, on_busy: OnBusy
) -> None:
    gateway = await boot(obedient=True)
    turn = await gateway.turns.accept(message("1", on_busy=on_busy))
    await gateway.agent.until("1")
    gateway.agent.end("1")

    assert ((await gateway.turns.reader.wait_for_end(turn)).state, turn.on_busy) == ("completed", "queue")


async def test_steering_messages_end_with_their_turn_and_share_its_reply(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    ana = {"user": "ana", "token": "tok_1"}
    running = await gateway.turns.accept(message("1", **ana))
    await gateway.agent.until("1")
    steers = [await gateway.turns.accept(message(text, on_busy="steer", **ana)) for text in ("2", "3")]
    waiting = await gateway.turns.accept(message("4", **ana))
    watching = asyncio.ensure_future(gateway.watch(steers[0]))
    gateway.agent.end("1", "for all")
    await gateway.agent.until("4")
    gateway.agent.end("4")

    ended = [await gateway.turns.reader.wait_for_end(turn) for turn in (running, *steers, waiting)]

    assert gateway.agent.heard["1"] == ["2", "3"]
    assert [turn.reply for turn in ended] == ["for all", "for all", "for all", "done"]
    assert [turn.merged_into for turn in ended] == [None, running.id, running.id, None]
    assert [turn.usage for turn in ended[:3]] == [Usage(input_tokens=3), Usage(), Usage()]
    assert [(event.type, event.data.get("text")) for event in await watching] == [
        ("turn.accepted", None),
        ("message.snapshot", "for all"),
        ("turn.completed", None),
    ]


async def test_unread_steering_message_is_queued_as_its_own_turn(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    running = await gateway.turns.accept(message("1"))
    waiting = await gateway.turns.accept(message("2"))
    await gateway.agent.until("1")
    steer = await gateway.turns.accept(message("3", on_busy="steer"))
    gateway.agent.end("1", ModelFailed())
    assert (await gateway.turns.reader.wait_for_end(running)).state == "failed"
    await gateway.agent.until("2")
    await gateway.crash()

    # A resumed turn looks for steering messages.
    gateway = await boot(obedient=True)
    await gateway.agent.until("2")
    gateway.agent.end("2")
    await gateway.agent.until("3")
    gateway.agent.end("3", "by itself")

    assert gateway.agent.heard["2"] == []
    assert (await gateway.turns.reader.wait_for_end(waiting)).reply == "done"
    ended = await gateway.turns.reader.wait_for_end(steer)
    assert (ended.reply, ended.merged_into) == ("by itself", None)


@pytest.mark.parametrize("end", ["cancel", "cancel the message", "give up"])
async def test_steering_message_ends_with_its_cancelled_or_failed_turn(
    boot: Boot, message: Message, end: str
) -> None:
    gateway = await boot(obedient=True)
    running = await gateway.turns.accept(message("1"))
    await gateway.agent.until("1")
    steer = await gateway.turns.accept(message("2", on_busy="steer"))
    assert [turn.id for turn in await gateway.agent.journals["1"].steers(0)] == [steer.id]

    match end:
        case "cancel":
            await gateway.turns.cancel("gateway", running.id)
        case "cancel the message":
            await gateway.turns.cancel("gateway", steer.id)
        case _:
            for _ in range(5):
                await gateway.agent.until("1")
                await gateway.crash()
                gateway = await boot(obedient=True)
    after = await gateway.turns.accept(message("3"))
    await gateway.agent.until("3")
    gateway.agent.end("3")

    ended = [await gateway.turns.reader.wait_for_end(turn) for turn in (running, steer, after)]
    state = "failed" if end == "give up" else "cancelled"
    assert [turn.state for turn in ended] == [state, state, "completed"]


async def test_cancelling_a_merged_steering_message_cancels_its_turn(boot: Boot, message: Message) -> None:
    gateway = await boot(obedient=True)
    for moments in range(6):
        content, channel = f"1 {moments}", str(moments)
        running = await gateway.turns.accept(message(content, channel=channel))
        await gateway.agent.until(content)
        steer = await gateway.turns.accept(message("2", channel=channel, on_busy="steer"))
        cancelling = asyncio.ensure_future(gateway.turns.cancel("gateway", steer.id))
        for _ in range(moments):
            await asyncio.sleep(0)

        taken = await gateway.agent.journals[content].steers(0)

        assert (await cancelling).state == "cancelled"
        if content in gateway.agent.running:
            gateway.agent.end(content)
        ended = await gateway.turns.reader.wait_for_end(running)
        assert ended.state == ("cancelled" if taken else "completed")


async def test_steering_message_of_a_waiting_turn_is_cancelled_with_it(boot: Boot, message: Message) -> None:
    """After two crashes a turn waits until it can run alone."""
    gateway = await boot(obedient=True)
    await gateway.turns.accept(message("0", channel="a"))
    running = await gateway.turns.accept(message("1", channel="b"))
    await gateway.agent.until("0", "1")
    steer = await gateway.turns.accept(message("2", channel="b", on_busy="steer"))
    await gateway.agent.journals["1"].steers(0)
    await gateway.crash()
    gateway = await boot(obedient=True)
    await gateway.agent.until("0", "1")
    await gateway.crash()
    gateway = await boot(obedient=True)
    while not gateway.agent.running:
        await gateway.look()

    ended = await gateway.turns.cancel("gateway", steer.id)

    assert ended.state == "cancelled"
    assert (await gateway.turns.reader.wait_for_end(running)).state == "cancelled"


async def test_steering_message_carries_its_speaker_name_in_a_shared_session(
    boot: Boot, message: Message
) -> None:
    gate = asyncio.Event()
    call = ToolCallPart("calculate", {"expression": "1+1"})
    gateway = await boot(ScriptedModel([gate, call], "first", "second"))
    first = await gateway.turns.accept(message("go", user="ana"))
    await gateway.turns.accept(message("hurry", user="ana", on_busy="steer"))
    gate.set()
    await gateway.turns.reader.wait_for_end(first)
    await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("hello", user="bob")))

    parts = [part for said in gateway.model.requests[2].messages for part in said.parts]
    assert [p.content for p in parts if p.part_kind == "user-prompt"][:2] == ["ana: go", "ana: hurry"]
