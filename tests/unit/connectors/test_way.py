"""A message's way: in by a connector, answered, and out again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from tests.unit.connectors.conftest import Gateway

from torana.connectors.base import Abilities, Refused, TryLater, Unsure
from torana.connectors.outbox import REPEATED
from torana.connectors.splitting import split
from torana.limits.rates import MessageRates
from torana.messages import EVERYONE, GATEWAY_OWNER, utc_now
from torana.store.audit import Act
from torana.testing import ScriptedModel
from torana.testing.chat import Chat

Open = Callable[..., Awaitable[Gateway]]


def blind(**settings: object) -> Chat:
    return Chat(Abilities(length=100, repeat="blind", pace=10_000), allow=["*"], **settings)


def arrived(reason: str = "no answer") -> Unsure:
    """A fault after the part was shown."""
    fault = Unsure(reason)
    fault.arrived = True  # pyright: ignore[reportAttributeAccessIssue]
    return fault


async def test_a_message_is_answered_where_it_was_said_and_acknowledged_before(open_gateway: Open) -> None:
    chat = Chat(allow=["ana"])
    gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel([gate, "It is **4**."]))

    said = await chat.say("2+2?")
    await chat.until_taken(said)  # durable, and not answered yet
    assert [turn.content for turn in gateway.turns.live] == ["2+2?"]
    gate.set()

    shown = await chat.shown(1)
    assert shown[0].text == "It is 4."
    turn = await gateway.turns.heard("home", said)
    assert turn is not None
    assert (turn.user, turn.owner, turn.channel) == ("chat:ana", GATEWAY_OWNER, "home/with ana")
    assert turn.principal == "connector:home"


async def test_told_twice_it_is_one_turn_and_one_answer(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("once", "next"))
    said = await chat.say("hello")
    await chat.shown(1)

    await chat.repeat(said)
    await chat.say("and now?")

    assert [one.text for one in await chat.shown(2)] == ["once", "next"]
    assert [row.state for row in await gateway.rows()] == ["sent", "sent"]


async def test_a_control_word_is_obeyed_once_however_often_it_is_told(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gate = asyncio.Event()
    model = ScriptedModel([gate, "never"], [gate, "done"])
    gateway = await open_gateway(chat, model)
    await chat.say("long work")
    await model.asked()
    stop = await chat.say("/stop")
    assert [one.text for one in await chat.shown(1)] == ["Stopped."]

    await chat.say("other work")
    await chat.repeat(stop)
    await chat.until_taken(await chat.say("/help"))
    gate.set()

    assert "/new begins" in (await chat.shown(3))[1].text
    assert [one.text for one in await chat.shown(3)][2] == "done"
    assert [turn.state for turn in gateway.turns.live] == []


async def test_a_room_is_answered_in_its_thread_and_strangers_in_it_are_not(open_gateway: Open) -> None:
    chat = Chat(allow=["ana"], rooms=["lobby"])
    await open_gateway(chat, ScriptedModel("here"))

    await chat.say("let me in", sender="eve", room="lobby", mention=True)
    await chat.say("not to you", sender="ana", room="lobby")
    await chat.say("elsewhere", sender="ana", room="attic", mention=True)
    await chat.say("you there", sender="ana", room="lobby", thread="t1", mention=True)

    assert [one.text for one in await chat.shown(1, room="lobby", thread="t1")] == ["here"]
    assert await chat.shown(0, room="lobby") == []


async def test_what_is_run_again_is_said_anew_behind_what_was_said_of_its_failure(open_gateway: Open) -> None:
    chat = Chat(Abilities(length=150, repeat="keyed", pace=10_000), allow=["*"])
    long = " ".join(f"number {number}" for number in range(40))
    gateway = await open_gateway(chat, ScriptedModel([ValueError("no")], "meanwhile", long))
    said = await chat.say("hello")
    await chat.shown(1)
    await chat.say("and this?")
    await chat.shown(2)

    turn = await gateway.turns.heard("home", said)
    assert turn is not None
    await gateway.turns.retry(GATEWAY_OWNER, turn.id)

    texts = [one.text for one in await chat.shown(5)]
    assert texts[0].startswith("This message could not be answered: ")
    assert texts[1] == "meanwhile"
    assert " ".join(texts[2:]) == long
    assert {part.edits for part in chat.calls} == {None}
    assert len({part.key for part in chat.calls}) == len(texts)


async def test_bots_are_not_answered_unless_they_may_talk(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("to ana"))

    await chat.until_taken(await chat.say("beep", sender="robot", bot=True))
    await chat.say("hello")

    await chat.shown(1)
    assert [row.line for row in await gateway.rows()] == ["home/with ana"]


async def test_a_long_reply_comes_in_parts_in_order(open_gateway: Open) -> None:
    chat = Chat(Abilities(length=30, repeat="keyed", pace=10_000), allow=["*"])
    words = [f"word{number}" for number in range(30)]
    gateway = await open_gateway(chat, ScriptedModel(" ".join(words), "short"))
    await chat.say("much")
    await chat.say("little")

    parts = split(" ".join(words), chat.connector.abilities)
    shown = await chat.shown(len(parts) + 1)
    assert " ".join(one.text for one in shown) == " ".join([*words, "short"])
    assert {row.state for row in await gateway.rows()} == {"sent"}


async def test_what_fails_is_told(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    model = ScriptedModel([ModelHTTPError(400, "m", {"error": "bad"})])
    await open_gateway(chat, model)

    await chat.say("hello")

    assert (await chat.shown(1))[0].text.startswith("This message could not be answered: ")


async def test_limits_are_obeyed_and_faults_tried_again(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    chat.faults = [TryLater("too many", seconds=0.05), TryLater("try again", seconds=0)]
    gateway = await open_gateway(chat, ScriptedModel("in the end"))

    await chat.say("hello")

    assert [one.text for one in await chat.shown(1)] == ["in the end"]
    assert len(chat.calls) == 3
    assert len({part.key for part in chat.calls}) == 1
    (row,) = await gateway.rows()
    assert row.tries == 3


@pytest.mark.parametrize("repeat", ["keyed", "readable"])
async def test_what_may_have_arrived_is_shown_once(open_gateway: Open, repeat: str) -> None:
    chat = Chat(Abilities(length=100, repeat=repeat, pace=10_000), allow=["*"])  # pyright: ignore[reportArgumentType]
    chat.faults = [arrived()]
    await open_gateway(chat, ScriptedModel("one", "two"))

    await chat.say("hello")
    await chat.shown(1)
    await chat.say("again")

    assert [one.text for one in await chat.shown(2)] == ["one", "two"]


async def test_on_a_blind_platform_it_is_sent_once_more_with_a_mark_and_then_held(
    open_gateway: Open, act: Act
) -> None:
    chat = blind()
    chat.faults = [arrived(), Unsure("nobody knows")]
    gateway = await open_gateway(chat, ScriptedModel("one", "two"))
    await chat.say("hello")
    await chat.called(2)
    await chat.say("again")

    assert [one.text for one in await chat.shown(2)] == ["one", "two"]
    assert chat.calls[1].text == f"{REPEATED}one"
    held, sent = await gateway.rows()
    assert (held.state, held.reason, sent.state) == ("ambiguous", "nobody knows", "sent")

    await gateway.deliveries.retry(EVERYONE, held.id, act=act)
    assert [one.text for one in await chat.shown(3)] == ["one", "two", "one"]


async def test_an_operator_may_have_it_held_at_once(open_gateway: Open, act: Act) -> None:
    chat = blind(on_ambiguous="hold")
    chat.faults = [Unsure("nobody knows")]
    gateway = await open_gateway(chat, ScriptedModel("one", "two"))
    await chat.say("hello")
    await chat.called(1)
    await chat.say("again")

    assert [one.text for one in await chat.shown(1)] == ["two"]
    held = (await gateway.rows())[0]
    assert held.state == "ambiguous"
    dropped = await gateway.deliveries.drop(EVERYONE, held.id, act=act)
    assert dropped.state == "dropped"


async def test_a_refusal_ends_a_part_and_not_what_comes_after(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    chat.faults = [Refused("no such chat")]
    gateway = await open_gateway(chat, ScriptedModel("one", "two"))
    await chat.say("hello")
    await chat.called(1)
    await chat.say("again")

    assert [one.text for one in await chat.shown(1)] == ["two"]
    refused, _ = await gateway.rows()
    assert (refused.state, refused.reason, refused.text) == ("refused", "no such chat", "one")


async def test_what_a_dead_process_was_sending_is_sent_once_in_all(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    chat.gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel("one"))
    await chat.say("hello")
    await chat.called(1)
    await gateway.hub.stop()  # in the middle of the call
    chat.gate = None
    assert [row.state for row in await gateway.rows()] == ["sending"]

    await open_gateway(chat)

    assert [one.text for one in await chat.shown(1)] == ["one"]


async def test_a_reply_that_comes_too_late_is_kept_for_the_operator(open_gateway: Open, act: Act) -> None:
    chat = Chat(allow=["*"])
    chat.faults = [TryLater("down", seconds=0.01)]
    late = timedelta()

    def clock() -> datetime:
        return utc_now() + late

    gateway = await open_gateway(chat, ScriptedModel("one", "two"), clock=clock)
    await chat.say("hello")
    await chat.called(1)
    late = timedelta(hours=25)
    await chat.say("again")

    assert [one.text for one in await chat.shown(1)] == ["two"]
    stale = (await gateway.rows())[0]
    assert (stale.state, stale.text) == ("stale", "one")
    await gateway.deliveries.retry(EVERYONE, stale.id, act=act)
    assert [one.text for one in await chat.shown(2)] == ["two", "one"]


async def test_one_sender_is_throttled_and_told(open_gateway: Open) -> None:
    chat = Chat(allow=["*"], per_minute=1)
    await open_gateway(chat, ScriptedModel("one", "to bob"))
    await chat.say("hello")
    await chat.shown(1)
    await chat.say("hello again")

    assert "limit is 1 a minute" in (await chat.shown(2))[1].text
    await chat.say("hello", sender="bob")
    assert [one.text for one in await chat.shown(1, to="bob")] == ["to bob"]


async def test_the_gateways_own_limits_hold_here_too(open_gateway: Open) -> None:
    chat = Chat(allow=["*"], users={"ana": "anabel"})
    rates = MessageRates(per_user=1, overall=0)
    await open_gateway(chat, ScriptedModel("one"), rates=rates)
    await chat.say("hello")
    await chat.shown(1)
    await chat.say("hello again")

    assert "TORANA_RATE_PER_USER" in (await chat.shown(2))[1].text


async def test_two_machines_do_not_talk_for_ever(open_gateway: Open) -> None:
    chat = Chat(allow=["*"], bots=True, per_session=3)
    answers = [f"echo {number}" for number in range(3)]
    gateway = await open_gateway(chat, ScriptedModel(*answers))
    for number in range(3):
        await chat.say(f"echo {number}", sender="robot", bot=True)
        await chat.shown(number + 1, to="robot")
    for _ in range(4):
        await chat.until_taken(await chat.say("echo", sender="robot", bot=True))

    shown = [one.text for one in await chat.shown(6, to="robot")]
    assert shown[:3] == answers
    assert all("paused" in text for text in shown[3:])
    assert len(shown) == 6  # it is told three times a minute at most
    assert gateway.turns.live == []


@pytest.mark.parametrize("text", ["", "  \n", "\0"])
async def test_nothing_said_is_nothing_heard(open_gateway: Open, text: str) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("hi"))
    await chat.until_taken(await chat.say(text))
    await chat.say("hello")

    await chat.shown(1)
    assert len(await gateway.rows()) == 1


async def test_a_megabyte_is_turned_away_with_a_word(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    await open_gateway(chat, ScriptedModel())
    await chat.say("x" * 1_000_000)

    assert "at most 10,000 characters" in (await chat.shown(1))[0].text


async def test_what_comes_with_a_message_is_named(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    model = ScriptedModel("seen")
    gateway = await open_gateway(chat, model)
    said = await chat.say("look", file=("cat\n\u202egnp.exe", "image/png", b"123456"))
    await chat.shown(1)

    turn = await gateway.turns.heard("home", said)
    assert turn is not None
    assert turn.content == "look\n[image: cat gnp.exe, image/png, 0.0 kB]"


async def test_a_reply_is_shown_while_it_grows_and_stays_one_message(open_gateway: Open) -> None:
    able = Abilities(length=100, repeat="blind", edits=True, edit_every=0, typing_every=60, pace=10_000)
    chat = Chat(able, allow=["*"])
    first, second = asyncio.Event(), asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel(["It ", first, "is ", second, "4."]))
    await chat.say("2+2?")

    assert (await chat.shown(1))[0].text == "It …"
    first.set()
    await chat.called(2)
    second.set()
    while (await gateway.rows())[0].state != "sent":
        await chat.called(len(chat.calls) + 1)

    assert [one.text for one in await chat.shown(1)] == ["It is 4."]
    assert [place.chat for place in chat.typing] == ["with ana"]


async def test_a_reply_is_not_shown_before_the_one_that_comes_first(open_gateway: Open) -> None:
    able = Abilities(length=100, repeat="keyed", edits=True, edit_every=0, pace=10_000)
    chat = Chat(able, allow=["*"])
    chat.gate, gate = asyncio.Event(), asyncio.Event()
    model = ScriptedModel("one", ["tw", gate, "o"])
    gateway = await open_gateway(chat, model)
    await chat.say("first")
    await chat.called(1)
    await chat.say("second")
    await model.asked(2)
    gate.set()
    await asyncio.gather(*(gateway.turns.ended(turn) for turn in gateway.turns.live))
    chat.gate.set()

    assert [one.text for one in await chat.shown(2)] == ["one", "two"]
    texts = [part.text for part in chat.calls]
    assert [text for text in texts if text.startswith("tw")] == ["two"]


async def test_a_preview_that_was_deleted_is_followed_by_the_reply(open_gateway: Open) -> None:
    able = Abilities(length=100, repeat="blind", edits=True, edit_every=0, pace=10_000)
    chat = Chat(able, allow=["*"])
    gate = asyncio.Event()
    await open_gateway(chat, ScriptedModel(["It ", gate, "is 4."]))
    await chat.say("2+2?")
    preview = (await chat.shown(1))[0]
    chat.forget(preview.id)
    gate.set()

    assert [one.text for one in await chat.shown(1)] == ["It is 4."]


async def test_without_a_connection_replies_wait(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel([gate, "late"]))
    await chat.until_taken(await chat.say("hello"))
    await gateway.hub.stop()
    turn = gateway.turns.live[0]
    gate.set()
    await gateway.turns.ended(turn)
    assert [row.state for row in await gateway.rows()] == ["pending"]

    await open_gateway(chat)

    assert [one.text for one in await chat.shown(1)] == ["late"]


async def test_ids_that_cannot_be_kept_as_they_are_still_tell_messages_apart(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    chat.id_suffix = "\0\ud800" + "x" * 1000
    await open_gateway(chat, ScriptedModel("one", "two"))

    first = await chat.say("hello")
    await chat.shown(1)
    await chat.repeat(first)
    await chat.say("again")

    assert [one.text for one in await chat.shown(2)] == ["one", "two"]


async def test_a_sender_without_a_proper_id_is_not_heard(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("to ana"))
    for sender in ("", "eve\n", "eve\0", "\u202eeve", "e" * 1000):
        await chat.until_taken(await chat.say("hello", sender=sender))
    await chat.say("hello")

    await chat.shown(1)
    assert len(await gateway.rows()) == 1
