"""SQLite in one thread, with group commit.

Stores are synchronous functions of a connection. ``Database.run`` executes one as a transaction in the thread
that owns the connection, so nothing in this process waits for SQLite's locks. Jobs that arrive during a commit
share the next transaction, each in its own savepoint, and need one sync.

Deleted data is overwritten (``secure_delete``); ``Database.rewrite`` describes the exceptions.
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

from torana.aio import wait_first
from torana.errors import StoreUnavailable

T = TypeVar("T")

Work: TypeAlias = Callable[[Connection], T]

#: Maximum number of jobs that share one commit; it limits the wait of the first.
_BATCH = 64

#: Seconds between attempts of a write that must not be lost; the last value repeats.
_PAUSES = (0.1, 0.5, 2.0, 5.0)

#: Seconds of an unwritable disk before waiting callers are informed.
DELAY = 2.0

PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "busy_timeout=5000",
    "temp_store=MEMORY",
    "secure_delete=ON",
)

#: SQLite's errors for a full or unwritable disk. Another process's lock has another code and ends by itself.
_UNWRITABLE = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
)

_log = logging.getLogger(__name__)


def sqlite_engine(path: Path, *, read_only: bool = False, create: bool = True) -> Engine:
    """Return an engine for a database file.

    Writers use BEGIN IMMEDIATE: SQLite refuses at once, despite the busy timeout, to upgrade a read transaction
    after another connection wrote. A read-only engine, and one without ``create``, fail if the file is missing.
    """

    def connect() -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            isolation_level=None,  # the driver issues no BEGIN
            check_same_thread=False,
        )
        try:
            for pragma in ("busy_timeout=5000",) if read_only else PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").close()
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool, pool_size=1)

    def do_begin(connection: PoolProxiedConnection) -> None:
        cursor = connection.cursor()
        cursor.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
        cursor.close()

    # Set on this object: the documented event listener makes SQLAlchemy look for listeners at every statement,
    # a third of the time of a short transaction.
    vars(engine.dialect)["do_begin"] = do_begin
    return engine


@dataclass(slots=True)
class _Job(Generic[T]):
    """A queued transaction, and the event loop that waits for its result."""

    work: Callable[[Connection], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    #: Executed after the commit, outside of a transaction; its result is the job's.
    behind: Callable[[sqlite3.Connection], T] | None = None

    def settle(self, outcome: T | BaseException) -> None:
        """Pass the outcome to the waiting task in its event loop. Thread-safe."""
        try:
            self.loop.call_soon_threadsafe(self._set, outcome)
        except RuntimeError:  # the loop is closed: no task waits
            _log.debug("transaction_ended_late")

    def _set(self, outcome: T | BaseException) -> None:
        if self.future.done():  # the task was cancelled
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


async def retry_until_written(
    write: Callable[[], Awaitable[T]], *, pause: Callable[[float], Awaitable[object]]
) -> T:
    """Return the result of ``write``, repeated while the database cannot be written.

    For facts that must not be lost. ``pause`` waits between attempts.
    """
    pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
    while True:
        try:
            return await write()
        except StoreUnavailable:
            await pause(next(pauses))


class _PendingWrite:
    """A transaction that must not be lost and cannot be written; setting ``again`` retries it at once."""

    def __init__(self) -> None:
        self.again = asyncio.Event()
        self._tried = asyncio.get_running_loop().create_future()

    async def next_attempt(self) -> None:
        """Wait for the outcome of the next attempt. Raises ``StoreUnavailable``."""
        self.again.set()
        if error := await asyncio.shield(self._tried):
            raise error

    def settle(self, error: StoreUnavailable | None) -> None:
        """Pass the outcome of an attempt to the callers of ``next_attempt``."""
        self._tried.set_result(error)
        self._tried = asyncio.get_running_loop().create_future()
        self.again.clear()


class Database:
    """The only connection to a SQLite file, in its own thread; ``monotonic`` returns seconds."""

    def __init__(self, *, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._failed_at: float | None = None
        self._unkept: set[_PendingWrite] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="torana-store", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Execute ``work`` as one transaction and return its result after the commit.

        Transactions run in the order of the calls. An exception of ``work`` rolls it back and is raised here.
        Raises ``StoreUnavailable``, with nothing stored, if the database cannot be read or written or is
        closed. Cancelling the call does not undo it: the transaction may still commit.
        """
        return await self._wait_for(work)

    async def persist(
        self,
        work: Callable[[Connection], T],
        *,
        pause: Callable[[float], Awaitable[object]],
        delayed: asyncio.Event | None = None,
    ) -> T:
        """Execute ``work`` as ``run`` does, repeated while the database cannot be written.

        For facts that must not be lost. ``pause`` waits between attempts. ``delayed`` is set while a full or
        unwritable disk has been the reason for more than ``DELAY`` seconds.
        """
        unkept = _PendingWrite()
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
            return await retry_until_written(
                write, pause=lambda seconds: wait_first(unkept.again, pause(seconds))
            )
        finally:
            self._unkept.discard(unkept)
            unkept.settle(None)
            if timer is not None:
                timer.cancel()
            if delayed is not None:
                delayed.clear()

    async def check_pending_writes(self) -> None:
        """Retry pending writes at once. Raises ``StoreUnavailable`` while one still fails.

        Callers check this before they accept work: a small write may succeed where the larger one after it
        fails.
        """
        for unkept in tuple(self._unkept):
            await unkept.next_attempt()

    async def rewrite(self) -> None:
        """Rewrite the whole file (VACUUM), without remains of deleted data.

        Deleted rows are overwritten at once, but not the copies that SQLite leaves when it moves rows between
        pages, nor rows that were deleted before ``secure_delete`` was on. Takes the time and disk space of a
        copy; transactions wait. Raises ``StoreUnavailable`` and leaves the file unchanged.
        """
        await self._wait_for(_nothing, behind=_rewrite)

    async def empty_log(self) -> bool:
        """Copy the write-ahead log, which holds older pages, into the file and empty it.

        Returns False if a reader is using the log; then try again.
        """
        return await self._wait_for(_nothing, behind=_empty_log)

    async def writable(self) -> bool:
        """Return whether all writes succeed; after a failure, try again at most once a second."""
        failed_at = self._failed_at
        if (failed_at is None and self._unkept) or (
            failed_at is not None and self._monotonic() - failed_at >= 1
        ):
            try:
                await self.check_pending_writes()
                await self.run(_touch)
            except StoreUnavailable:
                return False
            self._failed_at = None
        return self._failed_at is None and not self._unkept

    def close(self) -> None:
        """Execute the queued jobs and close the file. Call it in the thread that calls ``run``. Idempotent."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    async def _wait_for(
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
        """Return the first job with those queued behind it, and whether to close the database after them."""
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
        """Run the batch as one transaction; return a result or an exception for each job."""
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
        except sqlite3.Error as error:  # of a savepoint
            return [self._unavailable(error)] * len(batch)
        except Exception as error:  # noqa: BLE001 - the caller gets every error of its work
            return [error] * len(batch)
        if wrote:  # a read succeeds on a full disk
            self._failed_at = None
        return outcomes

    def _finish(self, engine: Engine, work: Callable[[sqlite3.Connection], T]) -> T | StoreUnavailable:
        pooled = engine.raw_connection()
        try:
            return work(cast("sqlite3.Connection", pooled.driver_connection))
        except sqlite3.Error as error:
            return self._unavailable(error)
        finally:
            pooled.close()

    def _unavailable(self, error: BaseException | None) -> StoreUnavailable:
        if self._failed_at is None:
            _log.error("database_failed", extra={"reason": str(error)})
        self._failed_at = self._monotonic()
        unavailable = StoreUnavailable(headers={"Retry-After": "5"})
        unavailable.__cause__ = error
        return unavailable


def _is_broken(error: DBAPIError) -> bool:
    """Return whether the database itself failed (locked, full, unreadable), not a statement."""
    return isinstance(error, OperationalError) or type(error) is DatabaseError


def _is_unwritable(error: BaseException | None) -> bool:
    code = error.sqlite_errorcode if isinstance(error, sqlite3.Error) else None
    return code is not None and code & 0xFF in _UNWRITABLE  # the other bits are details


def _attempt(connection: Connection, work: Callable[[Connection], T]) -> T | Exception:
    """Run one of several jobs in a savepoint: its error undoes only this job; a broken database fails all."""
    driver = _driver(connection)
    # SQLAlchemy's savepoints take 40 times as long.
    driver.execute("SAVEPOINT job").close()
    try:
        outcome = work(connection)
    except Exception as error:
        if isinstance(error, DBAPIError) and _is_broken(error):
            raise
        driver.execute("ROLLBACK TO job").close()
        outcome = error
    driver.execute("RELEASE job").close()
    return outcome


def _changes(connection: Connection) -> int:
    """Return the number of rows changed since the file was opened."""
    return _driver(connection).total_changes


def _driver(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.driver_connection)


def _nothing(_connection: Connection) -> None:
    """Hold a place in the order of transactions."""


def _rewrite(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA temp_store=FILE").close()  # a whole copy may not fit in memory
    try:
        connection.execute("VACUUM").close()
    finally:
        connection.execute("PRAGMA temp_store=MEMORY").close()


def _empty_log(connection: sqlite3.Connection) -> bool:
    # A reader may take long, and all other transactions would wait.
    connection.execute("PRAGMA busy_timeout=0").close()
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute("PRAGMA busy_timeout=5000").close()
    return not busy


def _touch(connection: Connection) -> None:
    """Change a page of the file, so that the disk is really written."""
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA user_version = {(int(version) + 1) % 1_000_000}")
