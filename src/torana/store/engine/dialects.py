"""SQL that SQLite and PostgreSQL write differently, as expressions that compile for both."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.dml import OnConflictDoUpdate
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["FloatSum", "IsAbandoned", "IsOwn", "Larger", "Octets", "ThisReplica", "insert", "unread"]

T = TypeVar("T")
Change = TypeVar("Change", bound=sa.UpdateBase)

#: The execution option of changes that may wait for the next statement.
UNREAD = "torana_unread"


def unread(change: Change) -> Change:
    """Return a change whose number of rows is not read, and whose error no code in the transaction handles.

    PostgreSQL gets it together with the next statement whose result is read, or with the COMMIT, and reports
    its error there.
    """
    if isinstance(change, sa.Insert):
        change = change.inline()
    return change.execution_options(**{UNREAD: True})


@compiles(OnConflictDoUpdate, "postgresql")
def _on_conflict(element: Any, compiler: Any, **options: Any) -> str:
    # PostgreSQL's compiler also reads the name of a constraint, which the clause of SQLite does not have.
    element.constraint_target = None
    return compiler.visit_on_conflict_do_update(element, **options)


class _DialectExpression(FunctionElement[T]):
    """An expression with a form for each dialect; ``{}`` stands for the arguments."""

    sqlite: ClassVar[str]
    postgresql: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.inherit_cache = True  # SQLAlchemy reads it from the class itself


@compiles(_DialectExpression)
def _write(element: _DialectExpression[Any], compiler: SQLCompiler, **options: Any) -> str:
    form: str = getattr(element, compiler.dialect.name)
    return form.format(compiler.process(element.clauses, **options))


class Larger(_DialectExpression[int]):
    """The larger of two numbers."""

    type = sa.BigInteger()
    sqlite = "max({})"
    postgresql = "greatest({})"


class Octets(_DialectExpression[int]):
    """The number of bytes of a text in UTF-8."""

    type = sa.BigInteger()
    sqlite = "length(CAST({} AS BLOB))"
    postgresql = "octet_length({})"


class FloatSum(_DialectExpression[float]):
    """The sum of a column as a floating-point number: it cannot overflow, and it is 0 for no rows."""

    type = sa.Float()
    sqlite = "total({})"
    postgresql = "coalesce(sum({})::float8, 0)"


class ThisReplica(_DialectExpression[str]):
    """The id of the replica that executes the statement; NULL in SQLite, which one process uses."""

    type = sa.Text()
    sqlite = "NULL"
    postgresql = "current_setting('torana.replica', true)"


class IsOwn(_DialectExpression[bool]):
    """True if a column names this replica; always true in SQLite."""

    type = sa.Boolean()
    sqlite = "1"
    postgresql = "({} = current_setting('torana.replica', true))"


class IsAbandoned(_DialectExpression[bool]):
    """True if a column names no living replica; always true in SQLite, whose earlier process has ended."""

    type = sa.Boolean()
    sqlite = "1"
    postgresql = "({0} IS NULL OR {0} NOT IN (SELECT replicas.id FROM replicas))"
