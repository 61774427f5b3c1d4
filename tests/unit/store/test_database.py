"""A database with one thread and one connection for many callers."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError
from tests.waiting import PATIENCE

from torana.errors import StoreUnavailable
from torana.store.engine import database as database_module
from torana.store.engine.database import Database, follow_changes
from torana.store.engine.sqlite import SqliteDatabase, sqlite_engine

NOTES = sa.table("notes", sa.column("text", sa.Text))


@pytest.fixture
def dialect() -> str:
    return "sqlite"


@pytest.fixture
async def notes(database: Database) -> Database:
    """A database with one small table."""
    await database.run(partial(execute, sql="CREATE TABLE notes (text TEXT NOT NULL UNIQUE)"))
    return database


def execute(connection: Connection, sql: str) -> None:
    connection.exec_driver_sql(sql)


def write(connection: Connection, text: str) -> str:
    connection.execute(sa.insert(NOTES), {"text": text})
    return text


def read(connection: Connection) -> list[str]:
    return list(connection.execute(sa.select(NOTES.c.text).order_by(sa.text("rowid"))).scalars())


def synchronous(path: Path) -> int:
    with sqlite_engine(path).connect() as connection:
        return int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())


def seen_from_outside(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT text FROM notes ORDER BY rowid").fetchall()
    return [row[0] for row in rows]


class Queue:
    """Keeps the store's thread busy, so that later calls wait together."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gate = threading.Event()
        self._begun = threading.Event()
        self._blocker = asyncio.ensure_future(database.run(self._block))
        self.waiting: list[asyncio.Future[object]] = []

    def _block(self, _connection: Connection) -> None:
        self._begun.set()
        assert self._gate.wait(30)

    async def add(self, *works: Callable[[Connection], object]) -> None:
        await asyncio.to_thread(self._begun.wait, 30)
        for work in works:
            self.waiting.append(asyncio.ensure_future(self._database.run(work)))
        await asyncio.sleep(0)  # lets the calls enter the queue

    async def outcomes(self) -> list[object]:
        self._gate.set()
        await self._blocker
        return list(await asyncio.gather(*self.waiting, return_exceptions=True))


async def test_transaction_returns_the_result_of_its_function(notes: Database, path: Path) -> None:
    assert await notes.run(partial(write, text="one")) == "one"
    assert seen_from_outside(path) == ["one"]


async def test_waiting_calls_commit_together_in_order(notes: Database, path: Path) -> None:
    queue = Queue(notes)
    await queue.add(
        partial(write, text="one"),
        partial(write, text="two"),
        lambda connection: (read(connection), seen_from_outside(path)),
    )

    assert await queue.outcomes() == ["one", "two", (["one", "two"], [])]
    assert seen_from_outside(path) == ["one", "two"]


async def test_at_most_64_calls_share_a_commit(notes: Database, path: Path) -> None:
    queue = Queue(notes)
    await queue.add(*(partial(write, text=str(number)) for number in range(64)))
    await queue.add(lambda _: len(seen_from_outside(path)))

    assert (await queue.outcomes())[-1] == 64


async def test_transactions_do_not_wait_for_a_search(notes: Database) -> None:
    await notes.run(partial(write, text="before"))
    begun, ends = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def search(connection: Connection) -> list[str]:
        found = read(connection)
        loop.call_soon_threadsafe(begun.set)
        ends.wait(PATIENCE)
        return found + read(connection)

    searching = asyncio.create_task(notes.search(search))
    await begun.wait()
    await notes.run(partial(write, text="meanwhile"))
    ends.set()

    assert await searching == ["before", "before"]
    assert await notes.search(read) == ["before", "meanwhile"]


async def test_search_cannot_write(notes: Database) -> None:
    with pytest.raises(StoreUnavailable):
        await notes.search(partial(write, text="one"))

    assert await notes.run(read) == []


async def test_failing_transaction_rolls_back_only_itself(notes: Database, path: Path) -> None:
    def fail(connection: Connection) -> None:
        write(connection, "lost")
        raise LookupError("a bug")

    def write_twice(connection: Connection) -> None:
        write(connection, "lost too")
        write(connection, "one")

    queue = Queue(notes)
    await queue.add(partial(write, text="one"), fail, write_twice, partial(write, text="two"))
    first, bug, twice, last = await queue.outcomes()

    assert (first, last) == ("one", "two")
    assert isinstance(bug, LookupError)
    assert isinstance(twice, IntegrityError)
    assert seen_from_outside(path) == ["one", "two"]


async def test_transaction_that_sqlite_has_ended_fails_waiting_calls(notes: Database, path: Path) -> None:
    def fail(connection: Connection) -> None:
        # As SQLite itself does after some errors of the disk.
        execute(connection, "ROLLBACK")
        raise LookupError("a bug")

    queue = Queue(notes)
    await queue.add(partial(write, text="one"), fail, partial(write, text="two"))
    outcomes = await queue.outcomes()

    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3
    assert seen_from_outside(path) == []
    assert await notes.run(partial(write, text="three")) == "three"


