"""The promises of every event log, independent of its storage."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as some

from torana.messages import TurnEvent
from torana.turns.events.log import EventLog


class OpenLog(Protocol):
    """Makes a log that keeps about this many bytes of a turn's events, and of all ended turns."""

    def __call__(self, turn_bytes: int, ended_bytes: int, *, origin: str = "") -> EventLog: ...


def open_memory_log(turn_bytes: int, ended_bytes: int, *, origin: str = "") -> EventLog:
    return EventLog(turn_bytes=turn_bytes, ended_bytes=ended_bytes, origin=origin)


@pytest.fixture(params=[open_memory_log], ids=["memory"])
def open_log(request: pytest.FixtureRequest) -> OpenLog:
    return request.param


@pytest.fixture
def log(open_log: OpenLog) -> EventLog:
    return open_log(1_000_000, 1_000_000)


def accepted_event(attempt: int = 1) -> TurnEvent:
    return TurnEvent(f"{attempt}-1", "turn.accepted", {"id": "t"})


def resumed_event(text: str) -> TurnEvent:
    return TurnEvent("2-1", "turn.resumed", {"attempt": 2, "text": text})


def delta(number: int, text: str, attempt: int = 1) -> TurnEvent:
    return TurnEvent(f"{attempt}-{number}", "message.delta", {"text": text})


def completed_event(number: int, attempt: int = 1) -> TurnEvent:
    return TurnEvent(f"{attempt}-{number}", "turn.completed", {})


def fill(log: EventLog, *events: TurnEvent, turn_id: str = "t") -> list[TurnEvent]:
    """Append events, which get the expected ids; the attempt of the first one is opened."""
    if not log.has_events(turn_id):
        log.open(turn_id, attempt=int(events[0].id.partition("-")[0]))
    for event in events:
        log.append(turn_id, event.type, event.data)
    return list(events)


async def read_events(log: EventLog, after: str | None = None, turn_id: str = "t") -> list[TurnEvent]:
    return [event async for event in log.follow(turn_id, after=after)]


async def test_appended_events_are_replayed(log: EventLog) -> None:
    events = fill(log, accepted_event(), delta(2, "a"), completed_event(3))

    assert await read_events(log) == events
    assert await read_events(log) == events


async def test_follower_gets_each_event_as_it_comes(log: EventLog) -> None:
    fill(log, accepted_event())
    follower = log.follow("t")
    assert await anext(follower) == accepted_event()
    upcoming = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0)
    assert not upcoming.done()

    fill(log, delta(2, "a"))

    assert await upcoming == delta(2, "a")
    await follower.aclose()


async def test_followers_do_not_disturb_each_other(log: EventLog) -> None:
    fill(log, accepted_event())
    followers = [asyncio.ensure_future(read_events(log)) for _ in range(3)]
    await asyncio.sleep(0)
    followers[0].cancel()
    fill(log, delta(2, "a"), completed_event(3))

    assert await followers[1] == await followers[2] == [accepted_event(), delta(2, "a"), completed_event(3)]


async def test_many_followers_get_each_text_in_few_events(log: EventLog) -> None:
    """Otherwise the time to send them would be the product of the numbers of followers and of deltas."""
    pieces = [delta(number, f"{number} ") for number in range(2, 202)]
    fill(log, accepted_event())
    followers = [asyncio.ensure_future(read_events(log)) for _ in range(50)]
    for piece in pieces:
        fill(log, piece)
        await asyncio.sleep(0)
    fill(log, completed_event(202))

    found = await asyncio.gather(*followers)

    for events in found:
        assert (events[0], events[-1]) == (accepted_event(), completed_event(202))
        deltas = events[1:-1]
        assert "".join(event.data["text"] for event in deltas) == "".join(one.data["text"] for one in pieces)
        assert deltas[-1].id == "1-201"
        assert await read_events(log, after=deltas[0].id) == [
            *pieces[int(deltas[0].id.removeprefix("1-")) - 1 :],
            completed_event(202),
        ]
    assert sum(map(len, found)) < 50 * len(pieces) / 4


