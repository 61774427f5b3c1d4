"""A new conversation hides earlier messages from the model, also those of turns that have not ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from torana.errors import ModelFailed
from torana.messages import Inbound
from torana.sessions import Sessions
from torana.sessions.summaries import Summaries
from torana.testing import ScriptedModel
from torana.turns import SessionChanges

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


def request_texts(gateway: Any) -> list[list[str]]:
    """Return the message texts of each model request."""
    return [
        [part.content for said in asked.messages for part in said.parts] for asked in gateway.model.requests
    ]


@pytest.mark.parametrize("how", ["/new", "reset"])
async def test_unfinished_turns_stay_in_the_old_conversation(boot: Boot, message: Message, how: str) -> None:
    gate = asyncio.Event()
    gateway = await boot(ScriptedModel([gate, "A"], "B", "C", "D"))
    running = await gateway.turns.accept(message("a"))
    await gateway.turns.accept(message("b"))
    await gateway.until_asked(1)

    if how == "/new":
        await gateway.turns.accept(message("/new"))
    else:
        sessions = Sessions(database=gateway.database, history_messages=40)
        changes = SessionChanges(database=gateway.database, sessions=sessions, turns=gateway.turns)
        await changes.reset("gateway", running.session_id)
    new = await gateway.turns.accept(message("c"))
    gate.set()
    await gateway.turns.reader.wait_for_end(new)
    last = await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("d")))

    assert request_texts(gateway) == [["a"], ["b"], ["c"], ["c", "C", "d"]]
    overdue = await Summaries(database=gateway.database, history_messages=2).overdue(last)
    assert overdue is not None
    assert overdue.transcript == "User: c\nAssistant: C"


async def test_turn_waiting_for_a_slot_gets_the_history_at_its_start(boot: Boot, message: Message) -> None:
    gate = asyncio.Event()
    gateway = await boot(ScriptedModel("A", [gate, "other"], "B"), concurrency=1)
    await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("a")))
    await gateway.turns.accept(message("other", channel="other"))
    await gateway.until_asked(2)
    waits = await gateway.turns.accept(message("b"))

    await gateway.turns.accept(message("/new"))
    gate.set()
    await gateway.turns.reader.wait_for_end(waits)

    assert request_texts(gateway) == [["a"], ["other"], ["b"]]


async def test_earlier_queued_turn_does_not_hide_the_new_conversation(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel([asyncio.Event()], "C", "B", "D"))
    await gateway.turns.accept(message("a"))
    old = await gateway.turns.accept(message("b"))
    await gateway.until_asked(1)

    await gateway.turns.accept(message("/new"))
    await gateway.turns.accept(message("c", on_busy="interrupt"))
    await gateway.turns.reader.wait_for_end(old)
    await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("d")))

    assert request_texts(gateway) == [["a"], ["c"], ["c", "C", "b"], ["c", "C", "d"]]


async def test_retried_turn_joins_the_new_conversation(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel([ModelFailed()], "A", "B"))
    failed = await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("a")))

    await gateway.turns.accept(message("/new"))
    await gateway.turns.reader.wait_for_end(await gateway.turns.retry("gateway", failed.id))
    await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("b")))

    assert request_texts(gateway) == [["a"], ["a"], ["a", "A", "b"]]
