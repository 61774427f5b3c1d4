"""The connection that writes, and the right to write.

A process that may write has a row in ``replicas``. Each writing transaction stores its number in the row of its
process. It holds one advisory lock to its end, so the transactions of all processes run one after the other, as
in SQLite. When the lease in a row has ended, another process deletes the row; then the process of the row
stores nothing more. After a connection was lost, the row shows whether a transaction whose COMMIT got no answer
was committed.

The connection holds a second advisory lock until it closes: exclusively, or together with other replicas.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from torana import __version__
from torana.errors import DatabaseBusy, StoreUnavailable, TakenOver
from torana.messages import new_id
from torana.store.engine.postgres.connection import LOCKED, PostgresUrl
from torana.store.engine.postgres.schema import (
    FREE_ACCOUNTS,
    LEASE,
    LOCK_SPACE,
    Prepare,
    check_upgrade,
    prepare,
)
from torana.store.engine.postgres.unsent import UnsentStatements

if TYPE_CHECKING:
    import psycopg

#: The lock of the processes that use the database, and the lock of the transaction that writes.
_USE_LOCK, _WRITE_LOCK = 1, 3

#: Seconds that a start waits for the lock: the session of a process that was just killed ends a little later.
_LOCK_TIMEOUT = 3.0

#: Maximum number of attempts of a start whose connection is lost, or for which the writing process stops.
_ATTEMPTS = 3

#: Errors after which the transaction may succeed: a serialization failure, a deadlock, and a lock that another
#: process held for too long.
_CONFLICTS = frozenset({"40001", "40P01", LOCKED})

#: The first words of statements that change nothing.
_READS = frozenset({"SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK", "DECLARE", "FETCH", "CLOSE", "SET", "SHOW"})

_BE_ALONE = "SELECT pg_try_advisory_lock(%s, %s)"
_SHARE = "SELECT pg_try_advisory_lock_shared(%s, %s)"
_NO_LONGER_ALONE = "SELECT pg_advisory_unlock(%s, %s)"

_BEGIN = f"BEGIN; SELECT pg_advisory_xact_lock({LOCK_SPACE}, {_WRITE_LOCK})"

#: The division fails if the row of this process is gone; then a COMMIT in the same message is not executed.
_STAMP = """\
WITH stamped AS (
    UPDATE replicas SET commits = %(number)s, lease_until = clock_timestamp() + make_interval(secs => %(lease)s)
    WHERE id = current_setting('torana.replica') RETURNING id
)
SELECT 1 / count(*) FROM stamped
"""
_DIVISION_BY_ZERO = "22012"
_REGISTER = """
INSERT INTO replicas (id, name, version, commits, started_at, lease_until)
VALUES (%s, %s, %s, 0, clock_timestamp(), clock_timestamp() + make_interval(secs => %s))
ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
"""
_HOLDER = """
SELECT activity.pid, activity.application_name, activity.client_addr, activity.backend_start
FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
WHERE locktype = 'advisory' AND classid = %s AND objid = %s AND objsubid = 2 AND granted
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

_log = logging.getLogger(__name__)


class UnknownCommit(Exception):
    """The connection was lost at the COMMIT of a transaction."""

    def __init__(self, number: int, orig: BaseException | None) -> None:
        """``number`` is that of the transaction, and ``orig`` the error of the driver."""
        super().__init__(str(orig))
        self.number = number
        self.orig = orig


