"""PostgreSQL in one thread, with group commit; other replicas may use it at the same time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError

from torana.errors import StoreUnavailable
from torana.store.engine.database import Database, QueuedJob, do_nothing, run_jobs
from torana.store.engine.postgres.announcements import follow_announcements
from torana.store.engine.postgres.connection import LOCKED, PostgresUrl
from torana.store.engine.postgres.replicas import renew
from torana.store.engine.postgres.schema import Prepare, prepare, read_identity
from torana.store.engine.postgres.writer import UnknownCommit, Writer, may_succeed
from torana.store.engine.tables import memory_words, message_words, metadata

T = TypeVar("T")

#: Seconds between attempts to learn whether a transaction was committed.
_POLL = 0.5

#: Maximum number of attempts of a transaction that conflicts, or whose connection is lost before its COMMIT.
_ATTEMPTS = 3

#: Seconds that rewriting all tables may take before another replica takes over.
_REWRITING = 3600

#: The rare outcome of a transaction whose COMMIT got no answer before the gateway stopped or was replaced.
_UNKNOWN = "The connection was lost, and it is unknown whether this was stored. Check before you repeat it."

#: The error of rewriting tables that another program reads for long.
_IN_USE = (
    "Another program, such as `torana backup`, reads the database, so deleted data cannot be removed from it. "
    "Repeat this when that program has ended."
)

#: The error of a statement in a transaction that has failed before, which is a fault of the program.
_FAILED_BEFORE = "25P02"

#: The class of errors of a statement that exceeds a limit of PostgreSQL, such as the size of an index row.
_LIMIT_EXCEEDED = "54"

#: The function of PostgreSQL that fails with such an error at a COMMIT if the queue of NOTIFY is full.
_ANNOUNCING = "PreCommit_Notify"


@dataclass(frozen=True, slots=True)
class _Uncertain:
    """A transaction whose COMMIT got no answer, with the results of its jobs."""

    batch: Sequence[QueuedJob[Any]]
    outcomes: Sequence[Any]
    number: int


class PostgresDatabase(Database):
    """The connection of this process that writes to a PostgreSQL database, in its own thread.

    If the connection is lost while a transaction commits, its callers wait until the database can say whether
    it was committed: ``StoreUnavailable`` then means that nothing was stored, except if the gateway stops
    meanwhile.
    """

    records_erasures = True
    out_of_reach = (
        "the data directories of replicas that do not run, until their next start",
        "the write-ahead log of PostgreSQL and its archives, standby servers, and dumps of the database",
    )

    def __init__(
        self,
        *,
        url: PostgresUrl,
        purpose: str = "gateway",
        replicated: bool = False,
        prepare: Prepare = prepare,
    ) -> None:
        """Take the right to write, and create or upgrade the tables by ``prepare``. See ``Writer``."""
        super().__init__()
        self._writer = Writer(url, purpose=purpose, replicated=replicated, prepare=prepare)
        if replicated:
            self.replica = self._writer.replica
            self.announcements = partial(follow_announcements, url, self.replica)
            with self._writer.look() as connection:
                self.identity = read_identity(connection)
        self._uncertain: _Uncertain | None = None
        self._thread.start()

    async def rewrite(self) -> None:
        """Rewrite all tables (VACUUM FULL), without remains of deleted rows. See ``Database.rewrite``."""
        await self._wait_for(do_nothing, behind=_rewrite)

    async def empty_log(self) -> bool:
        """Return True: the write-ahead log belongs to the server (see ``out_of_reach``)."""
        return True

    def _next(self) -> QueuedJob[Any] | None:
        while not self._resolve():
            try:
                return self._jobs.get(timeout=_POLL)
            except queue.Empty:
                pass
        return super()._next()

    def _commit(self, batch: Sequence[QueuedJob[Any]], attempts: int = _ATTEMPTS) -> list[Any] | None:
        if self._uncertain is not None:
            return self._fail(batch, StoreUnavailable(headers={"Retry-After": "5"}))
        reads = all(job.reads for job in batch)
        if reads and len(batch) > 1:
            return [outcome for job in batch for outcome in self._commit([job]) or ()]
        try:
            with self._writer.look() if reads else self._writer.begin() as connection:
                return self._commit_on(connection, batch)
        except StoreUnavailable as error:
            return self._fail(batch, error)
        except DBAPIError as error:
            if attempts > 1 and may_succeed(error):
                return self._commit(batch, attempts - 1)
            if self._is_broken(error):
                return self._fail(batch, self._unavailable(error.orig))
            return [error] * len(batch)
        except Exception as error:  # noqa: BLE001 - the caller gets every error of its work
            return [error] * len(batch)

    def _commit_on(self, connection: Connection, batch: Sequence[QueuedJob[Any]]) -> list[Any] | None:
        outcomes = run_jobs(connection, batch, savepoint=Connection.begin_nested, is_broken=self._is_broken)
        try:
            if self._writer.commit(connection):
                self._failed_at = None
        except UnknownCommit as unknown:
            self._uncertain = _Uncertain(batch, outcomes, unknown.number)
            self._unavailable(unknown.orig)
            return None
        return outcomes

    def _resolve(self) -> bool:
        """Settle the transaction whose COMMIT got no answer; return False while that cannot be known."""
        if (uncertain := self._uncertain) is None:
            return True
        try:
            committed = self._writer.was_committed(uncertain.number)
        except (StoreUnavailable, DBAPIError):
            if not self._writer.lost:
                return False
            self._uncertain = None
            self._settle(uncertain.batch, self._fail(uncertain.batch, StoreUnavailable(_UNKNOWN)))
        else:
            self._uncertain = None
            outcomes = uncertain.outcomes if committed else self._commit(uncertain.batch)
            if outcomes is not None:
                self._settle(uncertain.batch, outcomes)
        return self._uncertain is None

    def _fail(self, batch: Sequence[QueuedJob[Any]], error: StoreUnavailable) -> list[Any]:
        self._failed_at = self._monotonic()
        return [error] * len(batch)

    def _finish(self, work: Callable[[Any], T]) -> T | StoreUnavailable:
        try:
            with self._writer.look() as connection:
                return work(connection)
        except StoreUnavailable as error:
            return error
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == LOCKED:
                return StoreUnavailable(_IN_USE, headers={"Retry-After": "30"})
            return self._unavailable(error.orig)

    def _touch(self, connection: Connection) -> None:
        renew(connection)

    def _dispose(self) -> None:
        if self._uncertain is not None:
            batch, self._uncertain = self._uncertain.batch, None
            self._settle(batch, self._fail(batch, StoreUnavailable(_UNKNOWN)))
        if not self._writer.lost:
            with suppress(StoreUnavailable, DBAPIError):
                self._writer.leave()
        self._writer.engine.dispose()

    def _is_broken(self, error: DBAPIError) -> bool:
        state: str = getattr(error.orig, "sqlstate", None) or ""
        if isinstance(error, InternalError):
            return state != _FAILED_BEFORE
        if state.startswith(_LIMIT_EXCEEDED):
            # The queue of announcements is full, until a listener that has stopped reads or ends.
            return getattr(getattr(error.orig, "diag", None), "source_function", None) == _ANNOUNCING
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)

    def _is_unwritable(self, error: BaseException | None) -> bool:
        return error is not None


def _rewrite(connection: Connection) -> None:
    renew(connection, seconds=_REWRITING)
    for name in (*metadata.tables, memory_words.name, message_words.name):
        connection.exec_driver_sql(f'VACUUM FULL "{name}"')
