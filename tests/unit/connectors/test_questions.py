"""Approvals that are asked and decided in a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart
from tests.unit.connectors.conftest import Gateway

from torana.connectors.base import (
    ELSEWHERE,
    Attachment,
    Capabilities,
    OutcomeUnknown,
    PermanentError,
    RetryLater,
)
from torana.messages import GATEWAY_MODEL, GATEWAY_OWNER, SCHEDULE_PRINCIPAL, Inbound, utc_now
from torana.permissions import Rule, Rules
from torana.store.rows.audit import Act
from torana.testing import ScriptedModel
from torana.testing.chat import Chat
from torana.turns.approvals import Choice

Open = Callable[..., Awaitable[Gateway]]

ASKS = Rules([Rule(tool="calculate", permission="ask")])

QUESTION = """\
May I run calculate with this?

{
 "expression": "2+2"
}

Answer yes or no."""

TOO_EARLY = (
    "You wrote that before my question was shown, so it does not count as an answer. Please answer again."
)


UNCLEAR = (
    "Another message followed my question, or you replied to another message. I cannot know what you answer, "
    "so your answer does not count. I ask again."
)


def calculate(expression: str = "2+2", id_: str = "c1") -> ToolCallPart:
    return ToolCallPart("calculate", {"expression": expression}, tool_call_id=id_)


def chat_of(**abilities: Any) -> Chat:
    return Chat(Capabilities(length=2_000, repeat="keyed", pace=10_000, **abilities), allow=["*"])


async def open_calls(gateway: Gateway, count: int) -> list[str]:
    """Wait for ``count`` open approvals and return the ids of their calls, the newest first."""
    async with asyncio.timeout(20):
        while len(page := (await gateway.turns.approvals.list_open("*", limit=9)).items) != count:
            pass
    return [approval.call_id for approval in page]


async def texts(chat: Chat, count: int, **where: Any) -> list[str]:
    return [shown.text for shown in await chat.shown(count, **where)]


@pytest.mark.parametrize("word", ["yes", " YES ", "Ja", "oui.", "ok"])
async def test_yes_runs_tool_and_reply_follows_question(open_gateway: Open, word: str) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel(["Let me see. ", calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    assert await texts(chat, 2) == ["Let me see.", QUESTION]

    await chat.say(word)

    assert await texts(chat, 4) == ["Let me see.", QUESTION, "I run calculate.", "It is 4."]
    assert [row.state for row in await gateway.rows()][:1] == ["sent"]
    page = await gateway.turns.approvals.list_open("*", limit=9)
    assert page.items == []


@pytest.mark.parametrize("word", ["no", "Nein!", "non"])
async def test_no_denies_tool_call(open_gateway: Open, word: str) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate()], "Then not.")
    await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)

    await chat.say(word)

    assert await texts(chat, 3) == [QUESTION, "I do not run calculate.", "Then not."]
    assert "it was denied" in str(model.requests[1].messages[-1])


async def test_in_room_only_asked_sender_answers_question(open_gateway: Open) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate()], "It is 4.", "To ben.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?", room="lobby", mention=True)
    await chat.shown(1, room="lobby")

    await chat.until_taken(await chat.say("yes", sender="ben", room="lobby", mention=True))
    (waiting,) = [turn for turn in gateway.turns.live if turn.user == "chat:ben"]
    assert (await gateway.turns.reader.get(GATEWAY_OWNER, waiting.id)).state == "queued"
    assert len(model.requests) == 1
    await chat.say("yes", room="lobby", mention=True)

    assert await texts(chat, 4, room="lobby") == [QUESTION, "I run calculate.", "It is 4.", "To ben."]


async def test_yes_without_open_question_is_ordinary_message(open_gateway: Open) -> None:
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


async def test_message_other_than_answer_waits_for_its_turn(open_gateway: Open) -> None:
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
    assert (await texts(chat, 4))[2:] == [UNCLEAR, QUESTION]
    await chat.say("yes")

    assert (await texts(chat, 7))[4:] == ["I run calculate.", "It is 4.", "Well."]


@pytest.mark.parametrize("word", ["/new", "/help", "/status", "No thanks, do not do that"])
async def test_ok_after_another_message_of_the_sender_does_not_count(open_gateway: Open, word: str) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    (question,) = await chat.shown(1)
    await chat.until_taken(await chat.say(word))

    is_answered = word.startswith("/")
    count = 1 + is_answered
    answer = (await chat.shown(count))[-1]
    for reply in (None, question.id, answer.id):
        await chat.say("ok", in_reply_to=reply)
        count += 2
        assert (await texts(chat, count))[-2:] == [UNCLEAR, QUESTION]
        await chat.until_taken(await chat.say(word))
        count += is_answered
        *_, question = (await chat.shown(count))[: -1 if is_answered else None]

    assert await open_calls(gateway, 1) == ["c1"]
    await chat.say("ok")
    await chat.shown(count + 2)
    await chat.say("ok")
    assert (await texts(chat, count + 3))[-1] == "I run calculate."


async def test_ok_after_a_refused_message_of_the_sender_does_not_count(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)
    await chat.say("No, because " + "x" * 10_000)
    await chat.shown(2)

    await chat.until_taken(await chat.say("ok"))

    assert await open_calls(gateway, 1) == ["c1"]
    assert (await texts(chat, 4))[2:] == [UNCLEAR, QUESTION]


async def test_yes_counts_after_a_reply_of_several_parts(open_gateway: Open) -> None:
    chat = chat_of()
    model = ScriptedModel(["Let me see. " * 500, calculate()], "It is 4.")
    await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    *before, question = await texts(chat, 5)
    assert (len(before), question) == (4, QUESTION)

    await chat.say("yes")

    assert (await texts(chat, 7))[5:] == ["I run calculate.", "It is 4."]


async def test_forwarded_yes_does_not_count(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)

    await chat.until_taken(await chat.say("yes", in_reply_to=ELSEWHERE))

    assert await open_calls(gateway, 1) == ["c1"]
    assert (await texts(chat, 3))[1:] == [UNCLEAR, QUESTION]


async def test_stop_cancels_waiting_turn(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()]), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)

    await chat.say("/stop")

    assert (await texts(chat, 2))[1] == "Stopped."
    assert list(gateway.turns.live) == []


async def test_questions_are_asked_one_by_one_and_repeated_yes_counts_once(
    open_gateway: Open,
) -> None:
    """With two visible questions a yes would be ambiguous."""
    chat = chat_of()
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")], "2 and 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("both?")
    (first,) = await texts(chat, 1)
    assert "1+1" in first
    assert await open_calls(gateway, 2) == ["c2", "c1"]
    assert len(await gateway.rows()) == 1

    yes = await chat.say("yes")
    _, said, second = await texts(chat, 3)
    assert said == "I run calculate."
    assert "2+2" in second
    await chat.repeat(yes)  # the platform repeats the message
    await chat.until_taken(yes)
    assert await open_calls(gateway, 1) == ["c2"]
    await chat.say("no")

    assert (await texts(chat, 5))[3:] == ["I do not run calculate.", "2 and 4."]
    returned = str(model.requests[1].messages[-1])
    assert "denied" in returned


async def test_next_question_follows_decision_made_elsewhere(open_gateway: Open, act: Act) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")], "2 and 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("both?")
    await chat.shown(1)
    await open_calls(gateway, 2)
    (turn,) = gateway.turns.live

    await gateway.turns.approvals.decide("*", turn.id, "c1", Choice(approve=True), act)

    assert "2+2" in (await texts(chat, 2))[1]


async def test_yes_in_reply_to_another_message_does_not_answer_the_open_question(
    open_gateway: Open, act: Act
) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")], "2 and 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("both?")
    (first,) = await chat.shown(1)
    await open_calls(gateway, 2)
    (turn,) = gateway.turns.live
    await gateway.turns.approvals.decide("*", turn.id, "c1", Choice(approve=True), act)
    (_, second) = await texts(chat, 2)

    for number, other in enumerate((first.id, "unknown")):
        await chat.say("yes", in_reply_to=other)
        assert (await texts(chat, 4 + 2 * number))[-2:] == [UNCLEAR, second]

    assert await open_calls(gateway, 1) == ["c2"]
    await chat.say("yes", in_reply_to=(await chat.shown(6))[5].id)
    assert (await texts(chat, 7))[6] == "I run calculate."


def no_more(_connection: object, _turn: object) -> None:
    """Store nothing else with a reminder."""


async def remind(gateway: Gateway, text: str, *, user: str) -> None:
    """Deliver a reminder of a user to the chat of the waiting turn."""
    (turn,) = gateway.turns.live
    inbound = Inbound(
        owner=GATEWAY_OWNER,
        content=f"A reminder is due: {text}",
        principal=f"{SCHEDULE_PRINCIPAL}sch_1",
        channel=turn.channel,
        user=user,
        account=turn.account,
        place=turn.place,
    )
    await gateway.turns.store_answered(inbound, f"Reminder: {text}", also=no_more)


@pytest.mark.parametrize("user", ["chat:ana", "chat:ben"])
async def test_yes_after_a_reminder_below_the_question_does_not_count(open_gateway: Open, user: str) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?", room="lobby", mention=True)
    await chat.shown(1, room="lobby")
    for count, is_reply in ((2, True), (5, False)):
        await remind(gateway, "Lunch? Answer yes or no.", user=user)
        *_, reminder = await chat.shown(count, room="lobby")

        await chat.say("yes", room="lobby", mention=True, in_reply_to=reminder.id if is_reply else None)

        assert (await texts(chat, count + 2, room="lobby"))[-2:] == [UNCLEAR, QUESTION]
    assert await open_calls(gateway, 1) == ["c1"]
    await chat.say("yes", room="lobby", mention=True)
    assert (await texts(chat, 9, room="lobby"))[7:] == ["I run calculate.", "It is 4."]


async def test_yes_after_a_reminder_of_unknown_outcome_does_not_count(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)
    lost = OutcomeUnknown("the response was lost")
    vars(lost)["arrived"] = True
    chat.faults.extend([lost, RetryLater("too many", seconds=600)])
    await remind(gateway, "Lunch? Answer yes or no.", user="chat:ana")
    while chat.faults:
        await gateway.rows()

    await chat.until_taken(await chat.say("yes"))

    assert await open_calls(gateway, 1) == ["c1"]
    (*_, answer, _) = await gateway.rows()
    assert answer.text == UNCLEAR


async def test_yes_after_a_refused_message_whose_notice_waits_does_not_count(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)
    chat.faults.append(RetryLater("too many", seconds=600))
    await chat.until_taken(await chat.say("No! " + "x" * 10_000))
    while chat.faults:
        await gateway.rows()

    await chat.until_taken(await chat.say("ok"))

    assert await open_calls(gateway, 1) == ["c1"]
    (*_, answer, _) = await gateway.rows()
    assert answer.text == UNCLEAR


async def test_yes_after_a_refused_message_without_a_notice_does_not_count(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    for _ in range(3):  # the limit of notices
        await chat.until_taken(await chat.say("x" * 10_001))
    await chat.say("2+2?")
    assert (await texts(chat, 4))[3] == QUESTION
    await chat.until_taken(await chat.say("No! " + "x" * 10_000))

    await chat.say("ok")

    assert (await texts(chat, 6))[4:] == [UNCLEAR, QUESTION]
    assert await open_calls(gateway, 1) == ["c1"]
    await chat.say("ok")
    assert (await texts(chat, 8))[6:] == ["I run calculate.", "It is 4."]


class _NamedModel(ScriptedModel):
    """A model that reports the name with which the gateway marks its own texts."""

    def __init__(self, *answers: str | Sequence[Any]) -> None:
        super().__init__(*answers)
        self._model_name = GATEWAY_MODEL


@pytest.mark.parametrize("kind", [ScriptedModel, _NamedModel])
async def test_yes_after_an_older_text_that_the_operator_retried_does_not_count(
    open_gateway: Open, act: Act, kind: type[ScriptedModel]
) -> None:
    chat = chat_of()
    chat.faults.append(PermanentError("not now"))
    model = kind("Pizza? Answer yes or no.", [calculate()], "It is 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("hello")
    while [row.state for row in await gateway.rows()] != ["refused"]:
        pass
    await chat.say("2+2?")
    await chat.shown(1)
    (refused, _) = await gateway.rows()
    await gateway.deliveries.retry("*", refused.id, act=act)
    assert await texts(chat, 2) == [QUESTION, "Pizza? Answer yes or no."]

    await chat.say("yes")

    assert (await texts(chat, 4))[2:] == [UNCLEAR, QUESTION]
    assert await open_calls(gateway, 1) == ["c1"]


async def test_yes_in_reply_to_a_notice_counts_like_a_plain_yes(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)
    await chat.until_taken(await chat.say("yes", said_at=utc_now() - timedelta(minutes=1)))
    (_, too_early) = await chat.shown(2)
    await remind(gateway, "Lunch? Answer yes or no.", user="chat:ana")
    await chat.shown(3)

    await chat.until_taken(await chat.say("yes", in_reply_to=too_early.id))
    assert (await texts(chat, 5))[3:] == [UNCLEAR, QUESTION]
    assert await open_calls(gateway, 1) == ["c1"]
    await chat.until_taken(await chat.say("yes", said_at=utc_now() - timedelta(minutes=1)))
    (*_, too_early) = await chat.shown(6)
    await chat.say("yes", in_reply_to=too_early.id)

    assert (await texts(chat, 8))[6:] == ["I run calculate.", "It is 4."]


async def test_reply_to_the_question_counts_after_a_reminder(open_gateway: Open) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    (question,) = await chat.shown(1)
    await remind(gateway, "Lunch? Answer yes or no.", user="chat:ana")
    await chat.shown(2)

    await chat.say("yes", in_reply_to=question.id)

    assert (await texts(chat, 4))[2:] == ["I run calculate.", "It is 4."]


async def test_reply_to_the_text_before_the_question_does_not_count(open_gateway: Open) -> None:
    chat = chat_of()
    model = ScriptedModel(["Pizza? Answer yes or no. ```", calculate()], "It is 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    before, question = await chat.shown(2)
    assert question.text == QUESTION

    await chat.say("yes", in_reply_to=before.id)

    assert (await texts(chat, 4))[2:] == [UNCLEAR, QUESTION]
    assert await open_calls(gateway, 1) == ["c1"]
    await chat.say("yes", in_reply_to=(await chat.shown(4))[3].id)
    assert (await texts(chat, 6))[4:] == ["I run calculate.", "It is 4."]


async def test_time_limit_of_question_begins_when_it_is_shown(open_gateway: Open) -> None:
    chat = chat_of()
    now = utc_now()
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")], "2 and 4.")
    gateway = await open_gateway(chat, model, rules=ASKS, clock=lambda: now)
    await chat.say("both?")
    await chat.shown(1)
    await open_calls(gateway, 2)
    now += timedelta(minutes=59)
    await chat.say("yes")
    await chat.shown(3)

    now += timedelta(minutes=59)

    assert await open_calls(gateway, 1) == ["c2"]
    await chat.say("yes")
    assert (await texts(chat, 5))[3:] == ["I run calculate.", "2 and 4."]


async def test_question_that_waits_for_two_others_does_not_expire(open_gateway: Open) -> None:
    chat = chat_of()
    now = utc_now()
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2"), calculate("3+3", "c3")], "All.")
    gateway = await open_gateway(chat, model, rules=ASKS, clock=lambda: now)
    await chat.say("all three?")
    await chat.shown(1)
    await open_calls(gateway, 3)
    for answered in (1, 2):
        now += timedelta(minutes=40)
        await chat.say("yes")
        await chat.shown(1 + 2 * answered)

    assert "3+3" in (await texts(chat, 5))[-1]
    now += timedelta(minutes=40)
    assert await open_calls(gateway, 1) == ["c3"]


async def test_second_yes_sent_before_next_question_does_not_answer_it(
    open_gateway: Open,
) -> None:
    """The platform's clock decides, within the accuracy that it has shown so far."""
    chat = chat_of()
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")])
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("both?", said_at=utc_now())
    await chat.shown(1)
    await open_calls(gateway, 2)
    before = utc_now()
    await chat.say("yes", said_at=utc_now())
    await chat.shown(3)

    await chat.until_taken(await chat.say("ok", said_at=before))

    assert await open_calls(gateway, 1) == ["c2"]