async def test_following_resumes_after_a_known_event(log: EventLog) -> None:
    events = fill(log, accepted_event(), delta(2, "a"), delta(3, "b"), completed_event(4))

    for number, event in enumerate(events, start=1):
        assert await read_events(log, after=event.id) == events[number:]


@pytest.mark.parametrize(
    "unknown",
    [
        "1-5",
        "2-1",
        "0-1",
        "",
        "-",
        "1-",
        "1",
        "1--1",
        "1-1.0",
        "1- 1",
        "1-١",
        "one-1",
        "1-" + "9" * 5000,
        "1-+1",
    ],
    ids=lambda unknown: unknown[:8],
)
async def test_unknown_event_id_replays_everything(log: EventLog, unknown: str) -> None:
    events = fill(log, accepted_event(), delta(2, "a"), delta(3, "b"), completed_event(4))

    assert await read_events(log, after=unknown) == events


@pytest.mark.parametrize("last", [1, 2, 3, 5])
async def test_reader_that_changes_the_log_misses_and_repeats_nothing(open_log: OpenLog, last: int) -> None:
    """One log has the deltas of the turn; the other one, of a replica that waited for the end, has its text."""
    here = open_log(1_000_000, 1_000_000, origin=".aaaaaa")
    there = open_log(1_000_000, 1_000_000, origin=".bbbbbb")
    fill(here, accepted_event(), delta(2, "a"), delta(3, "b"), delta(4, "c"), completed_event(5))
    whole = TurnEvent("1-2", "message.snapshot", {"text": "abc"})
    fill(there, accepted_event(), whole, completed_event(3))
    for first, second in ((here, there), (there, here)):
        shown = Shown()
        await shown.watch(first.follow("t"), limit=last)

        await shown.watch(second.follow("t", after=shown.last))

        assert shown.text == "abc"
        assert shown.types[-1] == "turn.completed"


async def test_log_with_an_origin_knows_its_own_events(open_log: OpenLog) -> None:
    log = open_log(1_000_000, 1_000_000, origin=".aaaaaa")
    fill(log, accepted_event(), delta(2, "a"), completed_event(3))

    events = await read_events(log)

    assert [event.id for event in events] == ["1-1.aaaaaa", "1-2.aaaaaa", "1-3.aaaaaa"]
    for number, event in enumerate(events, start=1):
        assert await read_events(log, after=event.id) == events[number:]


async def test_events_before_a_change_of_the_log_are_replayed(open_log: OpenLog) -> None:
    """A question that only this log has reaches the reader."""
    log = open_log(1_000_000, 1_000_000, origin=".aaaaaa")
    question = TurnEvent("1-2", "approval.required", {"id": "apr"})
    fill(log, accepted_event(), question, completed_event(3))

    reset, *replayed = await read_events(log, after="1-1.bbbbbb")

    assert (reset.type, reset.data) == ("message.snapshot", {"text": ""})
    assert [event.type for event in replayed] == ["turn.accepted", "approval.required", "turn.completed"]
    assert await read_events(log, after=reset.id) == replayed


async def test_event_of_an_earlier_attempt_is_unknown(log: EventLog) -> None:
    events = fill(log, resumed_event(""), delta(2, "a", attempt=2), completed_event(3, attempt=2))

    assert await read_events(log, after="1-2") == events
    assert await read_events(log, after="2-2") == events[2:]


async def test_new_attempt_starts_a_new_log(log: EventLog) -> None:
    fill(log, accepted_event(), delta(2, "a"))
    log.open("t", attempt=2)
    again = fill(log, resumed_event(""), completed_event(2, attempt=2))

    assert await read_events(log) == again
    assert await read_events(log, after="1-2") == again
    log.open("t", attempt=3)
    third = fill(log, completed_event(1, attempt=3))
    assert await read_events(log, after="2-1") == third


