import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from torana.api.sse import EventStream, StreamClient
from torana.errors import GatewayError, NotFound, StoreUnavailable
from torana.messages import EventType, Failure, Principal, Turn, TurnEvent
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
    """Yield the events of a script, wait for each ``asyncio.Event`` in it, and raise each error."""

    def __init__(self, *script: TurnEvent | asyncio.Event | GatewayError, end: Turn | GatewayError) -> None:
        self._script: Sequence[TurnEvent | asyncio.Event | GatewayError] = script
        self._end = end
        self.closed = asyncio.Event()
        self.after: str | None = None
        self.cancelled: list[tuple[str, str]] = []
        self.reader = self.approvals = self
        #: The approvals that were sent to the sender of the message.
        self.shown: list[str] = []

    async def events(self, turn: Turn, *, after: str | None = None) -> AsyncGenerator[TurnEvent]:
        self.after = after
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

    async def wait_for_end(self, turn: Turn) -> Turn:
        if isinstance(self._end, GatewayError):
            raise self._end
        return self._end

    async def get(self, owner: str, approval_id: str) -> None:
        raise NotFound(approval_id)

    async def note_streamed(self, approval_id: str) -> None:
        self.shown.append(approval_id)

    async def cancel(self, owner: str, turn_id: str) -> None:
        self.cancelled.append((owner, turn_id))


def event(number: int, type_: EventType, **data: Any) -> TurnEvent:
    return TurnEvent(f"1-{number}", type_, data)


DELTA = event(2, "message.delta", text="a\nb é\u2028")
DONE = event(3, "turn.completed")


@asynccontextmanager
async def no_slot() -> AsyncGenerator[None]:
    raise AssertionError("a short event needs no slot")
    yield


async def always_valid() -> bool:
    return True


def client(slot: Any, is_valid: Any = always_valid) -> StreamClient:
    principal = Principal(name="local", scopes=frozenset())
    return StreamClient(principal=principal, request_id="r", has_posted=True, slot=slot, is_valid=is_valid)


def stream_of(
    turns: FakeTurns, *, keep_alive: float = 60, slot: Any = no_slot, is_valid: Any = always_valid, **more: Any
) -> EventStream:
    of = client(slot, is_valid)
    return EventStream(cast("Turns", turns), turn(), client=of, keep_alive=keep_alive, **more)


def frames(turns: FakeTurns, *, keep_alive: float = 60) -> AsyncGenerator[str]:
    return cast("AsyncGenerator[str]", stream_of(turns, keep_alive=keep_alive).body_iterator)


async def all_of(stream: AsyncIterator[str]) -> list[str]:
    return [frame async for frame in stream]


async def test_frame_has_event_name_id_and_one_data_line():
    [delta, _] = await all_of(frames(FakeTurns(DELTA, DONE, end=turn())))
    assert delta == 'event: message.delta\nid: 1-2\ndata: {"text":"a\\nb é\u2028"}\n\n'


@pytest.mark.parametrize(
    ("user", "has_posted", "shows"), [(None, True, True), ("ana", False, True), (None, False, False)]
)
async def test_question_is_shown_to_the_sender_by_its_own_stream(
    user: str | None, has_posted: bool, shows: bool
) -> None:
    """Other clients may read the stream with the same token, such as the operator's console."""
    turns = FakeTurns(event(2, "approval.required", id="apr_1"), DONE, end=turn())
    principal = Principal(name="local", scopes=frozenset(), user=user)
    reader = replace(client(no_slot), principal=principal, has_posted=has_posted)
    sent = replace(turn(), owner=principal.owner)

    stream = EventStream(cast("Turns", turns), sent, client=reader, keep_alive=60)
    await all_of(cast("AsyncIterator[str]", stream.body_iterator))

    assert turns.shown == (["apr_1"] if shows else [])


