"""SQLite in one thread: a transaction is one hop, and what waits together commits together.

Every store is plain synchronous functions of a connection. ``Database.run`` executes one of them as a
transaction in the thread that alone owns the connection, so nothing in this process ever waits for a lock of
SQLite's. While a commit waits for the disk, others queue up; the thread takes all of them into its next
transaction, each in a savepoint of its own, and pays for one more sync instead of many.

What is deleted is overwritten (``secure_delete``); see ``Database.rewrite`` for what that leaves.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, cast
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError
from sqlalchemy.pool import PoolProxiedConnection

from torana.errors import StoreUnavailable
from torana.lasting import either

T = TypeVar("T")

#: What a transaction does.
Work: TypeAlias = Callable[[Connection], T]

#: At most so many transactions share one commit: a bound on how long the first of them waits.
_BATCH = 64

#: Seconds between two tries to write what must not be lost; the last one repeats.
_PAUSES = (0.1, 0.5, 2.0, 5.0)

#: Seconds for which a disk may be full before it is told to those who wait for an answer.
DELAY = 2.0

_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "busy_timeout=5000",
    "temp_store=MEMORY",
    "secure_delete=ON",
)

#: What SQLite says of a place without room or without the right to write. Of another process's lock it says
#: something else, and that ends by itself.
_UNWRITABLE = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
)

_log = logging.getLogger(__name__)


def sqlite_engine(path: Path, *, read_only: bool = False, create: bool = True) -> Engine:
    """An engine for a database file whose transactions begin as they should.

    Writers begin IMMEDIATE: SQLite refuses at once to turn a reader's transaction into a writer's when
    another wrote in between, whatever the busy timeout says. A read-only engine, and one that is not to
    ``create`` the file, fail where it is missing.
    """

    def connect() -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            isolation_level=None,  # the driver issues no BEGIN of its own
            check_same_thread=False,
        )
        for pragma in ("busy_timeout=5000",) if read_only else _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").close()
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool, pool_size=1)

    def do_begin(connection: PoolProxiedConnection) -> None:
        cursor = connection.cursor()
        cursor.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
        cursor.close()

    # An attribute of this one object. A listener, which SQLAlchemy's documentation has for this, would make it
    # look for listeners at every statement: a third of what short transactions take.
    vars(engine.dialect)["do_begin"] = do_begin
    return engine


@dataclass(slots=True)
class _Job(Generic[T]):
    """One transaction that waits, and the loop that waits for it."""

    work: Callable[[Connection], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    #: What cannot be done inside a transaction is done behind it, and its result is the job's.
    behind: Callable[[sqlite3.Connection], T] | None = None

    def settle(self, outcome: T | BaseException) -> None:
        """Hand the outcome over to the waiting task, in its own thread."""
        try:
            self.loop.call_soon_threadsafe(self._set, outcome)
        except RuntimeError:  # the loop is closed: nobody waits any more
            _log.debug("a transaction ended after its loop")

    def _set(self, outcome: T | BaseException) -> None:
        if self.future.done():  # its task was cancelled meanwhile
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


async def until_kept(write: Callable[[], Awaitable[T]], *, pause: Callable[[float], Awaitable[object]]) -> T:
    """What ``write`` returns, tried again for however long the database cannot be written.

    For what has happened already and must not be lost. ``pause`` lets seconds go before another try.
    """
    pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
    while True:
        try:
            return await write()
        except StoreUnavailable:
            await pause(next(pauses))


class _Unkept:
    """A transaction that must not be lost and cannot be written; set ``again`` to have it tried at once."""

    def __init__(self) -> None:
        self.again = asyncio.Event()
        self._tried = asyncio.get_running_loop().create_future()

    async def tried(self) -> None:
        """Wait for the outcome of the next try. Raises ``StoreUnavailable``."""
        self.again.set()
        if error := await asyncio.shield(self._tried):
            raise error

    def settle(self, error: StoreUnavailable | None) -> None:
        """Tell the outcome of a try to those who wait for it."""
        self._tried.set_result(error)
        self._tried = asyncio.get_running_loop().create_future()
        self.again.clear()


class Database:
    """The one connection to a SQLite file, in a thread of its own; ``monotonic`` counts seconds."""

    def __init__(self, *, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._failed_at: float | None = None
        self._unkept: set[_Unkept] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="torana-store", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Execute ``work`` as one transaction and return what it returns, after the commit.

        Transactions run in the order of the calls. An exception of ``work`` undoes what it did and is raised
        here; a database that cannot be read or written, or is closed, raises ``StoreUnavailable``, and nothing
        was kept. Cancelling the call does not undo it: the transaction may still commit.
        """
        return await self._done(work)

    async def persist(
        self,
        work: Callable[[Connection], T],
        *,
        pause: Callable[[float], Awaitable[object]],
        delayed: asyncio.Event | None = None,
    ) -> T:
        """Execute ``work`` as ``run`` does, tried again for however long the database cannot be written.

        For what has happened already and must not be lost. ``pause`` lets seconds go before another try.
        ``delayed`` is set while a full or unwritable disk has been the reason for longer than two seconds.
        """
        unkept = _Unkept()
        timer: asyncio.TimerHandle | None = None

        async def write() -> T:
            nonlocal timer
            try:
                return await self.run(work)
            except StoreUnavailable as error:
                if _is_unwritable(error.__cause__):
                    self._unkept.add(unkept)
                    if delayed is not None and timer is None:
                        timer = asyncio.get_running_loop().call_later(DELAY, delayed.set)
                unkept.settle(error)
                raise

        try:
            return await until_kept(write, pause=lambda seconds: either(unkept.again, pause(seconds)))
        finally:
            self._unkept.discard(unkept)
            unkept.settle(None)
            if timer is not None:
                timer.cancel()
            if delayed is not None:
                delayed.clear()

    async def check_kept(self) -> None:
        """Try again at once what could not be written. Raises ``StoreUnavailable`` while it still cannot be.

        Whoever is about to accept something new asks here: a small write may succeed where the one that must
        follow does not.
        """
        for unkept in tuple(self._unkept):
            await unkept.tried()

    async def rewrite(self) -> None:
        """Write the whole file anew, without the places where something was deleted.

        Deleted rows are overwritten at once, but what SQLite leaves behind when it moves rows between pages
        is not, nor is what was deleted before that was so. Takes the time and the room on the disk of a copy;
        transactions wait meanwhile. Raises ``StoreUnavailable``, and the file is as it was.
        """
        await self._done(_nothing, behind=_rewrite)

    async def empty_log(self) -> bool:
        """Bring everything into the file itself and empty SQLite's log beside it, which holds older pages.

        False where somebody reads the database at this moment and needs the log: then ask again.
        """
        return await self._done(_nothing, behind=_empty_log)

    async def writable(self) -> bool:
        """Whether everything could be kept; after a failure it tries again, once a second at most."""
        failed_at = self._failed_at
        if (failed_at is None and self._unkept) or (
            failed_at is not None and self._monotonic() - failed_at >= 1
        ):
            try:
                await self.check_kept()
                await self.run(_touch)
            except StoreUnavailable:
                return False
            self._failed_at = None
        return self._failed_at is None and not self._unkept

    def close(self) -> None:
        """Finish what waits and close the file. Call it in the thread that calls ``run``; twice is a no-op."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    async def _done(
        self, work: Callable[[Connection], Any], *, behind: Callable[[sqlite3.Connection], Any] | None = None
    ) -> Any:
        if self._closed:
            raise StoreUnavailable("The database is closed: the gateway has stopped. Nothing was accepted.")
        loop = asyncio.get_running_loop()
        job = _Job[Any](work, loop, loop.create_future(), behind)
        self._jobs.put(job)
        return await job.future

    def _serve(self) -> None:
        engine = sqlite_engine(self._path, create=False)
        while (job := self._jobs.get()) is not None:
            batch, closing = self._take(job)
            outcomes = self._commit(engine, batch)
            if batch[-1].behind is not None and not isinstance(outcomes[-1], Exception):
                outcomes[-1] = self._finish(engine, batch[-1].behind)
            for member, outcome in zip(batch, outcomes, strict=True):
                member.settle(outcome)
            if closing:
                break
        engine.dispose()

    def _take(self, first: _Job[Any]) -> tuple[list[_Job[Any]], bool]:
        """The first job and those that wait behind it, and whether the database is to be closed after them."""
        batch = [first]
        while len(batch) < _BATCH and batch[-1].behind is None:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return batch, True
            batch.append(job)
        return batch, False

    def _commit(self, engine: Engine, batch: list[_Job[Any]]) -> list[Any]:
        """Run the batch as one transaction: an outcome per job, a result or an exception."""
        try:
            with engine.begin() as connection:
                before = _changes(connection)
                outcomes = (
                    [batch[0].work(connection)]
                    if len(batch) == 1
                    else [_attempt(connection, job.work) for job in batch]
                )
                wrote = _changes(connection) != before
        except DBAPIError as error:
            return [self._unavailable(error.orig) if _is_broken(error) else error for _ in batch]
        except Exception as error:  # noqa: BLE001 - whatever the work raised belongs to whoever asked for it
            return [error] * len(batch)
        if wrote:  # a full disk can still be read
            self._failed_at = None
        return outcomes

    def _finish(self, engine: Engine, work: Callable[[sqlite3.Connection], T]) -> T | StoreUnavailable:
        """Do what is done outside of a transaction."""
        pooled = engine.raw_connection()
        try:
            return work(cast("sqlite3.Connection", pooled.driver_connection))
        except sqlite3.Error as error:
            return self._unavailable(error)
        finally:
            pooled.close()

    def _unavailable(self, error: BaseException | None) -> StoreUnavailable:
        if self._failed_at is None:
            _log.error("the database failed: %s", error)
        self._failed_at = self._monotonic()
        unavailable = StoreUnavailable(headers={"Retry-After": "5"})
        unavailable.__cause__ = error
        return unavailable


def _is_broken(error: DBAPIError) -> bool:
    """Whether the database itself failed (locked, full, unreadable), and not a statement of ours."""
    return isinstance(error, OperationalError) or type(error) is DatabaseError


def _is_unwritable(error: BaseException | None) -> bool:
    """Whether there is no room, or no right to write."""
    code = error.sqlite_errorcode if isinstance(error, sqlite3.Error) else None
    return code is not None and code & 0xFF in _UNWRITABLE  # the other bits say where it happened


def _attempt(connection: Connection, work: Callable[[Connection], T]) -> T | Exception:
    """Run one job of several in a savepoint: its own exception undoes it alone, a broken database all."""
    try:
        with connection.begin_nested():
            return work(connection)
    except DBAPIError as error:
        if _is_broken(error):
            raise
        return error
    except Exception as error:  # noqa: BLE001 - as above
        return error


def _changes(connection: Connection) -> int:
    """How many rows were changed since the file was opened."""
    return cast("sqlite3.Connection", connection.connection.driver_connection).total_changes


def _nothing(_connection: Connection) -> None:
    """Take a place in the order of transactions."""


def _rewrite(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA temp_store=FILE").close()  # a whole copy has no place in memory
    try:
        connection.execute("VACUUM").close()
    finally:
        connection.execute("PRAGMA temp_store=MEMORY").close()


def _empty_log(connection: sqlite3.Connection) -> bool:
    # Whoever reads now may read for long, and everybody else's transactions would wait with us.
    connection.execute("PRAGMA busy_timeout=0").close()
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute("PRAGMA busy_timeout=5000").close()
    return not busy


def _touch(connection: Connection) -> None:
    """Write for certain: a page of the file is changed, whatever is in it."""
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA user_version = {(int(version) + 1) % 1_000_000}")
