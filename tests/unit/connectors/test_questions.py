"""A chat is asked whether a tool may run, and its yes or no is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart
from tests.unit.connectors.conftest import Gateway

from torana.connectors.base import Abilities
from torana.messages import GATEWAY_OWNER
from torana.testing import ScriptedModel
from torana.testing.chat import Chat
from torana.tools.permission import Rule, Rules

Open = Callable[..., Awaitable[Gateway]]

ASKS = Rules([Rule(tool="calculate", permission="ask")])

QUESTION = """\
May I run calculate with this?

{
 "expression": "2+2"
}

Answer yes or no."""


def calculate(expression: str = "2+2", id_: str = "c1") -> ToolCallPart:
    return ToolCallPart("calculate", {"expression": expression}, tool_call_id=id_)


def chat_of(**abilities: Any) -> Chat:
    return Chat(Abilities(length=2_000, repeat="keyed", pace=10_000, **abilities), allow=["*"])


async def texts(chat: Chat, count: int, **where: Any) -> list[str]:
    return [shown.text for shown in await chat.shown(count, **where)]


@pytest.mark.parametrize("word", ["yes", " YES ", "Ja", "oui.", "ok"])
async def test_a_yes_lets_it_run_and_the_reply_comes_behind_the_question(open_gateway: Open, word: str) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel(["Let me see. ", calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    assert await texts(chat, 1) == [f"Let me see.\n\n{QUESTION}"]

    await chat.say(word)

    assert await texts(chat, 3) == [f"Let me see.\n\n{QUESTION}", "I run calculate.", "It is 4."]
    assert [row.state for row in await gateway.rows()][:1] == ["sent"]
    page = await gateway.turns.approvals.listed("*", limit=9)
    assert page.items == []


@pytest.mark.parametrize("word", ["no", "Nein!", "non"])
async def test_a_no_does_not(open_gateway: Open, word: str) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate()], "Then not.")
    await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)

    await chat.say(word)

    assert await texts(chat, 3) == [QUESTION, "I do not run calculate.", "Then not."]
    assert "denied by whoever was asked" in str(model.requests[1].messages[-1])


async def test_in_a_room_only_who_was_asked_answers_and_others_just_talk(open_gateway: Open) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate()], "It is 4.", "To ben.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?", room="lobby", mention=True)
    await chat.shown(1, room="lobby")

    await chat.until_taken(await chat.say("yes", sender="ben", room="lobby", mention=True))
    (waiting,) = [turn for turn in gateway.turns.live if turn.user == "chat:ben"]
    assert (await gateway.turns.get(GATEWAY_OWNER, waiting.id)).state == "queued"
    assert len(model.requests) == 1
    await chat.say("yes", room="lobby", mention=True)

    assert await texts(chat, 4, room="lobby") == [QUESTION, "I run calculate.", "It is 4.", "To ben."]


async def test_a_yes_where_nothing_is_asked_is_a_message_like_any_other(open_gateway: Open) -> None:
    chat = chat_of()
    await open_gateway(chat, ScriptedModel("Yes what?", [calculate()], "It is 4.", "Yes again?"), rules=ASKS)
    await chat.say("yes")
    assert await texts(chat, 1) == ["Yes what?"]
    await chat.say("2+2?")
    await chat.shown(2)
    await chat.say("yes")
    await chat.shown(4)

    await chat.say("yes")

    assert (await texts(chat, 5))[4] == "Yes again?"


async def test_other_words_than_a_yes_wait_for_their_turn(open_gateway: Open) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate()], "It is 4.", "Well.")
    await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)
    await chat.until_taken(await chat.say("yes, but be quick"))
    assert len(model.requests) == 1

    await chat.say("/status")
    assert (await texts(chat, 2))[1] == "Running here: 1. Waiting: 1. Asked: may I run calculate?"
    await chat.say("yes")

    assert (await texts(chat, 5))[2:] == ["I run calculate.", "It is 4.", "Well."]


async def test_a_stop_ends_what_waits(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()]), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)

    await chat.say("/stop")

    assert (await texts(chat, 2))[1] == "Stopped."
    assert gateway.turns.live == []


async def test_of_several_questions_the_oldest_is_answered_and_the_same_yes_counts_once(
    open_gateway: Open,
) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")], "2 and 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("both?")
    first, second = await texts(chat, 2)
    assert "1+1" in first
    assert "2+2" in second

    yes = await chat.say("yes")
    assert (await texts(chat, 3))[2] == "I run calculate. And calculate?"
    await chat.repeat(yes)  # the platform tells it again
    await chat.until_taken(yes)
    page = await gateway.turns.approvals.listed("*", limit=9)
    assert [approval.call_id for approval in page.items] == ["c2"]
    await chat.say("no")

    assert (await texts(chat, 5))[3:] == ["I do not run calculate.", "2 and 4."]
    returned = str(model.requests[1].messages[-1])
    assert "denied" in returned


async def test_a_preview_becomes_the_question_and_what_follows_is_a_message_of_its_own(
    open_gateway: Open,
) -> None:
    chat = chat_of(edits=True, edit_every=0)
    before, after = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(["Let me see.", before, calculate()], ["It is", after, " 4."])
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    assert await texts(chat, 1) == ["Let me see. …"]
    before.set()
    while (await texts(chat, 1))[0] != f"Let me see.\n\n{QUESTION}":
        await chat.called(len(chat.calls) + 1)

    await chat.say("yes")
    await chat.shown(2)
    after.set()
    while (await texts(chat, 3))[2] != "It is 4.":
        await chat.called(len(chat.calls) + 1)

    assert await texts(chat, 3) == [f"Let me see.\n\n{QUESTION}", "I run calculate.", "It is 4."]
    turns = {row.turn_id for row in await gateway.rows()}
    assert len(turns) == 2


async def test_the_question_waits_until_the_preview_is_no_longer_being_shown(open_gateway: Open) -> None:
    """An edit that is under way would else overwrite the question."""
    chat = chat_of(edits=True, edit_every=0)
    first, second = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(["Let", first, " me see.", second, calculate()], "It is 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)
    chat.gate = asyncio.Event()
    first.set()
    calls = await chat.called(2)  # the preview is being edited, and the platform takes its time
    second.set()
    while not (await gateway.turns.approvals.listed("*", limit=1)).items:
        await gateway.rows()
    assert len(calls) == 2

    chat.gate.set()
    await chat.called(3)

    assert await texts(chat, 1) == [f"Let me see.\n\n{QUESTION}"]


async def test_a_question_outlives_a_restart_and_is_shown_once(open_gateway: Open) -> None:
    chat = chat_of()
    first = await open_gateway(chat, ScriptedModel(["Let me see. ", calculate()]), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)
    await first.hub.stop()
    await first.turns.stop(grace=0)
    first.database.close()

    await open_gateway(chat, ScriptedModel("It is 4."), rules=ASKS)
    await chat.say("yes")

    assert await texts(chat, 3) == [f"Let me see.\n\n{QUESTION}", "I run calculate.", "It is 4."]


async def test_where_the_platform_shows_no_questions_it_is_a_no_at_once(open_gateway: Open) -> None:
    chat = chat_of(asks=False)
    model = ScriptedModel([calculate()], "I may not.")
    await open_gateway(chat, model, rules=ASKS)

    await chat.say("2+2?")

    assert await texts(chat, 1) == ["I may not."]
    assert "nobody who can be asked" in str(model.requests[1].messages[-1])


async def test_what_a_model_would_hide_in_a_question_is_seen(open_gateway: Open) -> None:
    chat = chat_of()
    hidden = "1\u202e+1``` Answer yes ```\u200b" + "9" * 5_000
    await open_gateway(chat, ScriptedModel([calculate(hidden)]), rules=ASKS)

    await chat.say("2+2?")

    (question,) = await texts(chat, 1)
    assert "\\u202e" in question
    assert "\\u200b" in question
    assert "more characters)" in question
    assert len(question) < 1_800
    assert question.endswith("Answer yes or no.")
