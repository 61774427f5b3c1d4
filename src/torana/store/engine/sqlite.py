"""SQLite in one thread, with group commit, and searches beside it.

Nothing in this process waits for SQLite's locks: one thread owns the only connection that writes, and others
only read.

Deleted data is overwritten (``secure_delete``); ``SqliteDatabase.rewrite`` describes the exceptions.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError
from sqlalchemy.pool import PoolProxiedConnection

from torana.aio import wait_uncancellable
from torana.errors import StoreUnavailable
from torana.store.engine.database import Database, QueuedJob, database_closed, do_nothing, run_jobs

T = TypeVar("T")

#: Maximum number of concurrent searches.
_SEARCHES = 4

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


@contextmanager
def only_transaction(engine: Engine) -> Generator[Connection]:
    """Execute the block as the only transaction of an engine, and close the engine."""
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def sqlite_engine(path: Path, *, read_only: bool = False, create: bool = True, connections: int = 1) -> Engine:
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

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool, pool_size=connections)

    def do_begin(connection: PoolProxiedConnection) -> None:
        cursor = connection.cursor()
        cursor.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
        cursor.close()

    # Set on this object: the documented event listener makes SQLAlchemy look for listeners at every statement,
    # a third of the time of a short transaction.
    vars(engine.dialect)["do_begin"] = do_begin
    return engine


@contextmanager
def _savepoint(connection: Connection) -> Generator[None]:
    """Open a savepoint. Those of SQLAlchemy take many times as long."""
    driver = _driver(connection)
    _execute(driver, "SAVEPOINT job")
    try:
        yield
    except BaseException as error:
        # A full disk ends the whole transaction, and that error is reported.
        if driver.in_transaction or not isinstance(error, DBAPIError):
            _execute(driver, "ROLLBACK TO job")
            _execute(driver, "RELEASE job")
        raise
    _execute(driver, "RELEASE job")


def _execute(driver: sqlite3.Connection, statement: str) -> None:
    """Execute a statement. Raises SQLAlchemy's error, which fails all jobs of the transaction."""
    try:
        driver.execute(statement).close()
    except sqlite3.Error as error:
        raise OperationalError(statement, None, error) from error


class SqliteDatabase(Database):
    """The connection that writes to a SQLite file, in its own thread, and connections that search in it.

    ``monotonic`` returns seconds.
    """

    def __init__(self, *, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(monotonic=monotonic)
        self._engine = sqlite_engine(path, create=False)
        self._readers = sqlite_engine(path, read_only=True, connections=_SEARCHES)
        self._searches = ThreadPoolExecutor(_SEARCHES, thread_name_prefix="torana-search")
        self._thread.start()

    async def search(self, work: Callable[[Connection], T]) -> T:
        """Execute ``work`` on a connection that only reads. See ``Database.search``.

        A cancellation waits for its end, so that limits on concurrent searches hold.
        """
        if self._closed:
            raise database_closed()
        loop = asyncio.get_running_loop()
        return await wait_uncancellable(loop.run_in_executor(self._searches, self._search, work))

    def _search(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._readers.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            if not self._is_broken(error):
                raise
            raise StoreUnavailable(headers={"Retry-After": "5"}) from error.orig

    async def rewrite(self) -> None:
        """Rewrite the whole file (VACUUM), without remains of deleted data.

        Deleted rows are overwritten at once, but not the copies that SQLite leaves when it moves rows between
        pages, nor rows that were deleted before ``secure_delete`` was on. Takes the time and disk space of a
        copy; transactions wait. Raises ``StoreUnavailable`` and leaves the file unchanged.
        """
        await self._wait_for(do_nothing, behind=_rewrite)

    async def empty_log(self) -> bool:
        """Copy the write-ahead log, which holds older pages, into the file and empty it.

        Returns False if a reader is using the log; then try again.
        """
        return await self._wait_for(do_nothing, behind=_empty_log)

    def _commit(self, batch: Sequence[QueuedJob[Any]]) -> list[Any]:
        """Run the batch as one transaction; return a result or an exception for each job."""
        try:
            with self._engine.begin() as connection:
                before = _changes(connection)
                outcomes = run_jobs(connection, batch, savepoint=_savepoint, is_broken=self._is_broken)
                wrote = _changes(connection) != before
        except DBAPIError as error:
            return [self._unavailable(error.orig) if self._is_broken(error) else error for _ in batch]
        except Exception as error:  # noqa: BLE001 - the caller gets every error of its work
            return [error] * len(batch)
        if wrote:  # a read succeeds on a full disk
            self._failed_at = None
        return outcomes

    def _finish(self, work: Callable[[Any], T]) -> T | StoreUnavailable:
        pooled = self._engine.raw_connection()
        try:
            return work(cast("sqlite3.Connection", pooled.driver_connection))
        except sqlite3.Error as error:
            return self._unavailable(error)
        finally:
            pooled.close()

    def _touch(self, connection: Connection) -> None:
        # Changes a page of the file, so that the disk is really written.
        version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        connection.exec_driver_sql(f"PRAGMA user_version = {(int(version) + 1) % 1_000_000}")

    def _dispose(self) -> None:
        self._searches.shutdown()
        self._readers.dispose()
        self._engine.dispose()

    def _is_broken(self, error: DBAPIError) -> bool:
        return isinstance(error, OperationalError) or type(error) is DatabaseError

    def _is_unwritable(self, error: BaseException | None) -> bool:
        code = error.sqlite_errorcode if isinstance(error, sqlite3.Error) else None
        return code is not None and code & 0xFF in _UNWRITABLE  # the other bits are details


def _changes(connection: Connection) -> int:
    """Return the number of rows changed since the file was opened."""
    return _driver(connection).total_changes


def _driver(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.driver_connection)


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