class Writer:
    """The right to write, with its connection. Used by one thread."""

    def __init__(self, url: PostgresUrl, *, purpose: str, replicated: bool, prepare: Prepare = prepare) -> None:
        """Take the lock, create or upgrade the tables by ``prepare``, and register this process.

        With ``replicated`` other replicas may use the database at the same time. Raises ``DatabaseBusy`` with
        the holder of the lock, ``DatabaseUnusable`` or ``DatabaseTooNew``.
        """
        self._url = url
        self._purpose = purpose
        self._replicated = replicated
        self._prepare = prepare
        #: The id of this process among those that use the database.
        self.replica = new_id("rep")
        self._pid: int | None = None
        self._claimed = False
        #: True if no other process used the database when the connection was opened.
        self._alone = False
        #: True if another process has taken over: this process never writes again.
        self.lost = False
        #: The number of the last transaction that is known to be committed.
        self._commits = 0
        self._in_transaction = False
        self._wrote = False
        self.engine: Engine = url.engine(self._open)
        self._unsent = UnsentStatements(self.engine)
        event.listen(self.engine, "after_cursor_execute", self._note)
        try:
            self._claim()
        except BaseException:
            self.engine.dispose()
            raise

    def begin(self) -> Connection:
        """Return the connection for a transaction, which runs alone. A lost connection is replaced.

        The first statement that is sent begins the transaction. Raises ``StoreUnavailable``, always once
        ``lost`` is true, or ``DBAPIError``.
        """
        connection = self.look()
        self._unsent.add(_BEGIN)
        self._in_transaction = True
        return connection

    def look(self) -> Connection:
        """Return the connection without a transaction, for statements that change nothing.

        Raises as ``begin`` does.
        """
        if self.lost:
            raise self._taken_over()
        connection = self.engine.connect()
        self._in_transaction = self._wrote = False
        return connection

    def commit(self, connection: Connection) -> bool:
        """Commit the transaction with its number, and return whether it has changed something.

        Raises ``UnknownCommit`` if the connection is lost, ``StoreUnavailable`` if another process has taken
        over, or ``DBAPIError``.
        """
        if not self._wrote:
            connection.commit()
            return False
        if not self._in_transaction:
            raise RuntimeError("a read has changed the database")
        number = self._commits + 1
        try:
            self._unsent.add(_STAMP, {"number": number, "lease": LEASE})
            _send(connection, "COMMIT")
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _DIVISION_BY_ZERO:
                raise self._taken_over() from error
            if error.connection_invalidated:
                raise UnknownCommit(number, error.orig) from error
            raise
        self._commits = number
        connection.commit()  # sends nothing
        return True

    def was_committed(self, number: int) -> bool:
        """Return whether the transaction with this number, the last one, was committed.

        Raises ``StoreUnavailable`` or ``DBAPIError`` if that cannot be known now.
        """
        with self.begin() as connection:  # the lost transaction has ended: it held the lock
            mine = "SELECT commits FROM replicas WHERE id = %s"
            stored = connection.exec_driver_sql(mine, (self.replica,)).scalar()
        if stored is None:
            raise self._taken_over()
        if stored == number:
            self._commits = number
        return bool(stored == number)

    def leave(self) -> None:
        """Give up the right to write. Raises ``StoreUnavailable`` or ``DBAPIError``."""
        with self.begin() as connection:
            connection.exec_driver_sql("DELETE FROM replicas WHERE id = %s", (self.replica,))
            connection.commit()

    def _claim(self) -> None:
        """Take the lock and write the row of this process."""
        deadline = time.monotonic() + _LOCK_TIMEOUT
        attempts = 0
        while True:
            attempts += 1
            try:
                with self.engine.begin() as connection:
                    _send(connection, _BEGIN)
                    if not self._alone:
                        check_upgrade(connection, str(self._url))
                    self._prepare(connection, str(self._url))
                    if self._alone:  # the other processes have ended, whatever their leases say
                        connection.exec_driver_sql("DELETE FROM replicas")
                    name = f"{self._purpose} on {socket.gethostname()}"
                    connection.exec_driver_sql(_REGISTER, (self.replica, name, __version__, LEASE))
                    if self._alone:
                        connection.exec_driver_sql(FREE_ACCOUNTS)
                break
            except DatabaseBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            except DBAPIError as error:
                if attempts == _ATTEMPTS or not may_succeed(error):
                    raise self._url.unusable(error.orig) from error
        self._claimed = True
        if self._replicated and self._alone:
            with self.engine.connect() as connection:
                connection.exec_driver_sql(_NO_LONGER_ALONE, (LOCK_SPACE, _USE_LOCK))

    def _open(self) -> psycopg.Connection:
        """Return a connection that holds the lock. Raises ``DatabaseBusy`` or ``StoreUnavailable``."""
        # psycopg's own preparation of statements deallocates all others after a ROLLBACK.
        connection = self._url.connect(self._purpose, prepare_threshold=None)
        try:
            connection.execute("SELECT set_config('torana.replica', %s, false)", (self.replica,))
            self._lock(connection)
        except BaseException:
            connection.close()
            raise
        self._pid = connection.info.backend_pid
        return connection

    def _lock(self, connection: psycopg.Connection) -> None:
        """Take the lock of the processes that use the database."""
        self._end_own_session(connection)
        use = (LOCK_SPACE, _USE_LOCK)
        self._alone = _is_true(connection, _BE_ALONE, use)
        if self._replicated and _is_true(connection, _SHARE, use):
            if self._alone and self._claimed:
                connection.execute(_NO_LONGER_ALONE, use)
        elif not self._alone:
            raise self._refusal(connection)

    def _end_own_session(self, connection: psycopg.Connection) -> None:
        """End the lost session of this process, which may still hold locks."""
        for lock in (_USE_LOCK, _WRITE_LOCK):
            for holder in connection.execute(_HOLDER, (LOCK_SPACE, lock)).fetchall():
                if holder[0] == self._pid:
                    connection.execute("SELECT pg_terminate_backend(%s, 1000)", (self._pid,))

    def _taken_over(self) -> TakenOver:
        if not self.lost:
            _log.error("database_taken_over")
        self.lost = True
        return TakenOver()

    def _refusal(self, connection: psycopg.Connection) -> DatabaseBusy | StoreUnavailable:
        """Return the error for a lock that is taken."""
        if self._claimed:
            return StoreUnavailable(headers={"Retry-After": "5"})
        holder = connection.execute(_HOLDER, (LOCK_SPACE, _USE_LOCK)).fetchone()
        return DatabaseBusy(
            f"the PostgreSQL database {self._url} is used by {_describe(holder)}. Stop it, or name another "
            "database with TORANA_DATABASE_URL. The session of a machine that has failed ends within 15 seconds"
        )

    def _note(self, *arguments: Any) -> None:
        """Note a statement that writes; called after each statement.

        A statement that changed no row counts too: it may have searched for the row of this process.
        """
        cursor, statement = cast("tuple[psycopg.Cursor[Any], str]", arguments[1:3])
        done = (cursor.statusmessage or statement).partition(" ")[0]
        if done not in _READS:
            self._wrote = True


def _send(connection: Connection, statements: str) -> None:
    """Execute statements without parameters, in one message."""
    connection.exec_driver_sql(statements, execution_options={"no_parameters": True}).close()


def may_succeed(error: DBAPIError) -> bool:
    """Return whether the transaction that has failed may succeed if it is repeated."""
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in _CONFLICTS


def _is_true(connection: psycopg.Connection, question: str, values: tuple[int, int]) -> bool:
    row = connection.execute(question.encode(), values).fetchone()
    return bool(row and row[0])


def _describe(holder: tuple[Any, ...] | None) -> str:
    if holder is None:
        return "another gateway"
    _, name, address, since = holder
    place = f" at {address}" if address else ""
    return f"{name or 'another gateway'!r}{place} since {since:%Y-%m-%d %H:%M:%S} UTC"
