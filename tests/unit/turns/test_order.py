"""One turn at a time in a session, in the order of acceptance; sessions beside each other."""

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
    """The message that a request is about."""
    request = asked.messages[-1]
    assert isinstance(request, ModelRequest)
    part = request.parts[-1]
    assert isinstance(part, UserPromptPart)
    return part.content


async def test_an_accepted_message_is_answered(open_turns: OpenTurns, say: Say) -> None:
    ended = await say(open_turns(ScriptedModel("Good morning.")), "hello", channel="home", user="ana")

    assert (ended.state, ended.reply, ended.model) == ("completed", "Good morning.", "scripted")
    assert (ended.content, ended.channel, ended.user) == ("hello", "home", "ana")
    assert ended.created_at < (ended.ended_at or ended.created_at)


async def test_it_is_durable_before_it_is_acknowledged(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "at last"]))

    accepted = await turns.accept(message("hello"))

    assert await turns.get("gateway", accepted.id) == accepted
    assert not accepted.ended
    gate.set()
    assert (await turns.ended(accepted)).reply == "at last"


async def test_what_runs_and_what_waits_is_counted_as_it_is_now(
    open_turns: OpenTurns, message: Message
) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    turns = open_turns(ScriptedModel([first, "one"], [second, "two"]))
    accepted = [await turns.accept(message()), await turns.accept(message())]
    assert turns.counts() == {"running": 1, "waiting": 0, "queued": 1}

    first.set()
    await turns.ended(accepted[0])
    await asyncio.sleep(0)
    assert turns.counts() == {"running": 1, "waiting": 0, "queued": 0}

    second.set()
    await turns.ended(accepted[1])
    assert turns.counts() == {"running": 0, "waiting": 0, "queued": 0}


async def test_second_message_waits_for_the_running_turn(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    model = ScriptedModel([gate, "one"], "two", "three")
    turns = open_turns(model)
    accepted = [await turns.accept(message(text)) for text in ("first", "second", "third")]

    assert [turn.state for turn in accepted] == ["running", "queued", "queued"]
    gate.set()

    assert [(await turns.ended(turn)).reply for turn in accepted] == ["one", "two", "three"]
    assert [prompt(asked) for asked in model.requests] == ["first", "second", "third"]


async def test_messages_sent_at_once_are_answered_in_the_order_of_acceptance(
    open_turns: OpenTurns, message: Message
) -> None:
    model = ScriptedModel(*(str(number) for number in range(20)))
    turns = open_turns(model)

    accepted = await asyncio.gather(*(turns.accept(message(str(number))) for number in range(20)))
    ended = [await turns.ended(turn) for turn in accepted]

    assert [turn.seq for turn in accepted] == list(range(1, 21))
    assert [(turn.content, turn.reply) for turn in ended] == [(str(n), str(n)) for n in range(20)]


async def test_sessions_run_beside_each_other(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "late"], "at once"))
    slow = await turns.accept(message(channel="slow"))

    quick = await turns.ended(await turns.accept(message(channel="quick")))

    assert quick.reply == "at once"
    assert (await turns.get("gateway", slow.id)).state == "running"
    gate.set()
    assert (await turns.ended(slow)).reply == "late"


async def test_one_channel_of_two_owners_is_two_sessions(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "hers"], "his"))
    hers = await turns.accept(message(owner="ana"))
    his = await turns.ended(await turns.accept(message(owner="bob")))
    gate.set()

    assert his.reply == "his"
    assert his.session_id != hers.session_id
    with pytest.raises(NotFound):
        await turns.get("bob", hers.id)
    assert (await turns.get("ana", hers.id)).id == hers.id


async def test_without_a_channel_each_message_has_a_session_that_can_be_continued(
    open_turns: OpenTurns, say: Say
) -> None:
    turns = open_turns(ScriptedModel("a", "b", "c"))
    first, second = await say(turns, channel=None), await say(turns, channel=None)
    third = await say(turns, channel=first.channel)

    assert first.session_id != second.session_id
    assert first.channel != second.channel
    assert (third.session_id, third.seq) == (first.session_id, 2)


async def test_the_next_turn_runs_also_after_one_that_failed(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, LookupError("a bug")], "two"))
    accepted = [await turns.accept(message()) for _ in range(2)]
    gate.set()

    first, second = [await turns.ended(turn) for turn in accepted]

    assert (first.state, second.state) == ("failed", "completed")


async def test_an_ended_turn_is_told_again(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel("hi"))
    ended = await say(turns)

    assert await turns.ended(ended) == ended
    assert await turns.get("gateway", ended.id) == ended


async def test_an_unknown_turn_is_not_found(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel("hi"))
    with pytest.raises(NotFound, match="turn_x"):
        await turns.get("gateway", "turn_x")

    stranger = await say(turns, owner="ana")
    with pytest.raises(NotFound):
        await turns.get("gateway", stranger.id)


async def test_who_stops_waiting_does_nothing_to_the_turn(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "done"]))
    turn = await turns.accept(message())
    impatient = asyncio.ensure_future(turns.ended(turn))
    patient = asyncio.ensure_future(turns.ended(turn))
    await asyncio.sleep(0)

    impatient.cancel()
    gate.set()

    assert (await patient).reply == "done"
    assert impatient.cancelled()
