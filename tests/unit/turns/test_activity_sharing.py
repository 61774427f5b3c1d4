"""The activity of two replicas on a real PostgreSQL server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace

import pytest
from tests.unit.turns.conftest import OpenReplica, Replica
from tests.waiting import PATIENCE

from torana.messages import EVERYONE, Inbound
from torana.store.engine.postgres.announcements import announce_activity
from torana.turns.events.activity import ActivityEvent

Message = Callable[..., Inbound]

#: Published by a test as the last event.
_LAST = "connector.changed"


async def follow(replica: Replica, *, view: str = EVERYONE) -> list[ActivityEvent]:
    """Return the events up to the last one, after the reset at the beginning."""
    async with asyncio.timeout(PATIENCE), aclosing(replica.turns.live.activity.follow(view)) as events:
        found: list[ActivityEvent] = []
        async for event in events:
            found.append(event)
            if event.type == _LAST:
                return found[1:-1]
    raise AssertionError("the replica has stopped")


async def followed(replica: Replica, work: Callable[[], object], *, end: Replica) -> list[str]:
    """Return the types of the events that a replica shows while ``work`` runs. ``end`` publishes the last."""
    following = asyncio.create_task(follow(replica))
    await asyncio.sleep(0)
    result = work()
    if asyncio.iscoroutine(result):
        await result
    end.turns.live.activity.publish(_LAST, None, {})
    return [event.type for event in await following]


async def listen(*replicas: Replica) -> None:
    """Wait until the replicas hear each other."""
    for one in replicas:
        for other in replicas:
            if other is not one:
                await until_heard(one, other)


def expire_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time pass for which the requests of other replicas hold."""
    now = time.monotonic() + 60
    monkeypatch.setattr("torana.turns.events.activity_sharing.time", SimpleNamespace(monotonic=lambda: now))


async def until_heard(speaker: Replica, listener: Replica) -> None:
    """Wait until the listener shows an event of the speaker."""
    following = asyncio.create_task(follow(listener))
    while not following.done():
        speaker.turns.live.activity.publish(_LAST, None, {})
        await asyncio.wait([following], timeout=0.2)
    await following


async def test_event_of_a_turn_is_shown_once_by_each_replica(
    open_replica: OpenReplica, message: Message
) -> None:
    first, second = await open_replica("done"), await open_replica()
    await listen(first, second)

    async def answer() -> None:
        turn = await first.turns.accept(message())
        await second.turns.reader.wait_for_end(turn)

    expected = ["turn.accepted", "turn.started", "turn.ended"]
    own = asyncio.create_task(follow(first))
    await asyncio.sleep(0)
    assert await followed(second, answer, end=first) == expected
    assert [event.type for event in await own] == expected


async def test_event_is_shown_only_to_its_owner(open_replica: OpenReplica) -> None:
    first, second = await open_replica(), await open_replica()
    await listen(first, second)
    following = asyncio.create_task(follow(second, view="user:ana"))
    await asyncio.sleep(0)

    for owner in ("user:bob", "user:ana"):
        first.turns.live.activity.publish("turn.started", owner, {"turnId": owner})
    first.turns.live.activity.publish(_LAST, "user:ana", {})

    assert [event.data for event in await following] == [{"turnId": "user:ana"}]


async def test_more_events_than_an_announcement_holds_keep_their_order(open_replica: OpenReplica) -> None:
    first, second = await open_replica(), await open_replica()
    await listen(first, second)
    following = asyncio.create_task(follow(second))
    await asyncio.sleep(0)

    for number in range(500):
        first.turns.live.activity.publish("turn.started", None, {"number": number, "channelId": "\u4e00" * 40})
    first.turns.live.activity.publish(_LAST, None, {})

    assert [event.data["number"] for event in await following] == list(range(500))


@pytest.mark.parametrize(("events", "size"), [(1, 10_000), (1_001, 1)])
async def test_events_that_cannot_be_announced_are_a_reset(
    open_replica: OpenReplica, events: int, size: int
) -> None:
    first, second = await open_replica(), await open_replica()
    await listen(first, second)

    async with asyncio.timeout(PATIENCE), aclosing(second.turns.live.activity.follow(EVERYONE)) as shown:
        await anext(shown)
        for _ in range(events):
            first.turns.live.activity.publish("turn.started", None, {"channelId": "c" * size})
        assert (await anext(shown)).type == "reset"


async def test_events_are_announced_only_while_another_replica_has_readers(
    open_replica: OpenReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await open_replica(), await open_replica()
    await until_heard(second, first)
    expire_requests(monkeypatch)
    announcements = second.database.announcements
    assert announcements

    async with aclosing(announcements()) as announced, asyncio.timeout(PATIENCE):
        await anext(announced)
        first.turns.live.activity.publish("turn.started", None, {"turnId": "withheld"})
        following = asyncio.create_task(follow(second))
        assert (await anext(announced)).activity == '[["reset",null,{}]]'
        first.turns.live.activity.publish(_LAST, None, {})
        assert [event.type for event in await following] == ["reset"]


async def test_reader_receives_no_reset_while_requests_hold(open_replica: OpenReplica) -> None:
    first, second = await open_replica(), await open_replica()
    await listen(first, second)

    shown = await followed(
        second, lambda: first.turns.live.activity.publish("turn.started", None, {}), end=first
    )

    assert shown == ["turn.started"]


@pytest.mark.parametrize(
    "text", ["[" * 7_000, "", "{", "{}", "[1]", '[["unknown", null, {}]]', '[["reset", 1, {}]]']
)
async def test_announcement_of_another_program_is_ignored(
    open_replica: OpenReplica, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    caplog.set_level(logging.WARNING)
    first, second = await open_replica(), await open_replica()
    await listen(first, second)

    shown = await followed(
        second, lambda: first.database.run(partial(announce_activity, texts=[text])), end=first
    )

    assert shown == []
    assert "activity_not_read" in caplog.messages
