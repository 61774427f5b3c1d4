"""Whatever goes wrong in a turn, it ends, it says why, and the next one runs."""

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
from torana.store import journal as journal_rows
from torana.store.database import Database, T
from torana.testing import ScriptedModel
from torana.turns import Turns, runner

OpenTurns = Callable[..., Turns]
Say = Callable[..., Awaitable[Turn]]
Message = Callable[..., Inbound]


class Raises:
    """An agent that raises what it is given, and answers once there is nothing left."""

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


async def test_a_model_that_fails_is_told_with_its_reason(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel([UnexpectedModelBehavior("it spoke Latin")]))

    code, detail = failure_of(await say(turns))

    assert code == "model_failed"
    assert detail


@pytest.mark.parametrize(
    "error",
    [RuntimeError("secret-5309"), asyncio.CancelledError("secret-5309"), TimeoutError("secret-5309")],
    ids=lambda error: type(error).__name__,
)
async def test_a_bug_is_a_failed_turn_whose_words_only_the_log_has(
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


async def test_a_turn_that_takes_too_long_is_stopped(open_turns: OpenTurns, say: Say) -> None:
    turns = open_turns(ScriptedModel([asyncio.Event()], "two"), turn_timeout=0.01)

    code, detail = failure_of(await say(turns))

    assert code == "turn_timeout"
    assert "TORANA_TURN_TIMEOUT" in detail


async def test_an_answer_that_no_database_takes_is_a_failure(open_turns: OpenTurns, say: Say) -> None:
    class HalfACharacter:
        async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
            return answer("\ud83d" if turn.content == "break" else "fine")

    turns = open_turns(agent=HalfACharacter())

    assert failure_of(await say(turns, "break")) == ("internal_error", GatewayError().detail)
    assert (await say(turns)).reply == "fine"


async def test_nobody_waits_for_an_end_that_cannot_be_written(
    open_turns: OpenTurns, say: Say, message: Message, database: Database
) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel(["It is ", gate, "lost."]))
    turn = await turns.accept(message())
    watcher = asyncio.create_task(seen(turns, turn))
    await database.run(refuse_ends)
    gate.set()

    with pytest.raises(StoreUnavailable, match="the end of a turn could not be written"):
        await turns.ended(turn)
    async with asyncio.timeout(10):
        assert [event.type for event in await watcher if event.terminal] == ["turn.failed"]
    assert turns.live == []


async def test_nor_for_what_waits_behind_an_end_that_cannot_be_written(
    open_turns: OpenTurns, open_database: Callable[[], Database], message: Message, database: Database
) -> None:
    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([RuntimeError("broken")], ["It is ", gate, "lost."], [asyncio.Event()]))
    broken = await turns.ended(await turns.accept(message()))
    accepted = [await turns.accept(message()), await turns.accept(message(on_busy="steer"))]
    accepted.append(await turns.accept(message(user="bob")))
    watchers = [asyncio.create_task(seen(turns, turn)) for turn in accepted]
    waiting = [asyncio.ensure_future(turns.ended(turn)) for turn in accepted]
    await database.run(refuse_ends)
    gate.set()

    for one in waiting:
        with pytest.raises(StoreUnavailable, match="the end of a turn could not be written"):
            await one
    assert [events[-1].type for events in await asyncio.gather(*watchers)] == ["turn.failed"] * 3
    assert turns.live == []
    with pytest.raises(StoreUnavailable, match="The gateway tries again by itself"):
        await turns.ended(accepted[0])
    with pytest.raises(QueueFull, match="The gateway tries again by itself"):
        await turns.accept(message())
    with pytest.raises(QueueFull, match="The gateway tries again by itself"):
        await turns.retry(broken.owner, broken.id)
    assert (await turns.accept(message(channel="elsewhere"))).state == "running"
    await turns.stop(grace=0)
    await database.run(take_ends)

    turns = open_turns(ScriptedModel(*["at last"] * 4), database=open_database())
    await turns.start()
    assert [(await turns.ended(turn)).reply for turn in accepted] == ["at last"] * 3


async def seen(turns: Turns, turn: Turn) -> list[TurnEvent]:
    """What who follows a turn sees of it."""
    return [event async for event in turns.events(turn)]


def refuse_ends(connection: Connection) -> None:
    """Have the database take no end of a turn any more."""
    connection.exec_driver_sql(
        "CREATE TRIGGER no_end BEFORE UPDATE ON turns WHEN NEW.state IN ('completed', 'failed') "
        "BEGIN SELECT RAISE(ABORT, 'no end'); END"
    )


def take_ends(connection: Connection) -> None:
    """Have it take them again."""
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


