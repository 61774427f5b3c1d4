"""Statements whose results nothing reads, sent in one message with the next statement.

``BEGIN``, the changes of ``dialects.unread`` and savepoints wait until a statement follows whose result is
read, or the ``COMMIT``. This saves their round trips. All statements of a message are in order, and an error
of one prevents the others.

One message with the values in its text is used, because PostgreSQL has no time limit between two messages of a
pipeline: a client that stops there would hold its locks. Frequent statements of a message are prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from torana.store.engine.dialects import UNREAD
from torana.store.engine.postgres.prepared import PreparedStatements

if TYPE_CHECKING:
    import psycopg

    from torana.store.engine.postgres.prepared import Statement

    Cursor = psycopg.Cursor[Any]

_SAVEPOINT, _RELEASE, _ROLLBACK = "SAVEPOINT ", "RELEASE SAVEPOINT ", "ROLLBACK TO SAVEPOINT "


class UnsentStatements:
    """The statements that wait for the next one on the connection of an engine. Used by one thread."""

    def __init__(self, engine: Engine) -> None:
        """Handle all statements of the engine, which has one connection."""
        self._waiting: list[Statement] = []
        #: True if changes wait, which may fail.
        self._changes = False
        self._prepared = PreparedStatements()
        event.listen(engine, "connect", self._connect)
        event.listen(engine, "checkout", self._start)
        event.listen(engine, "do_execute", self._execute)
        event.listen(engine, "do_executemany", self._execute_many)
        event.listen(engine, "do_execute_no_params", self._execute_plain)

    def add(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        """Send a statement with the next one. Without values it may be several statements."""
        self._waiting.append((statement, values))

    def _connect(self, *_arguments: object) -> None:
        """Forget the prepared statements of the connection that was replaced."""
        self._prepared = PreparedStatements()

    def _start(self, *_arguments: object) -> None:
        """Forget the statements of an earlier transaction, which has failed."""
        self._forget()

    def _execute(self, cursor: Cursor, statement: str, parameters: Any, context: Any) -> bool:
        """Execute a statement, or note it as unsent. Returns False if the dialect is to execute it."""
        if _is_unread(context):
            self._wait(statement, parameters)
            return True
        if statement.startswith((_SAVEPOINT, _RELEASE, _ROLLBACK)):
            self._mark(cursor, statement)
            return True
        if _is_declared(cursor):
            self._send_waiting(cursor)
            return False
        self.add(statement, parameters)
        self._send(cursor)
        return True

    def _execute_many(self, cursor: Cursor, statement: str, parameters: Any, context: Any) -> bool:
        if _is_unread(context):
            for values in parameters:
                self._wait(statement, values)
            return True
        self._send_waiting(cursor)
        return False

    def _execute_plain(self, cursor: Cursor, statement: str, _context: object) -> bool:
        """Execute statements without parameters, of which a message may contain several."""
        self.add(statement)
        self._send(cursor)
        return True

    def _mark(self, cursor: Cursor, statement: str) -> None:
        """Set, release or roll back to a savepoint. Errors of changes are raised on their side of it."""
        if statement.startswith(_ROLLBACK):
            self._roll_back(cursor, statement)
        elif not self._changes:
            self.add(statement)
        elif statement.startswith(_SAVEPOINT):
            self._send(cursor)
            self.add(statement)
        else:
            self._release(cursor, statement)

    def _release(self, cursor: Cursor, statement: str) -> None:
        """Send the changes since a savepoint, and release it."""
        self.add(statement)
        try:
            self._send(cursor)
        except cursor.connection.Error:
            # SQLAlchemy does not roll back to a savepoint that could not be released.
            if not cursor.connection.closed:
                back = _ROLLBACK + statement.removeprefix(_RELEASE)
                cursor.connection.execute(back.encode(), prepare=False)
            raise

    def _roll_back(self, cursor: Cursor, statement: str) -> None:
        """Forget the statements since a savepoint, and undo those that were sent."""
        self._changes = False
        mark = _SAVEPOINT + statement.removeprefix(_ROLLBACK)
        if (mark, None) in self._waiting:
            del self._waiting[self._waiting.index((mark, None)) :]
        else:
            self._waiting.clear()
            cursor.execute(statement.encode(), prepare=False)

    def _wait(self, statement: str, values: Mapping[str, Any]) -> None:
        self.add(statement, values)
        self._changes = True

    def _send_waiting(self, cursor: Cursor) -> None:
        """Send the waiting statements, without the one that the cursor is to execute."""
        if self._waiting:
            self._send(cursor.connection.cursor())

    def _send(self, cursor: Cursor) -> None:
        """Send the waiting statements; the cursor returns the result of the last."""
        statements, self._waiting = self._waiting, []
        self._changes = False
        self._prepared.prepare(cursor.connection, statements)
        cursor.execute(self._prepared.write_message(cursor, statements), prepare=False)
        cursor.set_result(-1)

    def _forget(self) -> None:
        self._waiting.clear()
        self._changes = False


def _is_unread(context: Any) -> bool:
    return context is not None and UNREAD in context.execution_options


def _is_declared(cursor: Cursor) -> bool:
    """Return whether the server holds the rows, in a cursor with a name."""
    return hasattr(cursor, "name")
