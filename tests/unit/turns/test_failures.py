"""A turn always ends with a stated reason, and the next one runs, whatever fails."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pydantic_ai.exceptions import UnexpectedModelBehavior
from sqlalchemy.engine import Connection

from torana.agent import Answer, Emit
from torana.agent.journal import Journal
from torana.errors import Draining, GatewayError, QueueFull, StoreUnavailable
from torana.messages import Inbound, Turn, TurnEvent, Usage
from torana.store.engine.database import Database, T
from torana.store.engine.sqlite import SqliteDatabase
from torana.store.rows import journal as journal_rows
from torana.testing import ScriptedModel
from torana.turns import Turns, runner

OpenTurns = Callable[..., Turns]
Say = Callable[..., Awaitable[Turn]]
Message = Callable[..., Inbound]


class Raises:
    """An agent that raises the given errors in order, and then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        if self._errors:
            raise self._errors.pop(0)
        return answer("fine")


def answer(text: str) -> Answer:
    return Answer(reply=text, model="m", history=(b"[]", 0))


def failure_of(turn: Turn) -> tuple[str, str]:
    assert turn.state == "failed"
    assert turn.failure is not None
    assert (turn.reply, turn.model, turn.usage) == (None, None, Usage())
    return turn.failure.code, turn.failure.detail


async def test_model_failure_has_a_code_and_a_reason(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel([UnexpectedModelBehavior("it spoke Latin")]))

    code, detail = failure_of(await say(turns))

    assert code == "model_failed"
    assert detail


@pytest.mark.parametrize(
    "error",
    [RuntimeError("secret-5309"), asyncio.CancelledError("secret-5309"), TimeoutError("secret-5309")],
    ids=lambda error: type(error).__name__,
)
async def test_internal_error_text_appears_only_in_the_log(
    open_turns: OpenTurns, say: Say, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    turns = open_turns(agent=Raises(error))
    with caplog.at_level(logging.ERROR):
        code, detail = failure_of(await say(turns))

    assert code == "internal_error"
    assert "secret" not in detail
    assert "Error" not in detail
    assert "secret-5309" in caplog.text
    assert (await say(turns)).reply == "fine"


async def test_turn_is_stopped_after_its_timeout(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel([asyncio.Event()], "two"), turn_timeout=0.01)

    code, detail = failure_of(await say(turns))

    assert code == "turn_timeout"
    assert "TORANA_TURN_TIMEOUT" in detail


async def test_reply_that_the_database_rejects_fails_the_turn(open_turns: OpenTurns, say: Say) -> None:
    class HalfACharacter:
        async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
            return answer("\ud83d" if turn.content == "break" else "fine")

    turns = open_turns(agent=HalfACharacter())

    assert failure_of(await say(turns, "break")) == ("internal_error", GatewayError().detail)
    assert (await say(turns)).reply == "fine"


async def test_callers_get_an_error_when_an_end_cannot_be_stored(
    open_turns: OpenTurns, say: Say, message: Message, database: Database
) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel(["It is ", gate, "lost."]))
    turn = await turns.accept(message())
    watcher = asyncio.create_task(read_events(turns, turn))
    await database.run(refuse_ends)
    gate.set()

    with pytest.raises(StoreUnavailable, match="could not store the end of a turn"):
        await turns.reader.wait_for_end(turn)
    async with asyncio.timeout(10):
        assert [event.type for event in await watcher if event.terminal] == ["turn.failed"]
    assert list(turns.live) == []


async def test_callers_of_queued_turns_get_an_error_when_an_end_is_not_stored(
    open_turns: OpenTurns, open_database: Callable[[], Database], message: Message, database: Database
) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([RuntimeError("broken")], ["It is ", gate, "lost."], [asyncio.Event()]))
    broken = await turns.reader.wait_for_end(await turns.accept(message()))
    accepted = [await turns.accept(message()), await turns.accept(message(on_busy="steer"))]
    accepted.append(await turns.accept(message(user="bob")))
    watchers = [asyncio.create_task(read_events(turns, turn)) for turn in accepted]
    waiting = [asyncio.ensure_future(turns.reader.wait_for_end(turn)) for turn in accepted]
    await database.run(refuse_ends)
    gate.set()

    for one in waiting:
        with pytest.raises(StoreUnavailable, match="could not store the end of a turn"):
            await one
    assert [events[-1].type for events in await asyncio.gather(*watchers)] == ["turn.failed"] * 3
    assert list(turns.live) == []
    with pytest.raises(StoreUnavailable, match="the gateway tries again automatically"):
        await turns.reader.wait_for_end(accepted[0])
    with pytest.raises(QueueFull, match="the gateway tries again automatically"):
        await turns.accept(message())
    with pytest.raises(QueueFull, match="the gateway tries again automatically"):
        await turns.retry(broken.owner, broken.id)
    assert (await turns.accept(message(channel="elsewhere"))).state == "running"
    await turns.stop(grace=0)
    await database.run(take_ends)

    turns = open_turns(ScriptedModel(*["at last"] * 4), database=open_database())
    await turns.start()
    assert [(await turns.reader.wait_for_end(turn)).reply for turn in accepted] == ["at last"] * 3