async def test_follower_continues_with_the_next_attempt(log: EventLog) -> None:
    before = fill(log, accepted_event(), delta(2, "lost"))
    events = log.follow("t")
    assert [await anext(events), await anext(events)] == before
    waits = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)

    log.open("t", attempt=2)
    after = fill(log, resumed_event("kept"), completed_event(2, attempt=2))

    assert [await waits, *[event async for event in events]] == after


async def test_end_closes_only_the_log_of_its_turn(log: EventLog) -> None:
    fill(log, accepted_event(), completed_event(2))
    fill(log, accepted_event(), turn_id="other")

    assert await read_events(log) == [accepted_event(), completed_event(2)]
    other = log.follow("other")
    assert await anext(other) == accepted_event()
    waiting = asyncio.ensure_future(anext(other))
    await asyncio.sleep(0)
    assert not waiting.done()
    fill(log, completed_event(2), turn_id="other")
    assert await waiting == completed_event(2)


async def test_unknown_turn_has_no_events(log: EventLog) -> None:
    assert not log.has_events("t")
    assert await read_events(log) == []
    fill(log, accepted_event())
    assert log.has_events("t")


async def test_snapshot_replaces_lost_events(open_log: OpenLog) -> None:
    log = open_log(1000, 100_000)
    events = fill(log, accepted_event(), *(delta(number, f"{number} " * 50) for number in range(2, 12)))
    follower = log.follow("t")

    snapshot = await anext(follower)

    text = "".join(event.data["text"] for event in events[1:])
    assert (snapshot.type, snapshot.data, snapshot.id) == ("message.snapshot", {"text": text}, "1-11")
    fill(log, delta(12, "last"), completed_event(13))
    assert [event async for event in follower] == [delta(12, "last"), completed_event(13)]


async def test_snapshots_that_wait_to_be_sent_keep_no_copies_of_the_text(open_log: OpenLog) -> None:
    log = open_log(2_000, 2_000)
    fill(log, accepted_event(), *(delta(number, "x" * 1_000) for number in range(2, 300)))
    tracemalloc.start()
    snapshots: list[TurnEvent] = []
    for number in range(300, 350):  # each snapshot has another text
        fill(log, delta(number, "y"))
        snapshots.append(await anext(log.follow("t")))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 2_000_000
    assert [event.type for event in snapshots] == ["message.snapshot"] * 50
    assert [len(event.data["text"]) for event in snapshots] == [298_000 + number for number in range(1, 51)]


async def test_snapshot_of_a_later_attempt_begins_with_settled_text(open_log: OpenLog) -> None:
    log = open_log(1000, 100_000)
    deltas = [delta(number, "b" * 300, attempt=2) for number in range(2, 12)]
    fill(log, resumed_event("settled. "), *deltas, completed_event(12, attempt=2))

    snapshot, end = await read_events(log)

    assert snapshot.data == {"text": "settled. " + "b" * 300 * 10}
    assert end == completed_event(12, attempt=2)


async def test_snapshot_of_another_turns_text_is_kept(open_log: OpenLog) -> None:
    whole = TurnEvent("1-2", "message.snapshot", {"text": "of another turn " * 100})
    log = open_log(1000, 100_000)
    fill(log, accepted_event(), whole, completed_event(3))

    assert await read_events(log) == [whole, completed_event(3)]


async def test_slow_follower_gets_a_snapshot(open_log: OpenLog) -> None:
    log = open_log(1000, 100_000)
    fill(log, accepted_event(), delta(2, "a"))
    follower = log.follow("t")
    seen = [await anext(follower), await anext(follower)]

    fill(log, *(delta(number, "b" * 300) for number in range(3, 12)), completed_event(12))
    rest = [event async for event in follower]

    assert seen == [accepted_event(), delta(2, "a")]
    assert [event.type for event in rest] == ["message.snapshot", "turn.completed"]
    assert rest[0].data == {"text": "a" + "b" * 300 * 9}


