"""Messages from ingress through the turn to the delivery of the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import BinaryContent, TextContent, UserContent, UserPromptPart
from tests.standins.clock import Clock
from tests.unit.connectors.conftest import Gateway

from torana.connectors.base import Attachment, Capabilities, OutcomeUnknown, PermanentError, RetryLater
from torana.connectors.runtime.outbox import REPEATED
from torana.connectors.transport.splitting import split
from torana.errors import Overloaded
from torana.limits.rate_limit_status import LimitStatus
from torana.limits.rates import MessageRates
from torana.messages import EVERYONE, GATEWAY_OWNER, Inbound, utc_now
from torana.store.engine.tables import attachments
from torana.store.rows.audit import Act
from torana.testing import ScriptedModel
from torana.testing.chat import Chat
from torana.turns import Queue
from torana.turns.inbox import Submitted

Open = Callable[..., Awaitable[Gateway]]

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


class Fetch:
    """A picture whose fetch waits for a gate."""

    def __init__(self) -> None:
        self.begun = 0
        self.has_begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.attachment = Attachment(kind="image", name="cat.png", media_type="image/png", fetch=self._fetch)

    async def _fetch(self, _limit: int) -> bytes:
        self.begun += 1
        self.has_begun.set()
        await self.gate.wait()
        return PNG


def shown_to(model: ScriptedModel, request: int) -> list[str | bytes]:
    """Return the user's texts and files in a model request, in order."""
    shown: list[str | bytes] = []
    for message in model.requests[request].messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                shown += [part.content] if isinstance(part.content, str) else map(_plain, part.content)
    return shown


def _plain(item: UserContent) -> str | bytes:
    if isinstance(item, BinaryContent):
        return item.data
    return item.content if isinstance(item, TextContent) else str(item)


async def kept_files(gateway: Gateway) -> list[bytes]:
    """Return the stored files of all turns."""
    return await gateway.database.run(lambda c: list(c.execute(sa.select(attachments.c.body)).scalars()))


def blind(**settings: object) -> Chat:
    return Chat(Capabilities(length=100, repeat="blind", pace=10_000), allow=["*"], **settings)


def fault_after_arrival(reason: str = "no answer") -> OutcomeUnknown:
    """Return a fault that occurs after the part was shown."""
    fault = OutcomeUnknown(reason)
    fault.arrived = True  # pyright: ignore[reportAttributeAccessIssue]
    return fault


async def test_message_is_acknowledged_and_answered_in_its_chat(open_gateway: Open) -> None:
    chat = Chat(allow=["ana"])
    gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel([gate, "It is **4**."]))

    said = await chat.say("2+2?")
    await chat.until_taken(said)  # durable, and not answered yet
    assert [turn.content for turn in gateway.turns.live] == ["2+2?"]
    gate.set()

    shown = await chat.shown(1)
    assert shown[0].text == "It is 4."
    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None
    assert (turn.user, turn.owner, turn.channel) == ("chat:ana", GATEWAY_OWNER, "home/with ana")
    assert turn.principal == "connector:home"


async def test_repeated_message_is_one_turn_and_one_reply(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("once", "next"))
    said = await chat.say("hello")
    await chat.shown(1)

    await chat.repeat(said)
    await chat.say("and now?")

    assert [one.text for one in await chat.shown(2)] == ["once", "next"]
    assert [row.state for row in await gateway.rows()] == ["sent", "sent"]


async def test_repeated_control_word_is_obeyed_once(open_gateway: Open) -> None:
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

    assert "/new starts" in (await chat.shown(3))[1].text
    assert [one.text for one in await chat.shown(3)][2] == "done"
    assert [turn.state for turn in gateway.turns.live] == []