async def read_events(turns: Turns, turn: Turn) -> list[TurnEvent]:
    """Return the events that a subscriber of the turn receives."""
    return [event async for event in turns.reader.events(turn)]


def refuse_ends(connection: Connection) -> None:
    """Make the database reject every end of a turn."""
    connection.exec_driver_sql(
        "CREATE TRIGGER no_end BEFORE UPDATE ON turns WHEN NEW.state IN ('completed', 'failed') "
        "BEGIN SELECT RAISE(ABORT, 'no end'); END"
    )


def take_ends(connection: Connection) -> None:
    """Make the database accept ends again."""
    connection.exec_driver_sql("DROP TRIGGER no_end")


class Pauses:
    """Pauses that last until the test ends them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begun = asyncio.Event()
        self._over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._begun.set()
        await self._over.wait()

    async def begun(self) -> None:
        await self._begun.wait()

    def end(self) -> None:
        self._over.set()


async def test_session_continues_once_the_end_can_be_stored(
    open_turns: OpenTurns, say: Say, message: Message, database: Database
) -> None:
    gate, pauses, ended = asyncio.Event(), Pauses(), asyncio.Queue[Turn]()
    model = ScriptedModel(["It is ", gate, "kept."], "two", "three")
    turns = open_turns(model, pause=pauses, ended=ended.put_nowait)
    first, second = await turns.accept(message()), await turns.accept(message())
    await database.run(refuse_ends)
    gate.set()
    await pauses.begun()

    assert len(turns.live.blocked) == 1
    with pytest.raises(StoreUnavailable):
        await turns.reader.wait_for_end(second)
    with pytest.raises(QueueFull):
        await turns.accept(message())
    await database.run(take_ends)
    pauses.end()

    assert [(turn.id, turn.reply) for turn in (await ended.get(), await ended.get())] == [
        (first.id, "It is kept."),
        (second.id, "two"),
    ]
    assert len(turns.live.blocked) == 0
    assert (await say(turns)).reply == "three"


async def test_storing_an_end_is_retried_with_growing_pauses(
    open_turns: OpenTurns, message: Message, database: Database
) -> None:
    seconds: list[float] = []
    enough = asyncio.Event()

    async def pause(length: float) -> None:
        seconds.append(length)
        if len(seconds) == 6:
            enough.set()
            await asyncio.Event().wait()

    turns = open_turns(ScriptedModel("lost"), pause=pause)
    await database.run(refuse_ends)
    await turns.accept(message())

    await enough.wait()

    assert seconds == [0.5, 2.0, 10.0, 30.0, 30.0, 30.0]


REFUSED = {
    "usage": "BEFORE UPDATE ON usage WHEN NEW.output_tokens > 0",
    "history": "BEFORE INSERT ON history",
    "deliveries": "BEFORE INSERT ON deliveries",
    "next turn": "BEFORE UPDATE ON turns WHEN NEW.state = 'running' AND OLD.seq = 2 AND NEW.attempt = 1",
}


@pytest.mark.parametrize("refused", REFUSED)
async def test_rejected_part_of_an_end_does_not_block_the_session(
    open_turns: OpenTurns, message: Message, database: Database, refused: str
) -> None:
    gate, pauses = asyncio.Event(), Pauses()
    turns = open_turns(ScriptedModel(["It is ", gate, "lost."], "two"), pause=pauses)
    first = await turns.accept(replace(message(), account="a", place="{}", message="1"))
    second = await turns.accept(replace(message(), account="a", place="{}", message="2"))
    await database.run(partial(plant, trigger=REFUSED[refused]))
    gate.set()

    ended = await turns.reader.wait_for_end(first)
    await database.run(partial(dig_out))
    pauses.end()

    assert (ended.state, ended.failure and ended.failure.code) == ("failed", "internal_error")
    assert (await turns.reader.wait_for_end(second)).reply == "two"
    assert len(turns.live.blocked) == 0


def plant(connection: Connection, trigger: str) -> None:
    """Make the database reject one part of the end of a turn."""
    connection.exec_driver_sql(f"CREATE TRIGGER planted {trigger} BEGIN SELECT RAISE(ABORT, 'planted'); END")


def dig_out(connection: Connection) -> None:
    connection.exec_driver_sql("DROP TRIGGER planted")


async def test_failing_listener_does_not_stop_the_session(open_turns: OpenTurns, message: Message) -> None:
    def fail(_: Turn) -> None:
        raise LookupError

    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "one"], "two"), ended=fail)
    first, second = await turns.accept(message()), await turns.accept(message())
    gate.set()

    assert [(await turns.reader.wait_for_end(turn)).reply for turn in (first, second)] == ["one", "two"]


async def test_error_while_building_the_end_fails_the_turn(
    open_turns: OpenTurns, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(runner, "cut_off", fail)
    begun = asyncio.Event()
    turns = open_turns(ScriptedModel(["It ", asyncio.Event()], "two"))
    first, second = await turns.accept(message()), await turns.accept(message())
    async for event in turns.reader.events(first):
        if event.type == "message.delta":
            begun.set()
            break

    cancelled = await turns.cancel(first.owner, first.id)

    assert (cancelled.state, cancelled.failure and cancelled.failure.code) == ("failed", "internal_error")
    assert (await turns.reader.wait_for_end(second)).reply == "two"


async def test_reply_is_stored_after_a_temporary_write_failure(
    open_turns: OpenTurns, message: Message, database: Database, path: Path
) -> None:
    gate = asyncio.Event()
    pauses: list[float] = []
    locker = sqlite3.connect(path, isolation_level=None)
    await database.run(partial(set_busy_timeout, milliseconds=1))

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            locker.close()

    turns = open_turns(ScriptedModel(["It is ", gate, "kept."], "next"), pause=pause)
    accepted = [await turns.accept(message()) for _ in range(2)]
    async for event in turns.reader.events(accepted[0]):
        if event.type == "message.delta" and not gate.is_set():
            locker.execute("BEGIN IMMEDIATE")
            gate.set()

    assert [(await turns.reader.wait_for_end(turn)).reply for turn in accepted] == ["It is kept.", "next"]
    assert pauses == [0.1, 0.5, 2.0, 5.0, 5.0, 5.0]


def set_busy_timeout(connection: Connection, milliseconds: int) -> None:
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")


async def test_nothing_is_accepted_while_the_database_is_unwritable(
    open_turns: OpenTurns, say: Say, message: Message, database: Database, path: Path
) -> None:
    turns = open_turns(ScriptedModel("hi"))
    await database.run(partial(set_busy_timeout, milliseconds=1))
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        await turns.accept(message())
    locker.close()

    ended = await say(turns)

    assert (ended.seq, ended.reply) == (1, "hi")


async def test_message_is_answered_after_its_caller_disconnects(
    open_turns: OpenTurns, say: Say, message: Message, database: Database
) -> None:
    model = ScriptedModel("one", "two")
    turns = open_turns(model)
    caller = asyncio.ensure_future(turns.accept(message("first")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()

    second = await say(turns, "second")

    assert caller.cancelled()
    assert (second.seq, second.reply) == (2, "two")
    assert len(model.requests) == 2


class Unreadable(SqliteDatabase):
    """A database that cannot read the journal."""

    async def run(self, work: Callable[[Connection], T]) -> T:
        if getattr(work, "func", None) is journal_rows.load:
            raise StoreUnavailable
        return await super().run(work)


async def test_stop_does_not_wait_for_a_cancelled_turn_with_unreadable_journal(
    open_turns: OpenTurns, message: Message, path: Path
) -> None:
    waits = asyncio.Event()

    async def pause(_seconds: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    database = Unreadable(path=path)
    turns = open_turns(agent=Raises(LookupError()), database=database, pause=pause)
    turn = await turns.reader.wait_for_end(await turns.accept(message()))
    await turns.retry(turn.owner, turn.id)
    await waits.wait()
    cancelling = asyncio.ensure_future(turns.cancel(turn.owner, turn.id))
    await asyncio.sleep(0)  # the cancellation has reached the store, where the stop waits for it

    async with asyncio.timeout(20):
        await turns.stop(grace=0)

    with pytest.raises(Draining):
        await cancelling
    database.close()