async def test_next_unshown_question_comes_after_restart(open_gateway: Open, act: Act) -> None:
    chat = chat_of()
    model = ScriptedModel([calculate("1+1", "c1"), calculate("2+2", "c2")])
    first = await open_gateway(chat, model, rules=ASKS)
    await chat.say("both?")
    await chat.shown(1)
    await open_calls(first, 2)
    (turn,) = first.turns.live
    await first.hub.stop()
    await first.turns.stop(grace=0)
    await first.turns.approvals.decide("*", turn.id, "c1", Choice(approve=True), act)
    first.database.close()

    await open_gateway(chat, ScriptedModel("2 and 4."), rules=ASKS)

    assert "2+2" in (await texts(chat, 2))[1]
    await chat.say("yes")
    assert (await texts(chat, 4))[2:] == ["I run calculate.", "2 and 4."]


async def test_yes_sent_before_question_was_shown_is_rejected_with_notice(
    open_gateway: Open,
) -> None:
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    chat.gate = asyncio.Event()
    await chat.say("2+2?")
    await chat.called(1)  # the question is on its way

    await chat.until_taken(await chat.say("yes"))

    assert await open_calls(gateway, 1) == ["c1"]
    chat.gate.set()
    assert await texts(chat, 2) == [QUESTION, TOO_EARLY]
    await chat.say("yes")
    assert (await texts(chat, 4))[2:] == ["I run calculate.", "It is 4."]


