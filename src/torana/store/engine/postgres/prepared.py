"""Messages of several statements, whose frequent ones the server parses and plans once for a connection."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

    #: A statement with its values. Without values it may be several statements.
    Statement = tuple[str, Mapping[str, Any] | Sequence[Any] | None]

#: Executions of a statement before the server prepares it.
_FREQUENT = 3

#: Maximum number of statements that are counted, and that are prepared.
_MAX_STATEMENTS = 200

#: The first words of statements that the server can prepare.
_PREPARABLE = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")

#: A value's place in a statement, or an escaped percent sign.
_PLACE = re.compile(r"%(?:%|\((\w+)\)s)")


class PreparedStatements:
    """The statements that the server has prepared for one connection."""

    def __init__(self) -> None:
        self._executions: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._created = 0

    def write_message(self, cursor: psycopg.Cursor[Any], statements: Iterable[Statement]) -> bytes:
        """Return one message with the statements, and with their values in its text, quoted by psycopg."""
        return b";\n".join(self._write(cursor.connection, *statement) for statement in statements)

    def prepare(self, connection: psycopg.Connection, statements: Iterable[Statement]) -> None:
        """Count executions, and prepare the statements that have become frequent, in one message.

        The server stores the message with each of them, so it contains no values.
        """
        names: dict[str, str] = {}
        for statement, values in statements:
            if isinstance(values, Mapping) and self._is_due(statement):
                self._created += 1  # a message that failed may have prepared some
                names[statement] = f"torana_{self._created}"
        if names:
            texts = (f"PREPARE {name} AS {_number_places(statement)}" for statement, name in names.items())
            connection.execute(";\n".join(texts).encode())
            self._names |= names

    def _write(self, connection: psycopg.Connection, statement: str, values: Any) -> bytes:
        from psycopg import ClientCursor
        from psycopg.adapt import Transformer

        if values is None:
            return statement.encode()
        if (name := self._names.get(statement)) is None:
            return ClientCursor(connection).mogrify(statement.encode(), values).encode()
        quote = Transformer(connection).as_literal
        literals = [quote(values[place[1]]) for place in _PLACE.finditer(statement) if place[1]]
        arguments = b"(%b)" % b", ".join(literals) if literals else b""
        return b"EXECUTE %b%b" % (name.encode(), arguments)

    def _is_due(self, statement: str) -> bool:
        """Count an execution, and return whether the statement is to be prepared now."""
        if statement in self._names or not statement.startswith(_PREPARABLE):
            return False
        if len(self._names) >= _MAX_STATEMENTS:
            return False
        if len(self._executions) >= _MAX_STATEMENTS:
            self._executions.clear()
        self._executions[statement] = self._executions.get(statement, 0) + 1
        return self._executions[statement] >= _FREQUENT


def _number_places(statement: str) -> str:
    """Return the statement with the places of its values as PREPARE numbers them."""
    numbers = itertools.count(1)
    return _PLACE.sub(lambda place: f"${next(numbers)}" if place[1] else "%", statement)