async def test_stream_ends_without_cancelling_the_turn_when_its_token_has_ended():
    answers = iter([True, False])

    async def is_valid() -> bool:
        return next(answers)

    turns = FakeTurns(DELTA, asyncio.Event(), end=turn())
    stream = stream_of(turns, keep_alive=0, is_valid=is_valid, cancel_on_disconnect=True)
    found = await all_of(cast("AsyncIterator[str]", stream.body_iterator))

    assert set(found) <= {
        ": keep-alive\n\n",
        'event: message.delta\nid: 1-2\ndata: {"text":"a\\nb é\u2028"}\n\n',
    }
    assert turns.cancelled == []


async def test_stream_goes_on_while_its_token_cannot_be_read():
    async def is_valid() -> bool:
        raise StoreUnavailable

    frame, *_ = await all_of(
        cast(
            "AsyncIterator[str]",
            stream_of(FakeTurns(DONE, end=turn()), keep_alive=0, is_valid=is_valid).body_iterator,
        )
    )
    assert frame


async def test_lone_surrogate_is_escaped():
    [delta] = await all_of(frames(FakeTurns(event(2, "message.delta", text="a\ud83d"), end=turn())))
    delta.encode()
    assert json.loads(delta.split("data: ")[1]) == {"text": "a\ud83d"}


async def test_last_event_contains_response():
    [last] = await all_of(frames(FakeTurns(DONE, end=turn())))
    data = json.loads(last.split("data: ")[1])
    assert (data["reply"], data["status"]) == ("hello", "completed")


async def test_last_event_of_failed_turn_contains_problem():
    failed = turn(state="failed", reply=None, failure=Failure(code="model_failed", detail="no"))
    [last] = await all_of(frames(FakeTurns(event(2, "turn.failed"), end=failed)))
    data = json.loads(last.split("data: ")[1])
    assert (data["status"], data["code"], data["detail"], data["requestId"]) == (502, "model_failed", "no", "r")


@pytest.mark.parametrize("last", [event(3, "message.snapshot", text="x" * 20_001), DONE])
async def test_slot_is_held_while_a_long_event_is_sent(last: TurnEvent):
    held: list[str] = []

    @asynccontextmanager
    async def slot() -> AsyncGenerator[None]:
        held.append("held")
        yield
        held.append("released")

    turns = FakeTurns(DELTA, last, DELTA, end=turn(reply="x" * 20_001))
    stream = cast("AsyncIterator[str]", stream_of(turns, slot=slot).body_iterator)

    await anext(stream)
    assert held == []
    await anext(stream)
    assert held == ["held"]
    await anext(stream)
    assert held == ["held", "released"]


async def test_long_reply_of_an_ended_turn_is_read_in_the_only_slot_of_the_stream():
    held: list[str] = []

    class ReadingTurns(FakeTurns):
        async def wait_for_end(self, turn: Turn) -> Turn:
            held.append("read")
            return await super().wait_for_end(turn)

    @asynccontextmanager
    async def slot() -> AsyncGenerator[None]:
        held.append("held")
        yield
        held.append("released")

    ended = turn(reply="x" * 20_001)
    turns = ReadingTurns(event(2, "message.snapshot", text="x" * 20_001), DONE, end=ended)
    stream = EventStream(cast("Turns", turns), ended, client=client(slot), keep_alive=60)

    assert len(await all_of(cast("AsyncIterator[str]", stream.body_iterator))) == 2
    assert held == ["held", "read", "released"]


async def test_long_event_is_not_kept_while_the_stream_waits_for_a_slot():
    replies = iter(["x" * 20_001, "y" * 20_001])
    waits, is_free = asyncio.Event(), asyncio.Event()

    class ReadingTurns(FakeTurns):
        async def wait_for_end(self, turn: Turn) -> Turn:
            return replace(await super().wait_for_end(turn), reply=next(replies))

    @asynccontextmanager
    async def slot() -> AsyncGenerator[None]:
        waits.set()
        await is_free.wait()
        yield

    stream = stream_of(ReadingTurns(DONE, end=turn()), slot=slot).body_iterator
    reader = asyncio.ensure_future(all_of(cast("AsyncIterator[str]", stream)))
    await waits.wait()
    is_free.set()

    assert "yyy" in (await reader)[0]