@pytest.mark.parametrize("fault", ["ambiguous", "refused"])
async def test_yes_to_question_with_uncertain_delivery_repeats_question(open_gateway: Open, fault: str) -> None:
    chat = Chat(Capabilities(length=2_000, repeat="blind", pace=10_000), allow=["*"], on_ambiguous="hold")
    chat.faults.append(OutcomeUnknown("cut off") if fault == "ambiguous" else PermanentError("not now"))
    gateway = await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)
    await chat.say("2+2?")
    await open_calls(gateway, 1)
    while [row.state for row in await gateway.rows()] != [fault]:
        pass

    await chat.say("yes")

    assert await texts(chat, 2) == [
        "I cannot confirm that my question was shown to you, so that does not count as an answer. I ask again.",
        QUESTION,
    ]
    assert await open_calls(gateway, 1) == ["c1"]
    await chat.say("yes")
    assert (await texts(chat, 4))[2:] == ["I run calculate.", "It is 4."]


@pytest.mark.parametrize(("length", "parts"), [(0, 0), (1, 1), (166, 1), (300, 2)])
async def test_question_decided_elsewhere_before_display_is_not_shown(
    open_gateway: Open, act: Act, length: int, parts: int
) -> None:
    """The text before the question is kept, for any division into parts."""
    chat = chat_of()
    chat.gate = asyncio.Event()
    await chat.limit(0.01)
    before = ("Let me see. " * length).strip()
    model = ScriptedModel([*([before] if before else []), calculate()], "It is 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    await chat.called(1)  # and is about to be refused for now
    (turn,) = gateway.turns.live

    await gateway.turns.approvals.decide("*", turn.id, "c1", Choice(approve=True), act)
    await gateway.turns.reader.wait_for_end(turn)
    chat.gate.set()

    shown = await texts(chat, parts + 1)
    assert (" ".join(shown[:-1]), shown[-1]) == (before, "It is 4.")


async def test_question_decided_elsewhere_after_the_reply_so_far_is_not_shown(
    open_gateway: Open, act: Act
) -> None:
    chat = chat_of()
    model = ScriptedModel(["Let me see.", calculate()], "It is 4.")
    gateway = await open_gateway(chat, model, rules=ASKS)
    chat.gate = asyncio.Event()
    await chat.say("2+2?")
    await chat.called(1)
    (turn,) = gateway.turns.live
    await gateway.turns.approvals.decide("*", turn.id, "c1", Choice(approve=True), act)
    await gateway.turns.reader.wait_for_end(turn)

    chat.gate.set()

    assert await texts(chat, 2) == ["Let me see.", "It is 4."]


async def test_yes_that_waits_in_ingress_does_not_answer_later_question(
    open_gateway: Open,
) -> None:
    """The yes was sent before the question; the fetch of an earlier file delayed it."""
    chat = chat_of()
    model = ScriptedModel([calculate()])
    gateway = await open_gateway(chat, model, rules=ASKS, takes=["text"])
    chat.gate, arrives = asyncio.Event(), asyncio.Event()

    async def fetch(_: int) -> bytes:
        await arrives.wait()
        return b"x"

    await chat.say("2+2?")
    await chat.called(1)
    await chat.say("look", attachments=[Attachment(kind="file", media_type="text/plain", fetch=fetch)])
    yes = await chat.say("yes")
    await chat.until_taken(await chat.say("/status", sender="ben"))  # sent after it
    chat.gate.set()
    await chat.shown(1)

    arrives.set()
    await chat.until_taken(yes)

    assert await open_calls(gateway, 1) == ["c1"]


@pytest.mark.parametrize("late", [timedelta(minutes=1), timedelta(seconds=2)])
async def test_delayed_yes_does_not_answer_question_shown_after_it_was_sent(
    open_gateway: Open, late: timedelta
) -> None:
    """The platform held the yes while it could not reach the gateway."""
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel([calculate()]), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)

    await chat.until_taken(await chat.say("yes", said_at=utc_now() - late))

    assert await open_calls(gateway, 1) == ["c1"]
    assert (await texts(chat, 2))[1] == TOO_EARLY


