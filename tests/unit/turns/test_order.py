"""A session runs one turn at a time, in the order of acceptance; sessions run in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart

from torana.errors import NotFound
from torana.messages import Inbound, Turn
from torana.testing import Asked, ScriptedModel
from torana.turns import Turns

OpenTurns = Callable[..., Turns]
Say = Callable[..., Awaitable[Turn]]
Message = Callable[..., Inbound]


def prompt(asked: Asked) -> object:
    """Return the last message of a request."""
    request = asked.messages[-1]
    assert isinstance(request, ModelRequest)
    part = request.parts[-1]
    assert isinstance(part, UserPromptPart)
    return part.content


async def test_accepted_message_is_answered(open_turns: OpenTurns, say: Say) -> None:
    ended = await say(open_turns(ScriptedModel("Good morning.")), "hello", channel="home", user="ana")

    assert (ended.state, ended.reply, ended.model) == ("completed", "Good morning.", "scripted")
    assert (ended.content, ended.channel, ended.user) == ("hello", "home", "ana")
    assert ended.created_at < (ended.ended_at or ended.created_at)


async def test_message_is_stored_before_it_is_acknowledged(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "at last"]))

    accepted = await turns.accept(message("hello"))

    assert await turns.reader.get("gateway", accepted.id) == accepted
    assert not accepted.has_ended
    gate.set()
    assert (await turns.reader.wait_for_end(accepted)).reply == "at last"


async def test_counts_follow_running_and_queued_turns(open_turns: OpenTurns, message: Message) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    turns = open_turns(ScriptedModel([first, "one"], [second, "two"]))
    accepted = [await turns.accept(message()), await turns.accept(message())]
    assert turns.live.counts() == {"running": 1, "waiting": 0, "queued": 1}

    first.set()
    await turns.reader.wait_for_end(accepted[0])
    await asyncio.sleep(0)
    assert turns.live.counts() == {"running": 1, "waiting": 0, "queued": 0}

    second.set()
    await turns.reader.wait_for_end(accepted[1])
    assert turns.live.counts() == {"running": 0, "waiting": 0, "queued": 0}


async def test_second_message_waits_for_the_running_turn(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    model = ScriptedModel([gate, "one"], "two", "three")
    turns = open_turns(model)
    accepted = [await turns.accept(message(text)) for text in ("first", "second", "third")]

    assert [turn.state for turn in accepted] == ["running", "queued", "queued"]
    gate.set()

    assert [(await turns.reader.wait_for_end(turn)).reply for turn in accepted] == ["one", "two", "three"]
    assert [prompt(asked) for asked in model.requests] == ["first", "second", "third"]


async def test_concurrent_messages_are_answered_in_order_of_acceptance(
    open_turns: OpenTurns, message: Message
) -> None:
    model = ScriptedModel(*(str(number) for number in range(20)))
    turns = open_turns(model)

    accepted = await asyncio.gather(*(turns.accept(message(str(number))) for number in range(20)))
    ended = [await turns.reader.wait_for_end(turn) for turn in accepted]

    assert [turn.seq for turn in accepted] == list(range(1, 21))
    assert [(turn.content, turn.reply) for turn in ended] == [(str(n), str(n)) for n in range(20)]


async def test_sessions_run_in_parallel(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "late"], "at once"))
    slow = await turns.accept(message(channel="slow"))

    quick = await turns.reader.wait_for_end(await turns.accept(message(channel="quick")))

    assert quick.reply == "at once"
    assert (await turns.reader.get("gateway", slow.id)).state == "running"
    gate.set()
    assert (await turns.reader.wait_for_end(slow)).reply == "late"


async def test_equal_channels_of_two_owners_are_two_sessions(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "hers"], "his"))
    hers = await turns.accept(message(owner="ana"))
    his = await turns.reader.wait_for_end(await turns.accept(message(owner="bob")))
    gate.set()

    assert his.reply == "his"
    assert his.session_id != hers.session_id
    with pytest.raises(NotFound):
        await turns.reader.get("bob", hers.id)
    assert (await turns.reader.get("ana", hers.id)).id == hers.id


async def test_message_without_channel_starts_a_session_that_can_continue(
    open_turns: OpenTurns, say: Say
) -> None:
    turns = open_turns(ScriptedModel("a", "b", "c"))
    first, second = await say(turns, channel=None), await say(turns, channel=None)
    third = await say(turns, channel=first.channel)

    assert first.session_id != second.session_id
    assert first.channel != second.channel
    assert (third.session_id, third.seq) == (first.session_id, 2)


async def test_next_turn_runs_after_a_failed_one(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, LookupError("a bug")], "two"))
    accepted = [await turns.accept(message()) for _ in range(2)]
    gate.set()

    first, second = [await turns.reader.wait_for_end(turn) for turn in accepted]

    assert (first.state, second.state) == ("failed", "completed")


async def test_ended_turn_is_returned_again(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel("hi"))
    ended = await say(turns)

    assert await turns.reader.wait_for_end(ended) == ended
    assert await turns.reader.get("gateway", ended.id) == ended


async def test_unknown_turn_is_not_found(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel("hi"))
    with pytest.raises(NotFound, match="turn_x"):
        await turns.reader.get("gateway", "turn_x")

    stranger = await say(turns, owner="ana")
    with pytest.raises(NotFound):
        await turns.reader.get("gateway", stranger.id)


async def test_caller_that_stops_waiting_does_not_affect_the_turn(
    open_turns: OpenTurns, message: Message
) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "done"]))
    turn = await turns.accept(message())
    impatient = asyncio.ensure_future(turns.reader.wait_for_end(turn))
    patient = asyncio.ensure_future(turns.reader.wait_for_end(turn))
    await asyncio.sleep(0)

    impatient.cancel()
    gate.set()

    assert (await patient).reply == "done"
    assert impatient.cancelled()