async def test_long_event_is_sent_in_pieces():
    turns = FakeTurns(event(2, "message.snapshot", text="x" * 200_000), end=turn())
    stream = stream_of(turns, slot=nullcontext).body_iterator
    sent = await all_of(cast("AsyncIterator[str]", stream))
    assert max(map(len, sent)) < 70_000
    assert json.loads("".join(sent).split("data: ")[1]) == {"text": "x" * 200_000}


async def test_silence_is_filled_with_comments_without_losing_events():
    gate = asyncio.Event()
    stream = frames(FakeTurns(DELTA, gate, DONE, end=turn()), keep_alive=0)
    assert not (await anext(stream)).startswith(":")
    assert [await anext(stream) for _ in range(3)] == [": keep-alive\n\n"] * 3
    gate.set()
    [last] = [frame for frame in await all_of(stream) if not frame.startswith(":")]
    assert last.startswith("event: turn.completed")


@pytest.mark.parametrize("turns", [FakeTurns(end=turn()), FakeTurns(StoreUnavailable(), end=turn())])
async def test_stream_without_final_event_ends(turns: FakeTurns):
    assert await all_of(frames(turns)) == []


async def test_stream_ends_without_final_event_when_turn_cannot_be_read():
    turns = FakeTurns(DELTA, DONE, end=StoreUnavailable())
    assert len(await all_of(frames(turns))) == 1
    assert turns.closed.is_set()


async def test_closing_stream_between_events_closes_events():
    turns = FakeTurns(DELTA, DELTA, end=turn())
    async with aclosing(frames(turns)) as stream:
        await anext(stream)
    assert turns.closed.is_set()


async def test_cancelling_wait_for_event_closes_events():
    turns = FakeTurns(DELTA, asyncio.Event(), end=turn())
    stream = frames(turns)
    await anext(stream)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await turns.closed.wait()


async def send_until(stream: EventStream, number: int) -> None:
    """Send a stream to a client that disconnects during the n-th frame; 0 means that it stays connected."""
    left = asyncio.Event()
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            sent.append(message["body"])
            if len(sent) == number:
                left.set()
                await asyncio.Event().wait()  # the client has disconnected

    await stream({"type": "http"}, receive, send)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("number", [1, 2])
async def test_disconnect_cancels_turn_only_if_requested(number: int, asked: bool):
    turns = FakeTurns(DELTA, DELTA, asyncio.Event(), end=turn())
    await send_until(stream_of(turns, cancel_on_disconnect=asked), number)
    assert turns.cancelled == ([("gateway", "turn_1")] if asked else [])
    assert turns.closed.is_set()


async def test_disconnect_while_no_event_comes_cancels_turn():
    turns = FakeTurns(DELTA, asyncio.Event(), end=turn())
    await send_until(stream_of(turns, cancel_on_disconnect=True, keep_alive=0), 3)
    assert turns.cancelled == [("gateway", "turn_1")]


@pytest.mark.parametrize("script", [(DELTA, DONE), (DELTA,)], ids=["the turn's", "the gateway's"])
async def test_end_of_stream_does_not_cancel_turn(script: Sequence[TurnEvent]):
    turns = FakeTurns(*script, end=turn())
    await send_until(stream_of(turns, cancel_on_disconnect=True), 0)
    assert turns.cancelled == []


async def test_cancelled_server_does_not_cancel_turn():
    turns = FakeTurns(DELTA, asyncio.Event(), end=turn())
    sending = asyncio.create_task(send_until(stream_of(turns, cancel_on_disconnect=True), 0))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert turns.cancelled == []


async def test_events_resume_after_given_id():
    turns = FakeTurns(DONE, end=turn())
    await send_until(stream_of(turns, after="1-2"), 0)
    assert turns.after == "1-2"


def test_stream_is_neither_stored_nor_buffered_by_proxy():
    stream = stream_of(FakeTurns(end=turn()), headers={"RateLimit": "x"})
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.headers["ratelimit"] == "x"
