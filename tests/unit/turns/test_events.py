"""An event stream replays the past events of a turn and then follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from pydantic_ai.messages import ToolCallPart

from torana.errors import NotFound
from torana.messages import Inbound, Turn, TurnEvent
from torana.testing import ScriptedModel
from torana.turns import Turns

OpenTurns = Callable[..., Turns]
Say = Callable[..., Awaitable[Turn]]
Message = Callable[..., Inbound]


async def watch(turns: Turns, turn: Turn, after: str | None = None) -> list[TurnEvent]:
    return [event async for event in turns.reader.events(turn, after=after)]


async def test_stream_covers_a_turn_from_acceptance_to_end(open_turns: OpenTurns, message: Message) -> None:
    call = ToolCallPart("calculate", {"expression": "1+1"}, tool_call_id="c1")
    turns = open_turns(ScriptedModel([call], ["It ", "is 2."]))
    turn = await turns.accept(message(channel="home"))

    assert await watch(turns, turn) == [
        TurnEvent("1-1", "turn.accepted", {"id": turn.id, "channelId": "home"}),
        TurnEvent("1-2", "tool.started", {"callId": "c1", "tool": "calculate"}),
        TurnEvent("1-3", "tool.finished", {"callId": "c1", "tool": "calculate", "ok": True}),
        TurnEvent("1-4", "message.delta", {"text": "It "}),
        TurnEvent("1-5", "message.delta", {"text": "is 2."}),
        TurnEvent("1-6", "turn.completed", {}),
    ]


async def test_events_are_streamed_as_they_happen(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel(["It ", gate, "is 2."]))
    turn = await turns.accept(message())
    events = turns.reader.events(turn)
    seen = [await anext(events), await anext(events)]

    assert [event.type for event in seen] == ["turn.accepted", "message.delta"]
    gate.set()
    assert [event.type async for event in events] == ["message.delta", "turn.completed"]


async def test_stream_resumes_after_the_last_event(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel(["a", "b", "c"]))
    ended = await say(turns)
    whole = await watch(turns, ended)

    for position, event in enumerate(whole):
        assert await watch(turns, ended, after=event.id) == whole[position + 1 :]


async def test_turn_has_ended_when_its_last_event_is_streamed(open_turns: OpenTurns, message: Message) -> None:
    turns = open_turns(ScriptedModel([LookupError("a bug")]))
    turn = await turns.accept(message())
    async for event in turns.reader.events(turn):
        if event.terminal:
            assert event.type == "turn.failed"
            assert (await turns.reader.get("gateway", turn.id)).state == "failed"


async def test_queued_turn_can_be_streamed_before_it_runs(open_turns: OpenTurns, message: Message) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "one"], "two"))
    await turns.accept(message())
    queued = await turns.accept(message())
    events = turns.reader.events(queued)

    assert (await anext(events)).id == "1-1"
    gate.set()
    assert [event.id async for event in events] == ["1-2", "1-3"]


async def test_turn_of_another_owner_cannot_be_streamed(open_turns: OpenTurns) -> None:
    turns = open_turns()
    stranger = Turn(
        id="turn_x",
        owner="ana",
        session_id="ses_x",
        channel="home",
        seq=1,
        principal="local",
        user=None,
        content="hello",
        state="running",
        attempt=1,
        created_at=datetime(2026, 3, 2, tzinfo=UTC),
    )
    with pytest.raises(NotFound):
        await watch(turns, stranger)
