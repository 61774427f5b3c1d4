"""Pairing: unknown senders, their codes and the operator's decisions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.unit.connectors.conftest import Gateway

from torana.connectors.runtime import ingress
from torana.errors import NotFound, StoreUnavailable
from torana.messages import utc_now
from torana.people.pairing import Pairing
from torana.store.engine.database import Database
from torana.store.rows import deliveries
from torana.store.rows.audit import Act
from torana.store.rows.senders import Asker
from torana.testing import ScriptedModel
from torana.testing.chat import Chat

#: The prefixes of user ids in these tests.
KINDS = ("chat", "irc")

Open = Callable[..., Awaitable[Gateway]]


def code_in(text: str) -> str:
    found = re.search(r"pair approve ([A-Z2-9]{8})", text)
    assert found is not None
    return found[1]


async def test_log_names_the_command_that_approves_the_sender(
    open_gateway: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "torana")
    chat = Chat()
    await open_gateway(chat, ScriptedModel())
    await chat.say("hello", sender="eve; reboot")
    await chat.shown(1, to="eve; reboot")
    (record,) = [record for record in caplog.records if record.msg == "pairing_requested"]
    assert vars(record)["approve"] == "torana pair approve 'chat:eve; reboot'"


async def test_unknown_sender_gets_code_and_talks_after_approval(open_gateway: Open, act: Act) -> None:
    chat = Chat()
    gateway = await open_gateway(chat, ScriptedModel("welcome"))
    await chat.say("hello", sender="eve")
    code = code_in((await chat.shown(1, to="eve"))[0].text)
    await chat.until_taken(await chat.say("hello?", sender="eve"))  # not answered again
    (waiting,) = await gateway.pairing.list_senders()
    assert waiting.state == "pending"
    assert (waiting.asker.sender, waiting.asker.name, waiting.asker.account) == ("eve", "Eve", "home")

    approved = await gateway.pairing.approve(code.lower(), kinds=KINDS, act=act)
    assert (approved.state, approved.user) == ("approved", "chat:eve")
    said = await chat.say("and now?", sender="eve")

    assert [one.text for one in await chat.shown(2, to="eve")][1] == "welcome"
    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None
    assert turn.user == "chat:eve"


async def test_operator_assigns_several_senders_to_one_user(open_gateway: Open, act: Act) -> None:
    chat = Chat()
    gateway = await open_gateway(chat, ScriptedModel("hi", "hi"))
    await gateway.pairing.approve("chat:ana", user="ana@example.org", kinds=KINDS, act=act)
    await gateway.pairing.approve("chat:ana2", user="ana@example.org", kinds=KINDS, act=act)

    said = [await chat.say("hello", sender=sender) for sender in ("ana", "ana2")]
    await chat.shown(1, to="ana")
    await chat.shown(1, to="ana2")

    turns = [await gateway.turns.reader.find_by_platform_message("home", message) for message in said]
    assert [turn and turn.user for turn in turns] == ["ana@example.org"] * 2


async def test_denied_sender_gets_no_reply_though_settings_allow_all(open_gateway: Open, act: Act) -> None:
    chat = Chat(allow=["*"])
    gateway = await open_gateway(chat, ScriptedModel("to ana"))
    await gateway.pairing.deny("chat:eve", kinds=KINDS, act=act)

    await chat.until_taken(await chat.say("hello", sender="eve"))
    await chat.say("hello", sender="ana")

    await chat.shown(1, to="ana")
    assert await chat.shown(0, to="eve") == []


async def test_codes_expire_and_sender_gets_few_of_them(open_gateway: Open, act: Act) -> None:
    chat = Chat()
    late = timedelta()

    def clock() -> datetime:
        return utc_now() + late

    gateway = await open_gateway(chat, clock=clock)
    codes: list[str] = []
    for number in range(3):
        await chat.say("hello", sender="eve")
        codes.append(code_in((await chat.shown(number + 1, to="eve"))[number].text))
        late += timedelta(minutes=61)
    await chat.until_taken(await chat.say("hello", sender="eve"))

    assert len(set(codes)) == 3
    assert len(await chat.shown(3, to="eve")) == 3
    for code in codes:
        late_act = Act(principal=act.principal, source=act.source, at=clock())
        with pytest.raises(NotFound):
            await gateway.pairing.approve(code, kinds=KINDS, act=late_act)


async def test_sender_without_decision_gets_three_codes_and_no_more(database: Database, act: Act) -> None:
    now = act.at
    pairing = Pairing(database=database, clock=lambda: now)
    asker = Asker(kind="chat", sender="eve", account="home", place="{}", name="Eve")
    codes: list[str | None] = []
    for _ in range(5):
        codes.append(await pairing.ask(asker))
        now += timedelta(hours=1)

    assert [code is not None for code in codes] == [True, True, True, False, False]


async def test_sender_gets_code_though_its_notice_was_not_stored_at_first(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, faults, add_notice = Chat(), [StoreUnavailable("the disk is full")], deliveries.add_notice

    def add_later(*arguments: Any, **named: Any) -> None:
        if faults:
            raise faults.pop()
        add_notice(*arguments, **named)

    monkeypatch.setattr(deliveries, "add_notice", add_later)
    monkeypatch.setattr(ingress, "_PAUSES", (0.0,))
    gateway = await open_gateway(chat)
    await chat.until_taken(await chat.say("hello", sender="eve"))

    (notice,) = await gateway.rows()
    assert code_in(notice.text)
    assert faults == []


async def test_code_from_fast_clock_is_expired_and_replaced(database: Database, act: Act) -> None:
    ahead = timedelta(days=1_000)
    pairing = Pairing(database=database, clock=lambda: act.at + ahead)
    asker = Asker(kind="chat", sender="eve", account="home", place="{}", name="Eve")
    early = await pairing.ask(asker)
    ahead = timedelta()

    with pytest.raises(NotFound):
        await pairing.approve(early or "", kinds=KINDS, act=act)
    right = await pairing.ask(asker)
    assert (await pairing.approve(right or "", kinds=KINDS, act=act)).state == "approved"


async def test_no_pairing_in_room_or_when_disabled(open_gateway: Open) -> None:
    chat = Chat(pairing=False)
    gateway = await open_gateway(chat)
    await chat.until_taken(await chat.say("hello", sender="eve", room="lobby", mention=True))
    await chat.until_taken(await chat.say("hello", sender="eve"))

    assert await gateway.pairing.list_senders() == []
    assert await gateway.rows() == []


async def test_unknown_senders_over_limit_get_no_reply(open_gateway: Open) -> None:
    chat = Chat()
    gateway = await open_gateway(chat)
    for number in range(55):
        await chat.until_taken(await chat.say("hello", sender=f"eve{number}"))

    assert len(await gateway.pairing.list_senders()) == 50


async def test_approved_ids_are_listed_by_kind_latest_first(open_gateway: Open, act: Act) -> None:
    pairing = (await open_gateway(Chat())).pairing
    for minutes, who in enumerate(("chat:ana", "chat:bob", "chat:eve", "irc:ana")):
        await pairing.approve(who, kinds=KINDS, act=replace(act, at=act.at + timedelta(minutes=minutes)))
    await pairing.deny("chat:eve", kinds=KINDS, act=act)

    assert await pairing.approved_ids("chat", 9) == ["bob", "ana"]
    assert await pairing.approved_ids("chat", 1) == ["bob"]


@pytest.mark.parametrize("word", ["approve", "deny"])
@pytest.mark.parametrize(
    ("who", "kinds", "told"),
    [
        ("chta:ana", ("irc", "chat"), 'chta\'; the settings have chat, irc; did you mean "chat"?'),
        ("@ana:example.org", ("irc",), "@ana'; the settings have irc"),
        ("chat:ana", (), "chat'; the settings have none"),
    ],
)
async def test_unknown_connector_kind_is_refused_and_stores_nothing(
    open_database: Callable[[], Database], act: Act, word: str, who: str, kinds: Sequence[str], told: str
) -> None:
    pairing = Pairing(database=open_database(), clock=utc_now)
    decided = {"approve": pairing.approve, "deny": pairing.deny}[word]

    with pytest.raises(NotFound) as refused:
        await decided(who, kinds=kinds, act=act)

    assert refused.value.detail == f"there is no connector '{told}"
    assert await pairing.list_senders() == []


async def test_known_sender_can_be_denied_after_its_connector_is_removed(
    open_database: Callable[[], Database], act: Act
) -> None:
    pairing = Pairing(database=open_database(), clock=utc_now)
    await pairing.approve("chat:ana", kinds=KINDS, act=act)

    assert (await pairing.deny("chat:ana", kinds=(), act=act)).state == "denied"
