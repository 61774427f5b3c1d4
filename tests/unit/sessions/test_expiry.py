"""Idle sessions expire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.standins.clock import Clock

from torana.errors import Erased, ModelFailed
from torana.messages import Inbound, Turn
from torana.sessions.expiry import Expiry
from torana.store.engine.database import Database
from torana.store.engine.sqlite import SqliteDatabase
from torana.store.engine.tables import deliveries, sessions, tombstones
from torana.store.engine.tables import turns as turn_rows
from torana.store.rows import session_deletion
from torana.testing import ScriptedModel
from torana.turns import Turns

Say = Callable[..., Awaitable[Turn]]

START = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


@pytest.fixture
def moving() -> Clock:
    return Clock(START)


@pytest.fixture
def turns(open_turns: Callable[..., Turns], moving: Clock) -> Turns:
    return open_turns(ScriptedModel(*["yes"] * 100), clock=moving)


def expiry_of(database: Database, clock: Clock, forget: Callable[[Sequence[str]], None]) -> Expiry:
    return Expiry(database=database, after=timedelta(days=30), forget=forget, clock=clock)


async def channels(database: Database) -> list[str]:
    query = sa.select(sessions.c.channel).order_by(sessions.c.channel)
    return list(await database.run(lambda connection: connection.execute(query).scalars().all()))


async def test_only_sessions_idle_for_longer_are_deleted_and_leave_tombstones(
    turns: Turns, say: Say, database: Database, moving: Clock
) -> None:
    old = await say(turns, channel="old")
    hers = await say(turns, channel="old", owner="user:ana")
    await say(turns, channel="used")
    moving.now += timedelta(days=29)
    await say(turns, channel="used")
    moving.now += timedelta(days=1)
    expiry = expiry_of(database, moving, turns.reader.forget)
    assert await expiry.sweep() == 0  # not longer than thirty days yet

    moving.now += timedelta(seconds=1)
    assert await expiry.sweep() == 2

    assert await channels(database) == ["used"]
    for turn in (old, hers):
        with pytest.raises(Erased):
            await turns.reader.get(turn.owner, turn.id)
    assert await expiry.sweep() == 0


@pytest.mark.parametrize(("bound", "most", "expected"), [("", 2, [2, 2, 1]), ("_BYTES", 1, [1, 1, 1, 1, 1])])
async def test_long_sessions_are_deleted_in_several_transactions(
    turns: Turns,
    say: Say,
    database: Database,
    moving: Clock,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    most: int,
    expected: list[int],
) -> None:
    monkeypatch.setattr(session_deletion, f"_MOST{bound}", most)
    for channel in ("a", "a", "a", "b", "b"):
        await say(turns, channel=channel)
    moving.now += timedelta(days=31)
    forgotten: list[int] = []
    expiry = expiry_of(database, moving, lambda turn_ids: forgotten.append(len(turn_ids)))

    assert await expiry.sweep() == 5
    assert forgotten == expected
    assert await channels(database) == []


async def test_session_with_an_unfinished_turn_does_not_expire(
    open_turns: Callable[..., Turns], message: Callable[..., Inbound], database: Database, moving: Clock
) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "late"]), clock=moving)
    running = await turns.accept(message())
    moving.now += timedelta(days=100)
    expiry = expiry_of(database, moving, turns.reader.forget)
    assert await expiry.sweep() == 0
    gate.set()
    assert (await turns.reader.wait_for_end(running)).reply == "late"
    assert await expiry.sweep() == 0  # the reply that just came counts as activity
    moving.now += timedelta(days=31)
    assert await expiry.sweep() == 1


async def test_retried_turn_renews_its_session(
    open_turns: Callable[..., Turns], say: Say, database: Database, moving: Clock
) -> None:
    turns = open_turns(ScriptedModel([ModelFailed("no")], "yes"), clock=moving)
    failed = await say(turns)
    moving.now += timedelta(days=31)
    again = await turns.reader.wait_for_end(await turns.retry(failed.owner, failed.id))
    assert again.state == "completed"
    assert await expiry_of(database, moving, turns.reader.forget).sweep() == 0


@pytest.mark.parametrize(("state", "gone"), [("pending", 0), ("sent", 1)])
async def test_session_with_a_pending_delivery_does_not_expire(
    turns: Turns, message: Callable[..., Inbound], database: Database, moving: Clock, state: str, gone: int
) -> None:
    heard = replace(message(), account="home", place="{}")
    await turns.reader.wait_for_end(await turns.accept(heard))
    moving.now += timedelta(days=31)
    change = sa.update(deliveries).values(state=state)
    await database.run(lambda connection: connection.execute(change))
    assert await expiry_of(database, moving, turns.reader.forget).sweep() == gone


async def test_session_used_between_read_and_deletion_stays(
    turns: Turns, say: Say, path: Path, moving: Clock
) -> None:
    for channel in "ab":
        await say(turns, channel=channel)
    moving.now += timedelta(days=31)

    class Late(SqliteDatabase):
        """Accepts a message immediately after the idle sessions were read."""

        looks = 0

        async def run(self, work: Callable[[sa.Connection], object]) -> object:
            found = await super().run(work)
            self.looks += 1
            if self.looks == 1:
                await say(turns, channel="a")
            return found

    database = Late(path=path)
    assert await expiry_of(database, moving, turns.reader.forget).sweep() == 1
    assert await channels(database) == ["a"]
    database.close()


async def test_expired_sessions_are_deleted_in_small_transactions(path: Path, moving: Clock) -> None:
    class Counting(SqliteDatabase):
        runs = 0

        async def run(self, work: Callable[[sa.Connection], object]) -> object:
            self.runs += 1
            return await super().run(work)

    database = Counting(path=path)
    await database.run(lambda connection: fill(connection, 25))
    database.runs = 0
    moving.now += timedelta(days=31)
    forgotten: list[str] = []
    assert await expiry_of(database, moving, forgotten.extend).sweep() == 25
    # A read, three batches of at most ten with a second look at each, and a read that finds nothing.
    assert database.runs == 1 + 3 * 2 + 1
    assert len(set(forgotten)) == 25
    left = await database.run(lambda c: c.execute(sa.select(sa.func.count()).select_from(tombstones)).scalar())
    assert left == 25
    database.close()


def fill(connection: sa.Connection, number: int) -> None:
    names = [str(n) for n in range(number)]
    at = {"created_at": START, "updated_at": START}
    session = {"owner": "gateway", "next_seq": 2, "shared": False, **at}
    connection.execute(sa.insert(sessions), [session | {"id": name, "channel": name} for name in names])
    turn = {
        "owner": "gateway",
        "seq": 1,
        "principal": "local",
        "content": "hi",
        "state": "completed",
        "attempt": 1,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_usd": 0,
        "created_at": START,
    }
    rows = [turn | {"id": f"turn_{name}", "session_id": name, "channel": name} for name in names]
    connection.execute(sa.insert(turn_rows), rows)


async def test_expiry_runs_at_start_and_hourly_also_after_failures(
    turns: Turns, say: Say, database: Database, path: Path, moving: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        reached.set()
        await go_on.wait()
        go_on.clear()

    await say(turns, channel="a")
    closed = SqliteDatabase(path=path)
    closed.close()
    moving.now += timedelta(days=31)
    broken = Expiry(
        database=closed, after=timedelta(days=30), forget=turns.reader.forget, clock=moving, pause=pause
    )
    expiry = Expiry(
        database=database, after=timedelta(days=30), forget=turns.reader.forget, clock=moving, pause=pause
    )
    with caplog.at_level(logging.WARNING, "torana.sessions.expiry"):
        broken.start()
        await reached.wait()
    await broken.stop()
    assert [record.message for record in caplog.records] == ["idle_sessions_not_deleted"]

    reached.clear()
    expiry.start()
    await reached.wait()
    assert await channels(database) == []
    await say(turns, channel="b")
    moving.now += timedelta(days=31)
    reached.clear()
    go_on.set()
    await reached.wait()
    assert await channels(database) == []
    assert pauses == [3600.0] * 3
    await expiry.stop()


async def test_unexpected_error_stops_neither_expiry_nor_shutdown(
    turns: Turns, say: Say, database: Database, moving: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def pause(_seconds: float) -> None:
        reached.set()
        await go_on.wait()

    def forget(_ids: Sequence[str]) -> None:
        raise KeyError("a bug")

    await say(turns, channel="a")
    moving.now += timedelta(days=31)
    expiry = Expiry(database=database, after=timedelta(days=30), forget=forget, clock=moving, pause=pause)
    expiry.start()
    await reached.wait()
    await expiry.stop()
    [record] = [record for record in caplog.records if record.name == "torana.sessions.expiry"]
    assert (record.levelname, record.message) == ("ERROR", "idle_sessions_not_deleted")
    assert "a bug" in caplog.text


async def test_expiry_that_was_not_started_can_be_stopped(database: Database, moving: Clock) -> None:
    await expiry_of(database, moving, lambda _: None).stop()