async def test_room_is_answered_in_thread_and_unknown_senders_are_ignored(open_gateway: Open) -> None:
    chat = Chat(allow=["ana"], rooms=["lobby"])
    await open_gateway(chat, ScriptedModel("here"))

    await chat.say("let me in", sender="eve", room="lobby", mention=True)
    await chat.say("not to you", sender="ana", room="lobby")
    await chat.say("elsewhere", sender="ana", room="attic", mention=True)
    await chat.say("you there", sender="ana", room="lobby", thread="t1", mention=True)

    assert [one.text for one in await chat.shown(1, room="lobby", thread="t1")] == ["here"]
    assert await chat.shown(0, room="lobby") == []


async def test_platform_is_asked_about_replies_of_permitted_senders_only(open_gateway: Open) -> None:
    chat = Chat(allow=["ana"], rooms=["lobby"])
    await open_gateway(chat, ScriptedModel("here"))
    asked: list[str] = []

    def replies(sender: str, to_us: bool) -> Callable[[], Awaitable[bool]]:
        async def ask() -> bool:
            asked.append(sender)
            return to_us

        return ask

    await chat.say("let me in", sender="eve", room="lobby", replies_to_us=replies("eve", True))
    await chat.say("elsewhere", sender="ana", room="attic", replies_to_us=replies("ana in the attic", True))
    await chat.say("to eve", sender="ana", room="lobby", replies_to_us=replies("ana to eve", False))
    await chat.say("to you", sender="ana", room="lobby", replies_to_us=replies("ana", True))

    assert [one.text for one in await chat.shown(1, room="lobby")] == ["here"]
    assert asked == ["ana to eve", "ana"]


async def test_questions_about_replies_are_limited_for_each_sender(open_gateway: Open) -> None:
    chat = Chat(allow=["*"], rooms=["lobby"], per_minute=1000)
    await open_gateway(chat, ScriptedModel("here"))
    asked: list[str] = []

    async def ask() -> bool:
        asked.append("asked")
        return False

    for number in range(25):
        await chat.say(f"reply {number}", sender="ana", room="lobby", replies_to_us=ask)

    async def reply_to_us() -> bool:
        return True

    await chat.say("to you", sender="ben", room="lobby", replies_to_us=reply_to_us)
    assert [one.text for one in await chat.shown(1, room="lobby")] == ["here"]
    assert len(asked) == 20


async def test_bots_get_no_reply_unless_allowed(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("to ana"))

    await chat.until_taken(await chat.say("beep", sender="robot", bot=True))
    await chat.say("hello")

    await chat.shown(1)
    assert [row.line for row in await gateway.rows()] == ["home/with ana"]


async def test_long_reply_arrives_in_ordered_parts(open_gateway: Open) -> None:
    chat = Chat(Capabilities(length=30, repeat="keyed", pace=10_000), allow=["*"])
    words = [f"word{number}" for number in range(30)]
    gateway = await open_gateway(chat, ScriptedModel(" ".join(words), "short"))
    await chat.say("much")
    await chat.say("little")

    parts = split(" ".join(words), chat.connector.abilities)
    shown = await chat.shown(len(parts) + 1)
    assert " ".join(one.text for one in shown) == " ".join([*words, "short"])
    assert {row.state for row in await gateway.rows()} == {"sent"}


