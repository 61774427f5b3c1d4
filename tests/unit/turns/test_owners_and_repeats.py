"""Channels with the same name of two owners, repeated platform messages, and the task of a cancelled turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ToolCallPart
from sqlalchemy.engine import Connection

from torana.messages import Inbound
from torana.store.engine.tables import turns
from torana.testing import ScriptedModel
from torana.tools import ToolContext

Boot = Callable[..., Awaitable[Any]]
Message = Callable[..., Inbound]


def prompts(gateway: Any) -> list[list[str]]:
    """The texts of the messages in each request to the model."""
    return [
        [part.content for message in request.messages for part in message.parts]
        for request in gateway.model.requests
    ]


def count_turns(connection: Connection) -> int:
    return connection.execute(sa.select(sa.func.count(turns.c.id))).scalar_one()


async def say(gateway: Any, inbound: Inbound) -> str | None:
    return (await gateway.turns.reader.wait_for_end(await gateway.turns.accept(inbound))).reply


async def test_a_new_conversation_of_one_owner_keeps_that_of_another(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel("A", "B", "C", "D"))
    for owner in ("gateway", "user:ben"):
        await say(gateway, message(f"first of {owner}", owner=owner))

    await say(gateway, message("/new"))
    await say(gateway, message("second", owner="user:ben"))
    await say(gateway, message("second"))

    assert prompts(gateway)[2:] == [["first of user:ben", "B", "second"], ["second"]]


async def test_a_stop_of_one_owner_leaves_the_turns_of_another(boot: Boot, message: Message) -> None:
    gate = asyncio.Event()
    gateway = await boot(ScriptedModel([gate, "B"]))
    running = await gateway.turns.accept(message("b", owner="user:ben"))
    await gateway.until_asked(1)

    assert await say(gateway, message("/stop")) == "Nothing is running here."
    gate.set()

    assert (await gateway.turns.reader.wait_for_end(running)).reply == "B"


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one after another"])
async def test_a_repeated_platform_message_is_one_turn(boot: Boot, message: Message, at_once: bool) -> None:
    gateway = await boot(ScriptedModel("A"))
    heard = replace(message("a"), account="chat", message="m1", place="{}")
    submitting = [gateway.turns.submit(heard) for _ in range(3)]
    submitted = (
        await asyncio.gather(*submitting) if at_once else [await submission for submission in submitting]
    )

    assert sorted(one.new for one in submitted) == [False, False, True]
    assert len({one.turn.id for one in submitted}) == 1
    await gateway.turns.reader.wait_for_end(submitted[0].turn)
    assert await gateway.database.run(count_turns) == 1
    assert prompts(gateway) == [["a"]]


async def test_the_task_of_a_cancelled_waiting_turn_ends(boot: Boot, message: Message) -> None:
    async def pay(amount: int) -> str:
        """Pay an amount."""
        raise AssertionError("a cancelled turn calls no tool")

    tools = FunctionToolset[ToolContext]()
    tools.add_function(pay, metadata={"idempotent": False, "permission": "ask"})
    gateway = await boot(ScriptedModel([ToolCallPart("pay", {"amount": 5}, tool_call_id="c1")]), tools)
    turn = await gateway.turns.accept(message())
    async for event in gateway.turns.reader.events(turn):
        if event.type == "approval.required":
            break
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == turn.id]

    cancelled = await gateway.turns.cancel("gateway", turn.id)

    assert (cancelled.state, len(tasks)) == ("cancelled", 1)
    async with asyncio.timeout(20):
        await asyncio.wait(tasks)
    assert gateway.turns.live.get(turn.id) is None
    events = [event.type async for event in gateway.turns.reader.events(turn)]
    assert events == ["turn.accepted", "tool.started", "approval.required", "turn.failed"]
