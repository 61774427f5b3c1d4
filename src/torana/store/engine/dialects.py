"""SQL that SQLite and PostgreSQL write differently, as expressions that compile for both."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.dml import OnConflictDoUpdate
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["float_sum", "insert", "is_abandoned", "is_own", "larger", "octets", "this_replica"]


@compiles(OnConflictDoUpdate, "postgresql")
def _on_conflict(element: Any, compiler: Any, **options: Any) -> str:
    # The clause of SQLite's dialect lacks only the name of a constraint, which SQLite cannot name.
    element.constraint_target = None
    return compiler.visit_on_conflict_do_update(element, **options)


class larger(FunctionElement[int]):  # noqa: N801 - a function of SQL
    """The larger of two numbers."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(larger, "sqlite")
def _larger_in_sqlite(element: larger, compiler: SQLCompiler, **options: Any) -> str:
    return f"max({compiler.process(element.clauses, **options)})"


@compiles(larger, "postgresql")
def _larger_in_postgresql(element: larger, compiler: SQLCompiler, **options: Any) -> str:
    return f"greatest({compiler.process(element.clauses, **options)})"


class octets(FunctionElement[int]):  # noqa: N801 - a function of SQL
    """The number of bytes of a text in UTF-8."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(octets, "sqlite")
def _octets_in_sqlite(element: octets, compiler: SQLCompiler, **options: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


@compiles(octets, "postgresql")
def _octets_in_postgresql(element: octets, compiler: SQLCompiler, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


class float_sum(FunctionElement[float]):  # noqa: N801 - a function of SQL
    """The sum of a column as a floating-point number: it cannot overflow, and it is 0 for no rows."""

    type = sa.Float()
    inherit_cache = True


@compiles(float_sum, "sqlite")
def _float_sum_in_sqlite(element: float_sum, compiler: SQLCompiler, **options: Any) -> str:
    return f"total({compiler.process(element.clauses, **options)})"


@compiles(float_sum, "postgresql")
def _float_sum_in_postgresql(element: float_sum, compiler: SQLCompiler, **options: Any) -> str:
    return f"coalesce(sum({compiler.process(element.clauses, **options)})::float8, 0)"


class this_replica(FunctionElement[str]):  # noqa: N801 - a function of SQL
    """The id of the replica that executes the statement; NULL in SQLite, which one process uses."""

    type = sa.Text()
    inherit_cache = True


class is_own(FunctionElement[bool]):  # noqa: N801 - a function of SQL
    """True if a column names this replica; always true in SQLite."""

    type = sa.Boolean()
    inherit_cache = True


class is_abandoned(FunctionElement[bool]):  # noqa: N801 - a function of SQL
    """True if a column names no living replica; always true in SQLite, whose earlier process has ended."""

    type = sa.Boolean()
    inherit_cache = True


@compiles(this_replica, "sqlite")
def _this_replica_in_sqlite(element: this_replica, compiler: SQLCompiler, **options: Any) -> str:
    return "NULL"


@compiles(this_replica, "postgresql")
def _this_replica_in_postgresql(element: this_replica, compiler: SQLCompiler, **options: Any) -> str:
    return "current_setting('torana.replica', true)"


@compiles(is_own, "sqlite")
@compiles(is_abandoned, "sqlite")
def _true_in_sqlite(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    return "1"


@compiles(is_own, "postgresql")
def _is_own_in_postgresql(element: is_own, compiler: SQLCompiler, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)} = current_setting('torana.replica', true))"


@compiles(is_abandoned, "postgresql")
def _is_abandoned_in_postgresql(element: is_abandoned, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    return f"({column} IS NULL OR {column} NOT IN (SELECT replicas.id FROM replicas))"  # noqa: S608 - a column
