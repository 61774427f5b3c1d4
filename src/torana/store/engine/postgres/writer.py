"""The one connection that writes.

It holds an advisory lock for as long as it lasts, so no other gateway can write at the same time: the lock and
the right to write are lost together. The row of ``torana_writer`` names the process that took the lock last,
and the number of its last transaction. After a connection was lost, the row shows whether another gateway has
written in the meantime, and whether a transaction whose COMMIT got no answer was committed.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from torana.errors import DatabaseBusy, StoreUnavailable
from torana.messages import new_id
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.schema import LOCK_SPACE, prepare

if TYPE_CHECKING:
    import psycopg

#: The lock of the gateway that writes.
_WRITER_LOCK = 1

#: Seconds that a start waits for the lock: the session of a gateway that was just killed ends a little later.
_PATIENCE = 3.0

#: The first words of statements that change nothing.
_READS = frozenset({"SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK", "DECLARE", "FETCH", "CLOSE", "SET", "SHOW"})

_TAKE = "SELECT pg_try_advisory_lock(%s, %s)"
_HOLDER = """
SELECT activity.pid, activity.application_name, activity.client_addr, activity.backend_start
FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
WHERE locktype = 'advisory' AND classid = %s AND objid = %s AND objsubid = 2 AND granted
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

_log = logging.getLogger(__name__)


class Writer:
    """The right to write, with its connection. Used by one thread."""

    def __init__(self, url: PostgresUrl, *, purpose: str) -> None:
        """Take the lock, and create or upgrade the tables.

        Raises ``DatabaseBusy`` with the holder of the lock, ``DatabaseUnusable`` or ``DatabaseTooNew``.
        """
        self._url = url
        self._purpose = purpose
        self._process = new_id("prc")
        self._pid: int | None = None
        self._claimed = False
        #: Whether another process has written since this one held the lock: this one never writes again.
        self.lost = False
        #: The number of the last transaction that is known to be committed.
        self._commits = 0
        self._wrote = False
        self.engine: Engine = url.engine(self._open)
        event.listen(self.engine, "after_cursor_execute", self._note)
        try:
            self._claim()
        except BaseException:
            self.engine.dispose()
            raise

    def begin(self) -> Connection:
        """Return the connection with a transaction; it is opened again if it was lost.

        Raises ``StoreUnavailable``, always once ``lost`` is true, or ``DBAPIError``.
        """
        if self.lost:
            raise self._taken_over()
        connection = self.engine.connect()
        self._wrote = False
        connection.begin()
        return connection

    def stamp(self, connection: Connection) -> int | None:
        """Return the number of the connection's transaction, stored in it; None if it has changed nothing.

        Raises ``StoreUnavailable`` if another process has written.
        """
        if not self._wrote:
            return None
        number = self._commits + 1
        values = (number, self._process)
        stamped = connection.exec_driver_sql("UPDATE torana_writer SET commits = %s WHERE process = %s", values)
        if stamped.rowcount != 1:
            raise self._taken_over()
        return number

    def committed(self, number: int) -> None:
        """Note that the transaction with this number is committed."""
        self._commits = number

    def was_committed(self, number: int) -> bool:
        """Return whether the transaction with this number, the last one, was committed.

        Raises ``StoreUnavailable`` or ``DBAPIError`` if that cannot be known now.
        """
        with self.begin() as connection:
            stored = connection.exec_driver_sql("SELECT commits FROM torana_writer").scalar_one()
        if stored == number:
            self._commits = number
        return stored == number

    def _claim(self) -> None:
        """Take the lock and write the process's id into the row."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                with self.engine.begin() as connection:
                    prepare(connection, str(self._url))
                    claim = "UPDATE torana_writer SET process = %s, commits = 0"
                    connection.exec_driver_sql(claim, (self._process,))
                break
            except DatabaseBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            except DBAPIError as error:
                raise self._url.unusable(error.orig) from error
        self._claimed = True

    def _open(self) -> psycopg.Connection:
        """Return a connection that holds the lock. Raises ``DatabaseBusy`` or ``StoreUnavailable``."""
        connection = self._url.connect(self._purpose)
        try:
            self._lock(connection)
            connection.autocommit = False
        except BaseException:
            connection.close()
            raise
        self._pid = connection.info.backend_pid
        return connection

    def _lock(self, connection: psycopg.Connection) -> None:
        """Take the lock.

        Raises ``StoreUnavailable`` if another process has written since this one held the lock, or if its
        transactions are lost.
        """
        taken = connection.execute(_TAKE, (LOCK_SPACE, _WRITER_LOCK)).fetchone()
        if taken is None or not taken[0]:
            raise self._refusal(connection)
        if not self._claimed:
            return
        row = connection.execute("SELECT process, commits FROM torana_writer").fetchone()
        if row is None or row[0] != self._process or row[1] not in (self._commits, self._commits + 1):
            raise self._taken_over()

    def _taken_over(self) -> StoreUnavailable:
        if not self.lost:
            _log.error("database_taken_over")
        self.lost = True
        return StoreUnavailable(
            "Another gateway has used the database since the connection was lost. Restart this gateway."
        )

    def _refusal(self, connection: psycopg.Connection) -> DatabaseBusy | StoreUnavailable:
        """Return the error for a lock that is taken; end the session of this process that may still hold it."""
        holder = connection.execute(_HOLDER, (LOCK_SPACE, _WRITER_LOCK)).fetchone()
        if holder is not None and holder[0] == self._pid:
            connection.execute("SELECT pg_terminate_backend(%s)", (self._pid,))
        if self._claimed:
            return StoreUnavailable(headers={"Retry-After": "5"})
        return DatabaseBusy(
            f"the PostgreSQL database {self._url} is used by {_describe(holder)}. Stop it, or name another "
            "database with TORANA_DATABASE_URL. The session of a machine that has failed ends within 15 seconds"
        )

    def _note(self, *arguments: Any) -> None:
        """Note whether a statement has changed something; called after each statement."""
        cursor = cast("psycopg.Cursor[Any]", arguments[1])
        done = (cursor.statusmessage or "").partition(" ")[0]
        if done not in _READS and cursor.rowcount != 0:
            self._wrote = True


def _describe(holder: tuple[Any, ...] | None) -> str:
    if holder is None:
        return "another gateway"
    _, name, address, since = holder
    place = f" at {address}" if address else ""
    return f"{name or 'another gateway'!r}{place} since {since:%Y-%m-%d %H:%M:%S} UTC"