async def test_yes_by_a_clock_that_is_slightly_behind_counts(open_gateway: Open) -> None:
    chat = chat_of()
    await open_gateway(chat, ScriptedModel([calculate()]), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(1)

    await chat.say("yes", said_at=utc_now() - timedelta(seconds=0.5))

    assert (await texts(chat, 2))[1] == "I run calculate."


async def test_message_with_future_time_counts_as_sent_now(open_gateway: Open) -> None:
    chat = chat_of()
    await open_gateway(chat, ScriptedModel("Hello."))

    await chat.say("hello", said_at=datetime.max.replace(tzinfo=UTC))

    assert await texts(chat, 1) == ["Hello."]


async def test_question_is_shown_when_all_its_parts_are_shown(open_gateway: Open) -> None:
    chat = chat_of()
    model = ScriptedModel(["Let me see.", calculate()])
    gateway = await open_gateway(chat, model, rules=ASKS)
    gates = [asyncio.Event() for _ in range(2)]
    chat.gate = gates[0]
    await chat.say("2+2?")
    await chat.called(1)
    chat.gate = gates[1]
    gates[0].set()
    await chat.called(2)
    assert [row.state for row in await gateway.rows()] == ["sent", "sending"]

    await chat.until_taken(await chat.say("yes"))

    assert await open_calls(gateway, 1) == ["c1"]
    gates[1].set()
    await chat.shown(2)
    await chat.say("yes")
    assert (await texts(chat, 4))[2:] == [TOO_EARLY, "I run calculate."]


async def test_question_asked_over_http_is_not_answered_in_chat(open_gateway: Open) -> None:
    """A client sent the message to the chat's channel over HTTP and received the question there."""
    chat = chat_of()
    gateway = await open_gateway(chat, ScriptedModel("Hello.", [calculate()]), rules=ASKS)
    await chat.say("hello")
    await chat.shown(1)
    (row,) = await gateway.rows()
    inbound = Inbound(
        owner=GATEWAY_OWNER, principal="operator", content="2+2?", channel=row.line, user="chat:ana"
    )
    await gateway.turns.accept(inbound)
    await open_calls(gateway, 1)

    await chat.until_taken(await chat.say("yes"))

    assert await open_calls(gateway, 1) == ["c1"]
    (asked,) = (await gateway.turns.approvals.list_open("*", limit=9)).items
    await gateway.turns.approvals.note_streamed(asked.id)  # as the program's event stream does
    await gateway.turns.accept(replace(inbound, content="yes"))
    assert await open_calls(gateway, 1) == ["c1"]  # the yes in the chat came later
    await gateway.turns.accept(replace(inbound, content="yes"))
    assert await open_calls(gateway, 0) == []


async def test_question_of_a_repeated_request_is_a_new_message(open_gateway: Open) -> None:
    """An edit of the preview would be above later messages, and notify the user of nothing."""
    chat = chat_of(edits=True, edit_every=0)
    first = await open_gateway(chat, ScriptedModel(["Let me see.", asyncio.Event()]), rules=ASKS)
    await chat.say("2+2?")
    await texts(chat, 1)
    await first.hub.stop()
    await first.turns.stop(grace=0)
    first.database.close()

    await open_gateway(chat, ScriptedModel([calculate()], "It is 4."), rules=ASKS)

    assert await texts(chat, 2) == ["–", QUESTION]


async def test_question_and_later_text_are_new_messages_after_the_preview(open_gateway: Open) -> None:
    chat = chat_of(edits=True, edit_every=0)
    before, after = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(["Let me see.", before, calculate()], ["It is", after, " 4."])
    gateway = await open_gateway(chat, model, rules=ASKS)
    await chat.say("2+2?")
    assert await texts(chat, 1) == ["Let me see. …"]
    before.set()
    assert await texts(chat, 2) == ["Let me see.", QUESTION]

    await chat.say("yes")
    await chat.shown(3)
    after.set()
    while (await texts(chat, 4))[3] != "It is 4.":
        await chat.called(len(chat.calls) + 1)

    assert await texts(chat, 4) == ["Let me see.", QUESTION, "I run calculate.", "It is 4."]
    turns = {row.turn_id for row in await gateway.rows()}
    assert len(turns) == 2


async def test_question_waits_for_preview_edit_in_progress(open_gateway: Open) -> None:
    """Otherwise an edit in progress would overwrite the reply so far."""
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
    while not (await gateway.turns.approvals.list_open("*", limit=1)).items:
        await gateway.rows()
    assert len(calls) == 2

    chat.gate.set()

    assert await texts(chat, 2) == ["Let me see.", QUESTION]


async def test_question_survives_restart_and_is_shown_once(open_gateway: Open) -> None:
    chat = chat_of()
    first = await open_gateway(chat, ScriptedModel(["Let me see. ", calculate()]), rules=ASKS)
    await chat.say("2+2?")
    await chat.shown(2)
    await first.hub.stop()
    await first.turns.stop(grace=0)
    first.database.close()

    await open_gateway(chat, ScriptedModel("It is 4."), rules=ASKS)
    await chat.say("yes")

    assert await texts(chat, 4) == ["Let me see.", QUESTION, "I run calculate.", "It is 4."]


async def test_platform_without_questions_denies_tool_call_at_once(open_gateway: Open) -> None:
    chat = chat_of(asks=False)
    model = ScriptedModel([calculate()], "I may not.")
    await open_gateway(chat, model, rules=ASKS)

    await chat.say("2+2?")

    assert await texts(chat, 1) == ["I may not."]
    assert "there is no person to ask" in str(model.requests[1].messages[-1])


async def test_hidden_characters_in_question_are_made_visible(open_gateway: Open) -> None:
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


async def test_open_code_block_of_the_reply_hides_no_arguments(open_gateway: Open) -> None:
    chat = chat_of()
    hidden = "[1](https://example.com '+ 1')"
    await open_gateway(chat, ScriptedModel(["See:\n\n```\n1", calculate(hidden)]), rules=ASKS)

    await chat.say("2+2?")

    _, question = await texts(chat, 2)
    assert hidden in question
    assert question.endswith("Answer yes or no.")
