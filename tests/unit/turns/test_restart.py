"""Stops, crashes and restarts lose no message and record none twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ToolCallPart

from torana.errors import Draining
from torana.messages import GATEWAY_OWNER, Inbound, Turn
from torana.store.engine.database import Database
from torana.store.engine.tables import steps
from torana.store.rows.reports.turn_lists import TurnFilter, newest
from torana.testing import ScriptedModel
from torana.tools import ToolContext
from torana.turns import Turns, inbox, runner

OpenTurns = Callable[..., Turns]
OpenDatabase = Callable[[], Database]
Say = Callable[..., Awaitable[Turn]]
Message = Callable[..., Inbound]


async def test_start_answers_unfinished_turns_in_order(
    open_turns: OpenTurns, open_database: OpenDatabase, message: Message
) -> None:
    before = open_turns(ScriptedModel([asyncio.Event()], [asyncio.Event()]))
    accepted = [
        await before.accept(message(text, channel=channel))
        for text, channel in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a"), ("b2", "b")]
    ]
    await before.stop(grace=0)

    model = ScriptedModel(*("again",) * 5)
    after = open_turns(model, database=open_database())
    await after.start()
    ended = [await after.reader.wait_for_end(turn) for turn in accepted]

    assert [(turn.content, turn.reply) for turn in ended] == [
        (text, "again") for text in ("a1", "a2", "b1", "a3", "b2")
    ]
    # The first of each session had started before the stop.
    assert [turn.attempt for turn in ended] == [2, 1, 2, 1, 1]
    assert len(model.requests) == 5


async def test_turn_that_is_due_during_the_stop_runs_after_the_next_start(
    open_turns: OpenTurns, open_database: OpenDatabase, message: Message
) -> None:
    gate = asyncio.Event()
    before = open_turns(ScriptedModel([gate, "one"]))
    first, second = [await before.accept(message(text)) for text in ("first", "second")]
    stopping = asyncio.ensure_future(before.stop(grace=60))
    await asyncio.sleep(0)
    gate.set()
    await stopping

    after = open_turns(ScriptedModel("two"), database=open_database())
    await after.start()

    assert (await after.reader.wait_for_end(first)).reply == "one"
    assert (await after.reader.wait_for_end(second)).reply == "two"


async def test_events_of_queued_turns_continue_after_a_restart(
    open_turns: OpenTurns, open_database: OpenDatabase, message: Message
) -> None:
    before = open_turns(ScriptedModel([asyncio.Event()]))
    accepted = [await before.accept(message(text)) for text in ("first", "second")]
    await before.stop(grace=0)

    after = open_turns(ScriptedModel("one", "two"), database=open_database())
    await after.start()
    running, queued = [[event async for event in after.reader.events(turn)] for turn in accepted]

    assert [(event.id, event.type) for event in running] == [
        ("2-1", "turn.resumed"),
        ("2-2", "message.delta"),
        ("2-3", "turn.completed"),
    ]
    assert running[0].data == {"attempt": 2, "text": ""}
    assert [(event.id, event.type) for event in queued] == [
        ("1-1", "turn.accepted"),
        ("1-2", "message.delta"),
        ("1-3", "turn.completed"),
    ]


async def test_restart_without_unfinished_turns_calls_no_model(
    open_turns: OpenTurns, open_database: OpenDatabase, say: Say
) -> None:
    before = open_turns(ScriptedModel("one"))
    ended = await say(before)
    await before.stop(grace=0)

    model = ScriptedModel("two")
    after = open_turns(model, database=open_database())
    await after.start()

    assert await after.reader.wait_for_end(ended) == ended
    assert [event.type async for event in after.reader.events(ended)] == [
        "turn.accepted",
        "message.snapshot",
        "turn.completed",
    ]
    assert model.requests == []
    assert (await say(after)).seq == 2


async def test_events_of_a_failed_turn_are_rebuilt_after_a_restart(
    open_turns: OpenTurns, open_database: OpenDatabase, say: Say
) -> None:
    before = open_turns(ScriptedModel([LookupError("a bug")]))
    ended = await say(before)

    after = open_turns(database=open_database())

    assert [(event.id, event.type) async for event in after.reader.events(ended)] == [
        ("1-1", "turn.accepted"),
        ("1-2", "turn.failed"),
    ]


async def test_events_of_a_turn_that_does_not_run_end_at_the_known_state(
    open_turns: OpenTurns, open_database: OpenDatabase, message: Message
) -> None:
    before = open_turns(ScriptedModel([asyncio.Event()]))
    turn = await before.accept(message())
    await before.stop(grace=0)

    not_started = open_turns(database=open_database())

    assert await collect(not_started, turn) == ["turn.accepted"]


async def test_stop_lets_running_turns_end(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "done"]))
    turn = await turns.accept(message())
    waiting = asyncio.ensure_future(turns.reader.wait_for_end(turn))
    stopping = asyncio.ensure_future(turns.stop(grace=60))
    await asyncio.sleep(0)

    assert turns.draining
    with pytest.raises(Draining) as refused:
        await turns.accept(message())
    assert refused.value.headers == {"Retry-After": "5"}
    gate.set()
    await stopping

    assert (await waiting).reply == "done"


async def test_stop_does_not_wait_for_a_tool_that_ignores_its_cancellation(
    boot: Callable[..., Awaitable[Any]], message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_CANCELLING", 0.1)
    begun, tidy = asyncio.Event(), asyncio.Event()

    async def dig() -> str:
        """Dig."""
        begun.set()
        while not tidy.is_set():
            with suppress(asyncio.CancelledError):
                await tidy.wait()
        return "gold"

    tools = FunctionToolset[ToolContext]([dig], metadata={"permission": "allow"})
    gateway = await boot(ScriptedModel([ToolCallPart("dig", {})], "gold"), tools)
    turn = await gateway.turns.accept(message())
    await begun.wait()

    await gateway.turns.stop(grace=0)

    assert (await gateway.turns.reader.get("gateway", turn.id)).state == "queued"
    tidy.set()


async def test_stop_starts_no_queued_turn(open_turns: OpenTurns, message: Message) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    model = ScriptedModel([gates[0], "one"], [gates[1], "two"])
    turns = open_turns(model)
    first, queued, other = [await turns.accept(message(channel=channel)) for channel in ("a", "a", "b")]
    stopping = asyncio.ensure_future(turns.stop(grace=60))
    await asyncio.sleep(0)
    gates[0].set()

    assert (await turns.reader.wait_for_end(first)).state == "completed"
    for _ in range(20):  # as many database reads as the queued turn would need to reach the model
        found = await turns.reader.get("gateway", queued.id)
        assert (found.state, found.attempt) == (
            "queued",
            0,
        )  # if the gateway crashed now, the turn would not be counted
    gates[1].set()
    assert (await turns.reader.wait_for_end(other)).state == "completed"
    await stopping

    assert len(model.requests) == 2
    with pytest.raises(Draining):
        await turns.reader.wait_for_end(queued)


async def test_callers_waiting_at_the_stop_learn_that_the_reply_comes_later(
    open_turns: OpenTurns, message: Message
) -> None:
    turns = open_turns(ScriptedModel([asyncio.Event()]))
    running, queued = [await turns.accept(message()) for _ in range(2)]
    waiting = [asyncio.ensure_future(turns.reader.wait_for_end(turn)) for turn in (running, queued, queued)]
    watching = asyncio.ensure_future(collect(turns, queued))
    await asyncio.sleep(0)

    await turns.stop(grace=0)

    for one in waiting:
        with pytest.raises(Draining, match="is answered by another replica or after the next start"):
            await one
    assert await watching == ["turn.accepted"]
    assert [(await turns.reader.get("gateway", turn.id)).state for turn in (running, queued)] == [
        "queued",
        "queued",
    ]


async def test_callers_after_the_stop_learn_that_the_reply_comes_later(
    open_turns: OpenTurns, message: Message, say: Say
) -> None:
    turns = open_turns(ScriptedModel("done", [asyncio.Event()]))
    ended = await say(turns)
    running = await turns.accept(message())
    await turns.stop(grace=0)
    await turns.stop(grace=0)

    assert await turns.reader.wait_for_end(ended) == ended
    with pytest.raises(Draining):
        await turns.reader.wait_for_end(running)


async def test_message_being_stored_at_the_stop_runs_after_the_next_start(
    open_turns: OpenTurns, open_database: OpenDatabase, message: Message
) -> None:
    model = ScriptedModel()
    before = open_turns(model)
    accepting = asyncio.ensure_future(before.accept(message()))
    await asyncio.sleep(0)
    await before.stop(grace=0)
    accepted = await accepting
    with pytest.raises(Draining):
        await before.reader.wait_for_end(accepted)
    assert model.requests == []

    after = open_turns(ScriptedModel("done"), database=open_database())
    await after.start()

    assert (await after.reader.wait_for_end(accepted)).reply == "done"


async def test_yes_without_open_approval_is_refused_during_the_stop(
    open_turns: OpenTurns, message: Message, database: Database
) -> None:
    turns = open_turns(ScriptedModel("never"))
    gate = threading.Event()
    held = asyncio.ensure_future(database.run(lambda _: gate.wait(30)))
    said = asyncio.ensure_future(turns.submit(message("yes")))
    await asyncio.sleep(0)  # it checks for an open approval
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(turns.stop(grace=0))
    await asyncio.sleep(0)
    gate.set()

    with pytest.raises(Draining):
        await said
    await asyncio.gather(held, stopping)
    assert await database.run(partial(newest, owner=GATEWAY_OWNER, which=TurnFilter(), limit=9)) == []


async def collect(turns: Turns, turn: Turn) -> list[str]:
    return [event.type async for event in turns.reader.events(turn)]


async def test_stop_does_not_wait_for_an_acceptance_of_unknown_outcome(
    open_turns: OpenTurns, message: Message, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to the server was lost at a COMMIT, and the server does not come back."""
    monkeypatch.setattr(inbox, "_UNWRITTEN", 0.01)
    turns = open_turns(ScriptedModel("never"))
    commit = database._commit  # pyright: ignore[reportPrivateUsage]
    begun = threading.Event()

    def lose_first_answer(*arguments: Any) -> Any:
        if begun.is_set():
            return commit(*arguments)
        begun.set()
        return None

    monkeypatch.setattr(database, "_commit", lose_first_answer)
    accepting = asyncio.ensure_future(turns.accept(message()))
    await asyncio.to_thread(begun.wait)

    async with asyncio.timeout(20):
        await turns.stop(grace=0)
    assert not accepting.done()
    accepting.cancel()


async def test_turn_with_an_unreadable_journal_fails_alone(
    open_turns: OpenTurns, open_database: OpenDatabase, message: Message, database: Database
) -> None:
    before = open_turns(
        ScriptedModel(["One.", ToolCallPart("calculate", {"expression": "1"})], [asyncio.Event()])
    )
    broken = await before.accept(message("count", channel="broken"))
    async for event in before.reader.events(broken):
        if event.type == "tool.finished":
            break
    await before.stop(grace=0)
    unknown = sa.update(steps).values(body=b'[{"kind": "of a later version"}]')
    await database.run(lambda connection: connection.execute(unknown))

    after = open_turns(ScriptedModel("hello"), database=open_database())
    await after.start()

    assert (await after.reader.wait_for_end(broken)).state == "failed"
    other = await after.accept(message("hi", channel="other"))
    assert (await after.reader.wait_for_end(other)).reply == "hello"
