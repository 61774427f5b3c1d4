import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from torana.api.sse import EventStream
from torana.errors import GatewayError, StoreUnavailable
from torana.messages import EventType, Failure, Turn, TurnEvent
from torana.turns import Turns

AT = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)


def turn(**changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "id": "turn_1",
        "owner": "gateway",
        "session_id": "ses_1",
        "channel": "c",
        "seq": 1,
        "principal": "local",
        "user": None,
        "content": "hi",
        "state": "completed",
        "attempt": 1,
        "created_at": AT,
        "reply": "hello",
    }
    return Turn(**fields | changes)


class FakeTurns:
    """Plays events; waits where there is an ``asyncio.Event`` among them and raises what is an error."""

    def __init__(self, *script: TurnEvent | asyncio.Event | GatewayError, end: Turn | GatewayError) -> None:
        self._script: Sequence[TurnEvent | asyncio.Event | GatewayError] = script
        self._end = end
        self.closed = asyncio.Event()

    async def events(self, turn: Turn) -> AsyncGenerator[TurnEvent]:
        try:
            for step in self._script:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, TurnEvent):
                    yield step
                else:
                    raise step
        finally:
            self.closed.set()

    async def ended(self, turn: Turn) -> Turn:
        if isinstance(self._end, GatewayError):
            raise self._end
        return self._end


def event(number: int, type_: EventType, **data: Any) -> TurnEvent:
    return TurnEvent(f"1-{number}", type_, data)


DELTA = event(2, "message.delta", text="a\nb é\u2028")
DONE = event(3, "turn.completed")


def frames(turns: FakeTurns, *, keep_alive: float = 60) -> AsyncGenerator[str]:
    stream = EventStream(
        cast("Turns", turns), turn(), request_id="r", keep_alive=keep_alive, headers={"RateLimit": "x"}
    )
    return cast("AsyncGenerator[str]", stream.body_iterator)


async def all_of(stream: AsyncIterator[str]) -> list[str]:
    return [frame async for frame in stream]


async def test_a_frame_has_the_events_name_its_id_and_one_line_of_data():
    [delta, _] = await all_of(frames(FakeTurns(DELTA, DONE, end=turn())))
    assert delta == 'event: message.delta\nid: 1-2\ndata: {"text":"a\\nb é\u2028"}\n\n'


async def test_half_of_a_surrogate_pair_is_escaped():
    [delta] = await all_of(frames(FakeTurns(event(2, "message.delta", text="a\ud83d"), end=turn())))
    delta.encode()
    assert json.loads(delta.split("data: ")[1]) == {"text": "a\ud83d"}


async def test_the_last_event_holds_the_answer():
    [last] = await all_of(frames(FakeTurns(DONE, end=turn())))
    data = json.loads(last.split("data: ")[1])
    assert (data["reply"], data["status"]) == ("hello", "completed")


async def test_the_last_event_of_a_failed_turn_holds_a_problem():
    failed = turn(state="failed", reply=None, failure=Failure(code="model_failed", detail="no"))
    [last] = await all_of(frames(FakeTurns(event(2, "turn.failed"), end=failed)))
    data = json.loads(last.split("data: ")[1])
    assert (data["status"], data["code"], data["detail"], data["requestId"]) == (502, "model_failed", "no", "r")


async def test_silence_is_filled_with_comments_and_loses_nothing():
    gate = asyncio.Event()
    stream = frames(FakeTurns(gate, DONE, end=turn()), keep_alive=0)
    assert [await anext(stream) for _ in range(3)] == [": keep-alive\n\n"] * 3
    gate.set()
    [last] = [frame for frame in await all_of(stream) if not frame.startswith(":")]
    assert last.startswith("event: turn.completed")


@pytest.mark.parametrize("turns", [FakeTurns(end=turn()), FakeTurns(StoreUnavailable(), end=turn())])
async def test_a_stream_without_an_end_just_ends(turns: FakeTurns):
    assert await all_of(frames(turns)) == []


async def test_an_end_that_cannot_be_read_ends_the_stream_without_it():
    turns = FakeTurns(DELTA, DONE, end=StoreUnavailable())
    assert len(await all_of(frames(turns))) == 1
    assert turns.closed.is_set()


async def test_leaving_between_two_events_closes_the_events():
    turns = FakeTurns(DELTA, DELTA, end=turn())
    async with aclosing(frames(turns)) as stream:
        await anext(stream)
    assert turns.closed.is_set()


async def test_leaving_while_nothing_comes_closes_the_events():
    turns = FakeTurns(DELTA, asyncio.Event(), end=turn())
    stream = frames(turns)
    await anext(stream)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await turns.closed.wait()


def test_a_stream_is_never_stored_nor_held_up_by_a_proxy():
    stream = EventStream(
        cast("Turns", FakeTurns(end=turn())), turn(), request_id="r", keep_alive=1, headers={"RateLimit": "x"}
    )
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.headers["ratelimit"] == "x"
