"""A database in one thread, with group commit.

Stores are synchronous functions of a connection. ``Database.run`` executes one as a transaction in the thread
that owns the connection. Jobs that arrive during a commit share the next transaction, each in its own
savepoint, and need one sync.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Generic, TypeAlias, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from torana.aio import wait_first
from torana.errors import StoreUnavailable, TakenOver

T = TypeVar("T")

Work: TypeAlias = Callable[[Connection], T]

#: Maximum number of jobs that share one commit; it limits the wait of the first.
_BATCH = 64

#: Seconds between attempts of a write that must not be lost; the last value repeats.
_PAUSES = (0.1, 0.5, 2.0, 5.0)

#: Seconds of an unwritable disk before waiting callers are informed.
DELAY = 2.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class QueuedJob(Generic[T]):
    """A queued transaction, and the event loop that waits for its result."""

    work: Callable[[Connection], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    #: Executed after the commit, outside of a transaction; its result is the job's.
    behind: Callable[[Any], T] | None = None
    #: It changes nothing, and needs no transaction.
    reads: bool = False

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


async def retry_until_available(
    work: Callable[[], Awaitable[T]], *, pause: Callable[[float], Awaitable[object]]
) -> T:
    """Return the result of ``work``, repeated while the database cannot be used.

    For facts that must not be lost, and reads of an accepted turn. ``pause`` waits between attempts.
    """
    pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await pause(next(pauses))


async def follow_changes(
    changed: asyncio.Event,
    work: Callable[[], Awaitable[object]],
    *,
    name: str,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Do the work after each change by another replica until cancelled; work that fails is repeated.

    ``name`` is what changes, for the log.
    """
    failed = False
    while True:
        await changed.wait()
        changed.clear()
        try:
            await retry_until_available(work, pause=pause)
            failed = False
        except Exception:  # noqa: BLE001 - later changes must be applied
            level = logging.DEBUG if failed else logging.ERROR
            _log.log(level, "change_not_applied", extra={"changed": name}, exc_info=True)
            failed = True
            changed.set()
            await pause(_PAUSES[-1])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A message of another replica, or the first one of a new connection: earlier messages may be missing."""

    is_first: bool = False
    #: The session of a changed turn; "" if the change may concern all replicas.
    session: str | None = None
    #: The events of the other replica's activity, as JSON.
    activity: str | None = None


class Database(ABC):
    """A database with one connection for all transactions, in its own thread; ``monotonic`` returns seconds."""

    #: Places outside of the database that may keep copies of deleted data.
    out_of_reach: Sequence[str] = ()
    #: The id of this process if other replicas may use the database at the same time.
    replica: str | None = None
    #: A text that differs from that of any other database with replicas; empty without replicas.
    identity: str = ""
    #: Whether erasures have rows, so that other processes can carry them out on their own files.
    records_erasures: bool = False
    #: Yields the announcements of other replicas, and raises ``StoreUnavailable``; None if there are no others.
    announcements: Callable[[], AsyncGenerator[Announcement]] | None = None

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        #: Set when another process has taken over the work of this process: nothing is written any more.
        self.lost = asyncio.Event()
        self._jobs: queue.SimpleQueue[QueuedJob[Any] | None] = queue.SimpleQueue()
        self._failed_at: float | None = None
        self._unkept: set[_PendingWrite] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="torana-store", daemon=True)

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Execute ``work`` as one transaction and return its result after the commit.

        Transactions run in the order of the calls. An exception of ``work`` rolls it back and is raised here.
        Raises ``StoreUnavailable``, with nothing stored, if the database cannot be read or written or is
        closed. Cancelling the call does not undo it: the transaction may still commit.
        """
        return await self._wait_for(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Execute ``work``, which changes nothing, and return its result; in the order of ``run``.

        On PostgreSQL it does not wait for the transactions of other replicas, and each of its statements sees
        the newest data. Raises as ``run`` does.
        """
        return await self._wait_for(work, reads=True)

    #: ``read`` for work that may take seconds. On SQLite other transactions do not wait for it, and it sees the
    #: transactions that were committed before it began.
    search = read

    async def persist(
        self,
        work: Callable[[Connection], T],
        *,
        pause: Callable[[float], Awaitable[object]],
        delayed: asyncio.Event | None = None,
        slot: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> T:
        """Execute ``work`` as ``run`` does, repeated while the database cannot be written.

        For facts that must not be lost. ``pause`` waits between attempts. ``delayed`` is set while a full or
        unwritable disk has been the reason for more than ``DELAY`` seconds. Each attempt holds a ``slot``,
        which limits the concurrent transactions. A repeated transaction is executed after others that were
        passed to ``run`` later.
        """
        unkept = _PendingWrite()
        timer: asyncio.TimerHandle | None = None

        async def write() -> T:
            nonlocal timer
            try:
                async with slot():
                    return await self.run(work)
            except StoreUnavailable as error:
                if self._is_unwritable(error.__cause__):
                    self._unkept.add(unkept)
                    if delayed is not None and timer is None:
                        timer = asyncio.get_running_loop().call_later(DELAY, delayed.set)
                unkept.settle(error)
                raise

        try:
            return await retry_until_available(
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
            if unkept in self._unkept:  # it may have succeeded during the wait for another write
                await unkept.next_attempt()

    @abstractmethod
    async def rewrite(self) -> None:
        """Rewrite all data without remains of deleted data; transactions wait.

        Takes the time and disk space of a copy. Raises ``StoreUnavailable`` and leaves the data unchanged.
        """

    @abstractmethod
    async def empty_log(self) -> bool:
        """Remove older versions of the data from the database's log.

        Returns False if a reader is using the log; then try again.
        """

    async def writable(self) -> bool:
        """Return whether all writes succeed; after a failure, try again at most once a second."""
        failed_at = self._failed_at
        if (failed_at is None and self._unkept) or (
            failed_at is not None and self._monotonic() - failed_at >= 1
        ):
            try:
                await self.check_pending_writes()
                await self.run(self._touch)
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
        self,
        work: Callable[[Connection], Any],
        *,
        behind: Callable[[Any], Any] | None = None,
        reads: bool = False,
    ) -> Any:
        if self._closed:
            raise database_closed()
        loop = asyncio.get_running_loop()
        job = QueuedJob[Any](work, loop, loop.create_future(), behind, reads)
        self._jobs.put(job)
        try:
            return await job.future
        except TakenOver:
            self.lost.set()
            raise

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            batch, closing = _take(self._jobs, job)
            outcomes = self._commit(batch)
            if outcomes is not None:
                self._settle(batch, outcomes)
            if closing:
                break
        self._dispose()

    def _next(self) -> QueuedJob[Any] | None:
        """Wait for the next job; None means that the database is to be closed."""
        return self._jobs.get()

    def _settle(self, batch: Sequence[QueuedJob[Any]], outcomes: Sequence[Any]) -> None:
        """Execute the last job's work ``behind`` the transaction, then pass the outcomes to the callers."""
        *others, last = outcomes
        if batch[-1].behind is not None and not isinstance(last, Exception):
            last = self._finish(batch[-1].behind)
        for member, outcome in zip(batch, (*others, last), strict=True):
            member.settle(outcome)

    @abstractmethod
    def _commit(self, batch: Sequence[QueuedJob[Any]]) -> list[Any] | None:
        """Run the batch as one transaction; return a result or an exception for each job.

        Returns None if the outcome is not known yet; the batch is settled later.
        """

    @abstractmethod
    def _finish(self, work: Callable[[Any], T]) -> T | StoreUnavailable:
        """Execute ``work`` with the driver's connection, outside of a transaction."""

    @abstractmethod
    def _touch(self, connection: Connection) -> None:
        """Write something without effect."""

    @abstractmethod
    def _dispose(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _is_broken(self, error: DBAPIError) -> bool:
        """Return whether the database itself failed (locked, full, unreadable), not a statement."""

    @abstractmethod
    def _is_unwritable(self, error: BaseException | None) -> bool:
        """Return whether nothing can be written until the operator acts, for example on a full disk."""

    def _unavailable(self, error: BaseException | None) -> StoreUnavailable:
        if self._failed_at is None:
            _log.error("database_failed", extra={"reason": str(error)})
        self._failed_at = self._monotonic()
        unavailable = StoreUnavailable(headers={"Retry-After": "5"})
        unavailable.__cause__ = error
        return unavailable


def run_jobs(
    connection: Connection,
    batch: Sequence[QueuedJob[Any]],
    *,
    savepoint: Callable[[Connection], AbstractContextManager[object]],
    is_broken: Callable[[DBAPIError], bool],
) -> list[Any]:
    """Run jobs in a transaction, and return a result or an exception for each.

    Several jobs run in a savepoint each, so the error of one undoes only this job. An error for which
    ``is_broken`` returns true fails all.
    """
    if len(batch) == 1:
        return [batch[0].work(connection)]

    def attempt(work: Callable[[Connection], T]) -> T | Exception:
        try:
            with savepoint(connection):
                return work(connection)
        except DBAPIError as error:
            if is_broken(error):
                raise
            return error
        except Exception as error:  # noqa: BLE001 - the caller gets every error of its work
            return error

    return [attempt(job.work) for job in batch]


def database_closed() -> StoreUnavailable:
    """Return the error for work after the end of the gateway."""
    return StoreUnavailable("The database is closed: the gateway has stopped. Nothing was accepted.")


def do_nothing(_connection: Connection) -> None:
    """Hold a place in the order of transactions."""


def _take(
    jobs: queue.SimpleQueue[QueuedJob[Any] | None], first: QueuedJob[Any]
) -> tuple[list[QueuedJob[Any]], bool]:
    """Return the first job with the jobs queued behind it, and whether to close the database after them."""
    batch = [first]
    while len(batch) < _BATCH and batch[-1].behind is None:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            break
        if job is None:
            return batch, True
        batch.append(job)
    return batch, False