async def test_only_the_newest_ended_turns_are_kept(open_log: OpenLog) -> None:
    log = open_log(1000, 5000)
    for turn_id in ("a", "b", "c"):
        fill(log, accepted_event(), completed_event(2), turn_id=turn_id)
    fill(log, accepted_event(), turn_id="live")

    assert [log.has_events(turn_id) for turn_id in ("a", "b", "c", "live")] == [False, True, True, True]


async def test_closing_ends_every_follower(log: EventLog) -> None:
    fill(log, accepted_event())
    followers = [asyncio.ensure_future(read_events(log)) for _ in range(2)]
    await asyncio.sleep(0)

    log.close()

    assert [await follower for follower in followers] == [[accepted_event()], [accepted_event()]]
    assert await read_events(log) == [accepted_event()]


async def test_ended_turn_can_be_removed(log: EventLog) -> None:
    fill(log, accepted_event(), completed_event(2))
    kept = fill(log, accepted_event(), completed_event(2), turn_id="other")

    for turn_id in ("t", "t", "unknown"):
        log.forget(turn_id)

    assert not log.has_events("t")
    assert await read_events(log) == []
    assert await read_events(log, turn_id="other") == kept


async def test_running_turn_is_not_removed(log: EventLog) -> None:
    events = fill(log, accepted_event())
    log.forget("t")
    events += fill(log, completed_event(2))
    assert await read_events(log) == events


@given(
    texts=some.lists(some.text(max_size=400), max_size=30),
    size=some.integers(1, 5000),
    cut=some.integers(0, 40),
)
def test_watcher_ends_with_the_complete_text(texts: list[str], size: int, cut: int) -> None:
    """The test loses a part of the log and cuts the watcher off at any point."""

    async def check() -> None:
        log = open_memory_log(size, 100_000)
        fill(log, accepted_event())
        shown = Shown()
        for number, text in enumerate(texts, start=2):
            fill(log, delta(number, text))
            if number == cut:
                await shown.watch(log.follow("t", after=shown.last), limit=number // 2)
        fill(log, completed_event(len(texts) + 2))
        await shown.watch(log.follow("t", after=shown.last))
        assert shown.text == "".join(texts)
        assert shown.last == f"1-{len(texts) + 2}"

    asyncio.run(check())


class Shown:
    """The text that a watcher displays."""

    def __init__(self) -> None:
        self.text = ""
        self.last: str | None = None
        self.types: list[str] = []

    async def watch(self, events: AsyncGenerator[TurnEvent], *, limit: int = 1_000) -> None:
        """Read the available events, at most ``limit`` of them."""
        for _ in range(limit):
            upcoming = asyncio.ensure_future(anext(events, None))
            await asyncio.sleep(0)
            if not upcoming.done():
                upcoming.cancel()
                await asyncio.sleep(0)
                break
            if (event := upcoming.result()) is None:
                break
            self._show(event)
        await events.aclose()

    def _show(self, event: TurnEvent) -> None:
        self.last = event.id
        self.types.append(event.type)
        if event.type == "message.snapshot":
            self.text = event.data["text"]
        elif event.type == "message.delta":
            self.text += event.data["text"]


def test_log_knows_the_open_attempt_and_its_text(log: EventLog) -> None:
    assert (log.attempt("t"), log.text("t")) == (None, "")
    fill(log, accepted_event(), delta(2, "a"), delta(3, "b"))
    assert (log.attempt("t"), log.text("t")) == (1, "ab")

    log.open("t", attempt=2)
    fill(log, resumed_event("b"), delta(2, "c", attempt=2))
    assert (log.attempt("t"), log.text("t")) == (2, "bc")

    fill(log, completed_event(3, attempt=2))
    assert (log.attempt("t"), log.text("t")) == (None, "")
