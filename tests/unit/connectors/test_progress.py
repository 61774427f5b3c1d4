"""Previews of running turns: they delay neither the reply nor the shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.unit.connectors.conftest import Gateway

from torana.connectors.base import Capabilities, OutcomeUnknown, Repeat, RetryLater
from torana.errors import StoreUnavailable
from torana.messages import EVERYONE
from torana.store.engine.database import Connection
from torana.store.rows import deliveries
from torana.store.rows.audit import Act
from torana.store.rows.deliveries import Delivery
from torana.testing import ScriptedModel
from torana.testing.chat import Chat

Open = Callable[..., Awaitable[Gateway]]
InTime = Callable[[], asyncio.Timeout]

GROWS = Capabilities(length=30, repeat="blind", edits=True, edit_every=0, pace=10_000)


async def test_previews_and_replies_are_rendered_off_the_event_loop(open_gateway: Open) -> None:
    threads: set[int] = set()

    def render(markdown: str) -> str:
        threads.add(threading.get_ident())
        return markdown

    chat = Chat(replace(GROWS, render=render), allow=["*"])
    gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel(["It is 4 ", gate, "[" * 200]))
    await chat.say("2+2?")
    await chat.called(1)  # its preview
    gate.set()
    await gateway.hub.flush(within=20)

    assert len(await chat.shown(2)) > 1
    assert threads
    assert threading.get_ident() not in threads


async def test_preview_with_long_retry_time_does_not_delay_reply(open_gateway: Open, in_time: InTime) -> None:
    chat = Chat(GROWS, allow=["*"])
    chat.faults = [RetryLater("slow down", seconds=3600)]
    gate = asyncio.Event()
    await open_gateway(chat, ScriptedModel(["It ", gate, "is 4."]))
    await chat.say("2+2?")
    await chat.called(1)
    gate.set()

    async with in_time():
        assert [one.text for one in await chat.shown(1)] == ["It is 4."]


async def test_preview_with_long_retry_time_does_not_delay_shutdown(
    open_gateway: Open, in_time: InTime
) -> None:
    chat = Chat(GROWS, allow=["*"])
    chat.faults = [RetryLater("slow down", seconds=3600)]
    gateway = await open_gateway(chat, ScriptedModel(["It ", asyncio.Event()]))
    await chat.say("2+2?")
    await chat.called(1)

    async with in_time():
        await gateway.turns.stop(grace=0)  # the turn is cut off
        await gateway.hub.stop()


async def test_shutdown_cancels_preview_in_progress(open_gateway: Open, in_time: InTime) -> None:
    chat = Chat(GROWS, allow=["*"])
    chat.gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel(["It ", asyncio.Event()]))
    await chat.say("2+2?")
    await chat.called(1)

    async with in_time():  # which is less than a call may take
        await gateway.hub.stop()


async def test_reply_dropped_before_splitting_is_not_sent_in_part(open_gateway: Open, act: Act) -> None:
    chat = Chat(GROWS, allow=["*"])
    chat.gate, gate = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(["It ", gate, "is more than one message can hold."])
    gateway = await open_gateway(chat, model)
    said = await chat.say("2+2?")
    await chat.called(1)  # its preview, which the reply waits for
    turn = await gateway.turns.reader.find_by_platform_message("home", said)
    assert turn is not None
    gate.set()
    await gateway.turns.reader.wait_for_end(turn)
    await gateway.deliveries.drop(EVERYONE, (await gateway.rows())[0].id, act=act)
    chat.gate.set()
    await gateway.hub.flush(within=20)

    assert [one.text for one in await chat.shown(1)] == ["It …"]
    assert [row.state for row in await gateway.rows()] == ["dropped"]


async def end_turn(gateway: Gateway, gate: asyncio.Event) -> None:
    """Let the only turn end, and wait until its reply is delivered."""
    (turn,) = gateway.turns.live
    gate.set()
    await gateway.turns.reader.wait_for_end(turn)
    await gateway.hub.flush(within=20)


@pytest.mark.parametrize("repeat", ["keyed", "readable"])
@pytest.mark.parametrize("has_arrived", [True, False])
async def test_unconfirmed_preview_becomes_the_reply(
    open_gateway: Open, repeat: Repeat, has_arrived: bool
) -> None:
    chat = Chat(replace(GROWS, repeat=repeat), allow=["*"])
    fault = OutcomeUnknown("the connection was lost")
    fault.arrived = has_arrived  # pyright: ignore[reportAttributeAccessIssue]
    chat.faults = [fault]
    gate = asyncio.Event()
    gateway = await open_gateway(chat, ScriptedModel(["It ", gate, "is 4."]))
    await chat.say("2+2?")
    await chat.called(1)
    await end_turn(gateway, gate)

    assert [one.text for one in await chat.shown(1)] == ["It is 4."]


async def test_preview_whose_id_cannot_be_stored_at_once_becomes_the_reply(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(GROWS, allow=["*"])
    gate, refused = asyncio.Event(), threading.Event()
    record = deliveries.record_preview

    def refuse_once(connection: Connection, number: int, shown_as: str) -> Delivery:
        if refused.is_set():
            return record(connection, number, shown_as)
        refused.set()
        raise StoreUnavailable

    monkeypatch.setattr(deliveries, "record_preview", refuse_once)
    gateway = await open_gateway(chat, ScriptedModel(["It ", gate, "is 4."]))
    await chat.say("2+2?")
    await asyncio.to_thread(refused.wait)
    gate.set()
    await chat.called(2)
    await gateway.hub.flush(within=20)

    assert [one.text for one in await chat.shown(1)] == ["It is 4."]