async def test_session_goes_on_without_a_restart_once_the_end_can_be_written(
    open_turns: OpenTurns, say: Say, message: Message, database: Database
) -> None:
    gate, pauses, ended = asyncio.Event(), Pauses(), asyncio.Queue[Turn]()
    model = ScriptedModel(["It is ", gate, "kept."], "two", "three")
    turns = open_turns(model, pause=pauses, ended=ended.put_nowait)
    first, second = await turns.accept(message()), await turns.accept(message())
    await database.run(refuse_ends)
    gate.set()
    await pauses.begun()

    assert turns.stuck == 1
    with pytest.raises(StoreUnavailable):
        await turns.ended(second)
    with pytest.raises(QueueFull):
        await turns.accept(message())
    await database.run(take_ends)
    pauses.end()

    assert [(turn.id, turn.reply) for turn in (await ended.get(), await ended.get())] == [
        (first.id, "It is kept."),
        (second.id, "two"),
    ]
    assert turns.stuck == 0
    assert (await say(turns)).reply == "three"


async def test_end_is_tried_again_after_pauses_that_grow(
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
async def test_part_of_an_end_that_the_database_refuses_holds_up_no_session(
    open_turns: OpenTurns, message: Message, database: Database, refused: str
) -> None:
    gate, pauses = asyncio.Event(), Pauses()
    turns = open_turns(ScriptedModel(["It is ", gate, "lost."], "two"), pause=pauses)
    first = await turns.accept(replace(message(), account="a", place="{}", message="1"))
    second = await turns.accept(replace(message(), account="a", place="{}", message="2"))
    await database.run(partial(plant, trigger=REFUSED[refused]))
    gate.set()

    ended = await turns.ended(first)
    await database.run(partial(dig_out))
    pauses.end()

    assert (ended.state, ended.failure and ended.failure.code) == ("failed", "internal_error")
    assert (await turns.ended(second)).reply == "two"
    assert turns.stuck == 0


def plant(connection: Connection, trigger: str) -> None:
    """Have the database refuse a part of what an end writes."""
    connection.exec_driver_sql(f"CREATE TRIGGER planted {trigger} BEGIN SELECT RAISE(ABORT, 'planted'); END")


def dig_out(connection: Connection) -> None:
    connection.exec_driver_sql("DROP TRIGGER planted")


async def test_session_goes_on_whatever_a_listener_does(open_turns: OpenTurns, message: Message) -> None:
    def fail(_: Turn) -> None:
        raise LookupError

    gate = asyncio.Event()
    turns = open_turns(ScriptedModel([gate, "one"], "two"), ended=fail)
    first, second = await turns.accept(message()), await turns.accept(message())
    gate.set()

    assert [(await turns.ended(turn)).reply for turn in (first, second)] == ["one", "two"]


async def test_turn_whose_end_cannot_be_made_fails(
    open_turns: OpenTurns, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(runner, "cut_off", fail)
    begun = asyncio.Event()
    turns = open_turns(ScriptedModel(["It ", asyncio.Event()], "two"))
    first, second = await turns.accept(message()), await turns.accept(message())
    async for event in turns.events(first):
        if event.type == "message.delta":
            begun.set()
            break

    cancelled = await turns.cancel(first.owner, first.id)

    assert (cancelled.state, cancelled.failure and cancelled.failure.code) == ("failed", "internal_error")
    assert (await turns.ended(second)).reply == "two"


async def test_an_answer_is_kept_although_the_database_is_unwritable_for_a_while(
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
    async for event in turns.events(accepted[0]):
        if event.type == "message.delta" and not gate.is_set():
            locker.execute("BEGIN IMMEDIATE")
            gate.set()

    assert [(await turns.ended(turn)).reply for turn in accepted] == ["It is kept.", "next"]
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


async def test_a_message_is_answered_although_its_caller_went_away_while_it_was_written(
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


class Unreadable(Database):
    """Does not give what a turn has settled."""

    async def run(self, work: Callable[[Connection], T]) -> T:
        if getattr(work, "func", None) is journal_rows.load:
            raise StoreUnavailable
        return await super().run(work)


async def test_a_stop_waits_for_no_turn_that_was_cancelled_before_its_journal_could_be_read(
    open_turns: OpenTurns, message: Message, path: Path
) -> None:
    waits = asyncio.Event()

    async def pause(_seconds: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    database = Unreadable(path=path)
    turns = open_turns(agent=Raises(LookupError()), database=database, pause=pause)
    turn = await turns.ended(await turns.accept(message()))
    await turns.retry(turn.owner, turn.id)
    await waits.wait()
    cancelling = asyncio.ensure_future(turns.cancel(turn.owner, turn.id))
    await asyncio.sleep(0)  # it is on its way into the store, where a stop waits for it

    async with asyncio.timeout(20):
        await turns.stop(grace=0)

    with pytest.raises(Draining):
        await cancelling
    database.close()