@pytest.mark.parametrize("error", [LookupError("a bug"), IntegrityError("insert", {}, Exception())])
async def test_single_failing_transaction_is_rolled_back(notes: Database, path: Path, error: Exception) -> None:
    def fail(connection: Connection) -> None:
        write(connection, "lost")
        raise error

    with pytest.raises(type(error)):
        await notes.run(fail)

    assert seen_from_outside(path) == []
    assert await notes.writable()


async def test_full_disk_fails_waiting_calls_and_recovers(notes: Database, path: Path) -> None:
    await notes.run(partial(execute, sql="PRAGMA max_page_count = 1"))
    queue = Queue(notes)
    await queue.add(partial(write, text="small"), partial(write, text="x" * 100_000), read)

    for outcome in await queue.outcomes():
        assert isinstance(outcome, StoreUnavailable)
        assert outcome.headers["Retry-After"]
    with pytest.raises(StoreUnavailable):
        await notes.run(partial(write, text="x" * 100_000))
    assert seen_from_outside(path) == []

    await notes.run(partial(execute, sql="PRAGMA max_page_count = 1000"))
    assert await notes.run(partial(write, text="x" * 100_000))


async def test_read_only_database_is_unavailable(notes: Database, path: Path) -> None:
    await notes.run(partial(execute, sql="PRAGMA query_only = ON"))

    with pytest.raises(StoreUnavailable):
        await notes.run(partial(write, text="one"))

    assert seen_from_outside(path) == []


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(path: Path) -> Generator[subprocess.Popen[bytes]]:
    """A separate process in the middle of a transaction."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


async def test_foreign_lock_fails_calls_after_the_busy_timeout_and_recovers(
    database: Database, path: Path, request: pytest.FixtureRequest
) -> None:
    await database.run(partial(execute, sql="CREATE TABLE notes (text TEXT)"))
    await database.run(partial(execute, sql="PRAGMA busy_timeout = 1"))
    holder: subprocess.Popen[bytes] = request.getfixturevalue("holder")

    with pytest.raises(StoreUnavailable):
        await database.run(partial(write, text="one"))

    holder.communicate()
    assert await database.run(partial(write, text="one"))
    assert seen_from_outside(path) == ["one"]


@pytest.mark.parametrize("name", ["a directory", "no/such/directory", "garbage"])
async def test_unopenable_file_is_unavailable(tmp_path: Path, name: str) -> None:
    (tmp_path / "a directory").mkdir()
    (tmp_path / "garbage").write_bytes(b"this is no database" * 1000)
    database = SqliteDatabase(path=tmp_path / name)

    for attempt in (database.run, database.search):
        with pytest.raises(StoreUnavailable):
            await attempt(read)

    database.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await database.search(read)


def test_file_that_is_no_database_is_closed(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"this is no database" * 1000)

    with pytest.raises(DatabaseError) as refused:
        sqlite_engine(garbage).connect()

    opened = [file.path for file in psutil.Process().open_files()]
    assert str(garbage) not in opened
    assert "not a database" in str(refused.value)  # its traceback would hold the connection


async def test_writability_is_checked_once_a_second(path: Path) -> None:
    now = [100.0]
    database = SqliteDatabase(path=path, monotonic=lambda: now[0])
    await database.run(partial(execute, sql="PRAGMA busy_timeout = 1"))
    assert await database.writable()

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await database.run(read)
        now[0] += 1
        assert not await database.writable()

    assert not await database.writable()
    now[0] += 1
    assert await database.writable()
    database.close()


async def test_only_a_successful_write_makes_the_database_writable_again(path: Path) -> None:
    database = SqliteDatabase(path=path, monotonic=lambda: 100.0)
    await database.run(partial(execute, sql="CREATE TABLE notes (text)"))

    def fail(_connection: Connection) -> None:
        raise OperationalError("write", {}, Exception("disk I/O error"))

    with pytest.raises(StoreUnavailable):
        await database.run(fail)
    assert not await database.writable()

    await database.run(read)  # a full disk can still be read
    assert not await database.writable()
    await database.run(partial(execute, sql="INSERT INTO notes VALUES ('x')"))
    assert await database.writable()
    database.close()


Crowded = tuple[Database, asyncio.Task[str], asyncio.Event]


@pytest.fixture
async def crowded(notes: Database, monkeypatch: pytest.MonkeyPatch) -> Crowded:
    """A disk with room for a few pages, a write that does not fit, and the event of its delay."""
    monkeypatch.setattr(database_module, "DELAY", 0)
    used = await notes.run(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar_one())
    await notes.run(partial(execute, sql=f"PRAGMA max_page_count = {used + 10}"))
    delayed = asyncio.Event()

    async def pause(_seconds: float) -> None:
        await asyncio.Event().wait()

    large = partial(write, text="x" * 100_000)
    task = asyncio.create_task(notes.persist(large, pause=pause, delayed=delayed))
    await delayed.wait()
    return notes, task, delayed


async def test_database_is_not_writable_while_a_persistent_write_waits(
    crowded: Crowded,
) -> None:
    database, task, _ = crowded

    assert await database.run(partial(write, text="small")) == "small"

    assert not await database.writable()
    with pytest.raises(StoreUnavailable):
        await database.check_pending_writes()
    assert not task.done()
    task.cancel()


async def test_check_kept_retries_waiting_writes(crowded: Crowded, path: Path) -> None:
    database, task, delayed = crowded
    await database.run(partial(execute, sql="PRAGMA max_page_count = 1000000"))

    await asyncio.gather(database.check_pending_writes(), database.check_pending_writes())

    assert await task == "x" * 100_000
    assert seen_from_outside(path) == ["x" * 100_000]
    assert not delayed.is_set()
    assert await database.writable()


async def test_check_ends_when_waiting_writes_end_together(crowded: Crowded) -> None:
    database, first, _ = crowded
    again = asyncio.Event()
    delays = [asyncio.Event() for _ in range(2)]

    async def pause(_seconds: float) -> None:
        await again.wait()

    others = [
        asyncio.create_task(database.persist(partial(write, text=text * 100_000), pause=pause, delayed=delayed))
        for text, delayed in zip("yz", delays, strict=True)
    ]
    for delayed in delays:
        await delayed.wait()
    await database.run(partial(execute, sql="PRAGMA max_page_count = 1000000"))

    again.set()
    async with asyncio.timeout(20):
        await database.check_pending_writes()
        await asyncio.gather(first, *others)


async def test_cancelled_write_is_not_waited_for(
    crowded: Crowded,
) -> None:
    database, task, _ = crowded
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await database.check_pending_writes()


async def test_short_foreign_lock_does_not_refuse_new_messages(path: Path) -> None:
    database = SqliteDatabase(path=path)
    await database.run(partial(execute, sql="CREATE TABLE notes (text TEXT)"))
    await database.run(partial(execute, sql="PRAGMA busy_timeout = 1"))
    paused = asyncio.Event()

    async def pause(_seconds: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(database.persist(partial(write, text="one"), pause=pause))
        await paused.wait()
        await database.check_pending_writes()
    task.cancel()
    database.close()


async def test_cancelling_a_caller_does_not_roll_back_its_transaction(notes: Database, path: Path) -> None:
    queue = Queue(notes)
    await queue.add(partial(write, text="one"), partial(write, text="two"))
    queue.waiting[0].cancel()

    cancelled, other = await queue.outcomes()

    assert isinstance(cancelled, asyncio.CancelledError)
    assert other == "two"
    assert seen_from_outside(path) == ["one", "two"]


async def test_close_finishes_waiting_calls(notes: Database, path: Path) -> None:
    queue = Queue(notes)
    await queue.add(partial(write, text="one"), partial(write, text="two"))
    closing = asyncio.ensure_future(asyncio.to_thread(notes.close))

    assert await queue.outcomes() == ["one", "two"]
    await closing
    assert seen_from_outside(path) == ["one", "two"]


async def test_closed_database_raises(notes: Database) -> None:
    notes.close()
    notes.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        await notes.run(read)


def test_database_survives_an_event_loop_closed_early(path: Path) -> None:
    database = SqliteDatabase(path=path)
    begun, gate = threading.Event(), threading.Event()

    def block(_connection: Connection) -> None:
        begun.set()
        assert gate.wait(30)

    with asyncio.Runner() as runner:
        runner.get_loop().create_task(database.run(block))
        runner.run(asyncio.to_thread(begun.wait, 30))
    gate.set()

    assert asyncio.run(database.run(lambda _: "still here")) == "still here"
    database.close()


def test_commit_waits_for_the_disk(path: Path, processes: ForkServerContext) -> None:
    with ProcessPoolExecutor(1, mp_context=processes) as pool:  # in this process, the tests turn it off
        assert pool.submit(synchronous, path).result() == 2


async def test_failed_work_after_a_change_is_repeated_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    changed, done = asyncio.Event(), asyncio.Event()
    errors: list[Exception] = [StoreUnavailable(), *[OSError("too many open files")] * 3]

    async def work() -> None:
        if errors:
            raise errors.pop(0)
        done.set()

    async def pause(_seconds: float) -> None:
        await asyncio.sleep(0)

    following = asyncio.create_task(follow_changes(changed, work, name="skills", pause=pause))
    for _ in range(2):
        done.clear()
        changed.set()
        async with asyncio.timeout(20):
            await done.wait()
    following.cancel()

    assert [record.getMessage() for record in caplog.records] == ["change_not_applied"]
