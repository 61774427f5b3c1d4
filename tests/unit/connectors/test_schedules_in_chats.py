"""Schedules that are created in a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from pydantic_ai.messages import ToolCallPart
from tests.unit.connectors.conftest import Gateway

from torana.messages import EVERYONE, utc_now
from torana.schedules import Ticker
from torana.store.rows import schedules
from torana.store.rows.audit import Act
from torana.testing import ScriptedModel
from torana.testing.chat import Chat

Open = Callable[..., Awaitable[Gateway]]


async def test_reminders_and_tasks_are_sent_to_chat_of_their_creation(open_gateway: Open) -> None:
    chat = Chat(allow=["ana"])
    calls = [
        ToolCallPart("schedule_once", {"text": "call Ben", "at": "in 1 minute"}),
        ToolCallPart("schedule_once", {"text": "the weather?", "at": "in 2 minutes", "kind": "task"}),
    ]
    model = ScriptedModel(calls, "Both are scheduled.", "It is sunny.")
    gateway = await open_gateway(chat, model)
    # The agent's clock is in March: by the real clock both schedules are long due.
    ticker = Ticker(
        database=gateway.database,
        turns=gateway.turns,
        firings_per_day=10,
        woken=asyncio.Event(),
        clock=utc_now,
    )
    await chat.say("remind me")
    await chat.shown(1)
    while await ticker.run_due() == 0:
        pass

    texts = [said.text for said in await chat.shown(3)]
    assert texts[0] == "Both are scheduled."
    assert texts[1].startswith("Reminder, which was due on Monday, 2 March 2026 at 09:3")
    assert texts[1].endswith("(Europe/Lisbon): call Ben")
    assert texts[2] == "It is sunny."
    assert len({(row.account, row.line, row.place) for row in await gateway.rows()}) == 1


async def test_schedules_of_a_denied_sender_do_not_run(open_gateway: Open, act: Act) -> None:
    chat = Chat()
    calls = [
        ToolCallPart("schedule_once", {"text": "call Ben", "at": "in 1 minute"}),
        ToolCallPart("schedule_repeating", {"text": "the weather?", "rule": "every hour", "kind": "task"}),
    ]
    model = ScriptedModel(calls, "Both are scheduled.")
    gateway = await open_gateway(chat, model)
    await gateway.pairing.approve("chat:eve", user="eve@example.org", kinds=["chat"], act=act)
    await chat.say("remind me", sender="eve")
    await chat.shown(1, to="eve")

    await gateway.pairing.deny("chat:eve", kinds=["chat"], act=act)

    ticker = Ticker(
        database=gateway.database,
        turns=gateway.turns,
        firings_per_day=10,
        woken=asyncio.Event(),
        clock=utc_now,
    )
    assert await ticker.run_due() > 0
    found = await gateway.database.run(partial(schedules.list_schedules, owner=EVERYONE, limit=10))
    assert {(one.state, one.reason) for one in found} == {("paused", "paused: its sender was denied")}
    assert len(model.requests) == 2