async def test_failed_turn_is_reported_in_chat(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    model = ScriptedModel([ModelHTTPError(400, "m", {"error": "bad"})])
    await open_gateway(chat, model)

    await chat.say("hello")

    assert (await chat.shown(1))[0].text.startswith("This message could not be answered: ")


async def test_rate_limits_are_respected_and_faults_are_retried(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    chat.faults = [RetryLater("too many", seconds=0.05), RetryLater("try again", seconds=0)]
    gateway = await open_gateway(chat, ScriptedModel("in the end"))

    await chat.say("hello")

    assert [one.text for one in await chat.shown(1)] == ["in the end"]
    assert len(chat.calls) == 3
    assert len({part.key for part in chat.calls}) == 1
    (row,) = await gateway.rows()
    assert row.tries == 3


@pytest.mark.parametrize("repeat", ["keyed", "readable"])
async def test_part_with_uncertain_outcome_is_shown_once(open_gateway: Open, repeat: str) -> None:
    chat = Chat(Capabilities(length=100, repeat=repeat, pace=10_000), allow=["*"])  # pyright: ignore[reportArgumentType]
    chat.faults = [fault_after_arrival()]
    await open_gateway(chat, ScriptedModel("one", "two"))

    await chat.say("hello")
    await chat.shown(1)
    await chat.say("again")

    assert [one.text for one in await chat.shown(2)] == ["one", "two"]


async def test_unsure_part_is_repeated_once_with_mark_and_then_held(open_gateway: Open, act: Act) -> None:
    chat = blind()
    chat.faults = [fault_after_arrival(), OutcomeUnknown("nobody knows")]
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


async def test_operator_setting_holds_unsure_part_at_once(open_gateway: Open, act: Act) -> None:
    chat = blind(on_ambiguous="hold")
    chat.faults = [OutcomeUnknown("nobody knows")]
    gateway = await open_gateway(chat, ScriptedModel("one", "two"))
    await chat.say("hello")
    await chat.called(1)
    await chat.say("again")

    assert [one.text for one in await chat.shown(1)] == ["two"]
    held = (await gateway.rows())[0]
    assert held.state == "ambiguous"
    dropped = await gateway.deliveries.drop(EVERYONE, held.id, act=act)
    assert dropped.state == "dropped"


async def test_refused_part_does_not_stop_later_deliveries(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    chat.faults = [PermanentError("no such chat")]
    gateway = await open_gateway(chat, ScriptedModel("one", "two"))
    await chat.say("hello")
    await chat.called(1)
    await chat.say("again")

    assert [one.text for one in await chat.shown(1)] == ["two"]
    refused, _ = await gateway.rows()
    assert (refused.state, refused.reason, refused.text) == ("refused", "no such chat", "one")


async def test_part_interrupted_by_crash_is_sent_once(open_gateway: Open) -> None:
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


async def test_late_reply_becomes_stale_and_can_be_sent_again(open_gateway: Open, act: Act) -> None:
    chat = Chat(allow=["*"])
    chat.faults = [RetryLater("down", seconds=0.01)]
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


async def test_sender_over_rate_limit_gets_notice(open_gateway: Open) -> None:
    chat = Chat(allow=["*"], per_minute=1)
    await open_gateway(chat, ScriptedModel("one", "to bob"))
    await chat.say("hello")
    await chat.shown(1)
    await chat.say("hello again")

    assert "limit is 1 a minute" in (await chat.shown(2))[1].text
    await chat.say("hello", sender="bob")
    assert [one.text for one in await chat.shown(1, to="bob")] == ["to bob"]


async def test_user_rate_limit_of_gateway_applies_to_chats(open_gateway: Open) -> None:
    chat = Chat(allow=["*"], users={"ana": "anabel"})
    rates = MessageRates(per_user=1, overall=0)
    await open_gateway(chat, ScriptedModel("one"), rates=rates)
    await chat.say("hello")
    await chat.shown(1)
    await chat.say("hello again")

    assert "TORANA_RATE_PER_USER" in (await chat.shown(2))[1].text


async def test_loop_between_two_bots_is_paused(open_gateway: Open) -> None:
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
    assert len(shown) == 6  # notices are limited to three a minute
    assert list(gateway.turns.live) == []


async def test_chat_pause_ends_when_clock_is_set_back(open_gateway: Open) -> None:
    chat, wall = Chat(allow=["*"], per_session=1), Clock(utc_now() + timedelta(days=1_000))
    await open_gateway(chat, ScriptedModel("one", "two"), clock=wall)
    await chat.say("first")
    await chat.shown(1)
    wall.now -= timedelta(days=1_000)
    await chat.say("second")

    assert [one.text for one in await chat.shown(2)] == ["one", "two"]


@pytest.mark.parametrize("text", ["", "  \n", "\0"])
async def test_empty_message_is_ignored(open_gateway: Open, text: str) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("hi"))
    await chat.until_taken(await chat.say(text))
    await chat.say("hello")

    await chat.shown(1)
    assert len(await gateway.rows()) == 1


async def test_message_over_size_limit_is_refused_with_notice(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    await open_gateway(chat, ScriptedModel())
    await chat.say("x" * 1_000_000)

    assert "longer than 10,000 characters" in (await chat.shown(1))[0].text


async def test_attachments_are_named_in_message(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    model = ScriptedModel("seen")
    gateway = await open_gateway(chat, model)
    said = await chat.say("look", file=("cat\n\u202egnp.exe", "image/png", b"123456"))
    await chat.shown(1)

    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None
    assert turn.content == "look\n[image: cat gnp.exe, image/png, 0.0 kB]"


async def test_preview_grows_into_reply_as_one_message(open_gateway: Open) -> None:
    able = Capabilities(length=100, repeat="blind", edits=True, edit_every=0, typing_every=60, pace=10_000)
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


async def test_preview_waits_for_earlier_reply(open_gateway: Open) -> None:
    able = Capabilities(length=100, repeat="keyed", edits=True, edit_every=0, pace=10_000)
    chat = Chat(able, allow=["*"])
    chat.gate, gate = asyncio.Event(), asyncio.Event()
    model = ScriptedModel("one", ["tw", gate, "o"])
    gateway = await open_gateway(chat, model)
    await chat.say("first")
    await chat.called(1)
    await chat.say("second")
    await model.asked(2)
    gate.set()
    await asyncio.gather(*(gateway.turns.reader.wait_for_end(turn) for turn in list(gateway.turns.live)))
    chat.gate.set()

    assert [one.text for one in await chat.shown(2)] == ["one", "two"]
    texts = [part.text for part in chat.calls]
    assert [text for text in texts if text.startswith("tw")] == ["two"]


async def test_deleted_preview_is_replaced_by_reply(open_gateway: Open) -> None:
    able = Capabilities(length=100, repeat="blind", edits=True, edit_every=0, pace=10_000)
    chat = Chat(able, allow=["*"])
    gate = asyncio.Event()
    await open_gateway(chat, ScriptedModel(["It ", gate, "is 4."]))
    await chat.say("2+2?")
    preview = (await chat.shown(1))[0]
    chat.forget(preview.id)
    gate.set()

    assert [one.text for one in await chat.shown(1)] == ["It is 4."]


async def test_replies_wait_without_connection(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel([gate, "late"]))
    await chat.until_taken(await chat.say("hello"))
    await gateway.hub.stop()
    turn = next(iter(gateway.turns.live))
    gate.set()
    await gateway.turns.reader.wait_for_end(turn)
    assert [row.state for row in await gateway.rows()] == ["pending"]

    await open_gateway(chat)

    assert [one.text for one in await chat.shown(1)] == ["late"]


async def test_unstorable_ids_still_distinguish_messages(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    chat.id_suffix = "\0\ud800" + "x" * 1000
    await open_gateway(chat, ScriptedModel("one", "two"))

    first = await chat.say("hello")
    await chat.shown(1)
    await chat.repeat(first)
    await chat.say("again")

    assert [one.text for one in await chat.shown(2)] == ["one", "two"]


async def test_sender_without_valid_id_is_ignored(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("to ana"))
    for sender in ("", "eve\n", "eve\0", "\u202eeve", "e" * 1000):
        await chat.until_taken(await chat.say("hello", sender=sender))
    await chat.say("hello")

    await chat.shown(1)
    assert len(await gateway.rows()) == 1


async def test_picture_reaches_model_and_is_deleted_after_reply(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    model = ScriptedModel("a cat", "I only know its name")
    gateway = await open_gateway(chat, model, takes=["image"])
    said = await chat.say("look", file=("cat.png", "image/png", PNG))
    await chat.shown(1)
    await chat.say("what was it?")
    await chat.shown(2)

    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None
    assert (turn.content, turn.files) == ("look\n[image: cat.png, image/png, 0.0 kB]", 1)
    assert shown_to(model, 0) == [turn.content, "Attachments of this message:", "cat.png:", PNG]
    assert shown_to(model, 1) == [turn.content, "what was it?"]
    assert await kept_files(gateway) == []


async def test_file_is_not_fetched_for_model_without_file_support(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    fetch = Fetch()
    gateway = await open_gateway(chat, ScriptedModel("seen"), takes=["text", "pdf"])
    said = await chat.say("look", attachments=[fetch.attachment])
    await chat.shown(1)

    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None
    assert (turn.content, turn.files, fetch.begun) == ("look\n[image: cat.png, image/png]", 0, 0)


async def test_file_of_unknown_or_rate_limited_sender_is_not_fetched(open_gateway: Open) -> None:
    chat = Chat(allow=["ana"], per_minute=1)
    fetch = Fetch()
    await open_gateway(chat, ScriptedModel("seen"), takes=["image"])
    await chat.until_taken(await chat.say("look", sender="eve", attachments=[fetch.attachment]))
    await chat.until_taken(await chat.say("x" * 10_001, attachments=[fetch.attachment]))
    await chat.until_taken(await chat.say("look", attachments=[fetch.attachment]))
    assert fetch.begun == 0


async def test_message_with_hanging_file_is_repeated_after_restart(
    open_gateway: Open, in_time: Callable[[], asyncio.Timeout]
) -> None:
    chat = Chat(allow=["*"])
    fetch = Fetch()
    fetch.gate.clear()
    gateway = await open_gateway(chat, takes=["image"])
    said = await chat.say("look", attachments=[fetch.attachment])
    async with in_time():
        await fetch.has_begun.wait()
        await gateway.hub.stop()
    assert await gateway.turns.reader.find_by_platform_message("home", said) is None
    fetch.gate.set()

    await open_gateway(chat, ScriptedModel("a cat"), takes=["image"])

    await chat.until_taken(said)
    assert [one.text for one in await chat.shown(1)] == ["a cat"]
    assert fetch.begun == 2


async def test_file_is_fetched_once_while_gateway_is_full(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch, in_time: Callable[[], asyncio.Timeout]
) -> None:
    chat = Chat(allow=["*"])
    fetch, gate, refused = Fetch(), asyncio.Event(), asyncio.Event()
    model = ScriptedModel([gate, "one"], "two", "three")
    gateway = await open_gateway(chat, model, takes=["image"], queue=Queue(overall=1))
    submit = gateway.turns.submit

    async def watched(inbound: Inbound, *, rates: Sequence[LimitStatus]) -> Submitted:
        try:
            return await submit(inbound, rates=rates)
        except Overloaded:
            refused.set()
            raise

    monkeypatch.setattr(gateway.turns, "submit", watched)
    await chat.say("first", sender="bob")
    said = await chat.say("look", attachments=[fetch.attachment])
    async with in_time():
        await refused.wait()
    gate.set()

    await chat.until_taken(said)
    assert [one.text for one in await chat.shown(1)] == ["two"]
    assert fetch.begun == 1
    assert shown_to(model, 1)[-1] == PNG


async def test_draining_gateway_sends_replies_and_defers_messages(open_gateway: Open) -> None:
    chat = Chat(allow=["*"])
    gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel([gate, "at last"]))
    await chat.until_taken(await chat.say("hello"))
    stopping = asyncio.create_task(gateway.turns.stop(grace=20))
    await asyncio.sleep(0)  # its first step
    assert gateway.turns.draining
    later = await chat.say("too late", sender="bob")
    gate.set()
    await stopping
    await gateway.hub.flush(within=20)

    assert [one.text for one in await chat.shown(0)] == ["at last"]
    assert gateway.hub.active() == ["home"]
    await gateway.hub.stop()

    await open_gateway(chat, ScriptedModel("to bob"))
    await chat.until_taken(later)
    assert [one.text for one in await chat.shown(1, to="bob")] == ["to bob"]


async def test_retried_turn_sends_new_reply(open_gateway: Open) -> None:
    chat = Chat(Capabilities(length=400, repeat="blind", pace=10_000), allow=["*"])
    failing = [ModelHTTPError(400, "m", {"error": "bad"})]
    gateway = await open_gateway(chat, ScriptedModel(failing, "word " * 200))
    said = await chat.say("hello")
    failed = await chat.shown(1)
    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None

    await gateway.turns.reader.wait_for_end(await gateway.turns.retry(GATEWAY_OWNER, turn.id))

    parts = split("word " * 200, replace(chat.connector.abilities, length=400 - len(REPEATED)))
    shown = await chat.shown(len(failed) + len(parts))
    assert " ".join(one.text for one in shown[len(failed) :]).split() == ["word"] * 200


async def test_turn_can_be_retried_while_its_failure_is_being_sent(open_gateway: Open) -> None:
    chat = blind()
    chat.gate = asyncio.Event()
    failing = [ModelHTTPError(400, "m", {"error": "bad"})]
    gateway = await open_gateway(chat, ScriptedModel(failing, "word " * 40))
    said = await chat.say("hello")
    await chat.called(1)
    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None

    await gateway.turns.reader.wait_for_end(await gateway.turns.retry(GATEWAY_OWNER, turn.id))
    chat.gate.set()

    shown = await chat.shown(1)
    while sum(one.text.count("word") for one in shown) < 40:
        shown = await chat.shown(len(shown) + 1)
    assert shown[0].text.startswith("This message could not be answered: ")
    assert "word" not in shown[0].text


async def test_message_waiting_for_free_queue_counts_once_for_rate_limit(open_gateway: Open) -> None:
    chat = Chat(allow=["*"], per_minute=2)
    gate = asyncio.Event()
    model = ScriptedModel([gate, "one"], "two", "three")
    await open_gateway(chat, model, queue=Queue(overall=1))
    await chat.say("first")
    await model.asked()
    await chat.say("second", sender="bob")  # there is no room: it is tried again and again
    await chat.say("third", sender="bob")
    gate.set()

    assert [one.text for one in await chat.shown(2, to="bob")] == ["two", "three"]


HOSTILE = ["", "\ud800", "\0", "a\nb\r\x1b[2J\u202e", "x" * 100_000, "a/%2F/../b", "\U000e0001"]


@pytest.mark.parametrize("allow", [["*"], ["ana"]], ids=["approved", "unknown"])
async def test_messages_with_hostile_values_do_not_end_the_connection(
    open_gateway: Open, allow: list[str]
) -> None:
    """A message that ends the connection would be repeated, and never be taken."""
    chat = Chat(allow=allow, per_minute=10_000, per_session=0)
    await open_gateway(chat, ScriptedModel(*["yes"] * 1_000))
    times = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    for value in HOSTILE:
        chat.id_suffix = value
        file = Attachment(kind="file", name=value, media_type=value, size=10**30)
        last = await chat.say(f"hi {value}", sender="eve", room=f"room{value}", thread=value, mention=True)
        await chat.until_taken(last)
        last = await chat.say("hi", sender=value, attachments=[file], said_at=times[len(value) % 2])
        await chat.until_taken(last)
        last = await chat.say(f"hi {value}", sender=f"eve{value}", attachments=[file], said_at=times[0])
        await chat.until_taken(last)

    chat.id_suffix = ""
    await chat.say("after")

    assert (await chat.shown(1))[-1].text == "yes"


@pytest.mark.parametrize("size", [-1, 10**400], ids=["negative", "huge"])
async def test_message_with_impossible_file_size_is_answered(open_gateway: Open, size: int) -> None:
    chat = Chat(allow=["ana"])
    await open_gateway(chat, ScriptedModel("seen", "heard"))
    file = Attachment(kind="image", name="cat.png", media_type="image/png", size=size)

    await chat.say("look", attachments=[file])
    await chat.say("and now?")

    assert [one.text for one in await chat.shown(2)] == ["seen", "heard"]
