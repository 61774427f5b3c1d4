"""Text indexes: their tables, and the conditions of queries.

A text index is a virtual table of SQLite (FTS5). In PostgreSQL it is a table with a column ``lexemes``
(``tsvector``), computed from the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from torana.store.engine.fts import TOKENIZER, begins_words, quote_term


def create_index(after: sa.Table, name: str, *columns: str) -> None:
    """Create a text index with these columns and ``words`` after its table.

    The index does not rank, so it stores no positions and no lengths.
    """
    named = ", ".join(columns)
    typed = ", ".join(f'{column} TEXT COLLATE "C" NOT NULL' for column in columns)
    virtual = (
        f"CREATE VIRTUAL TABLE {name} USING fts5"
        f'({named}, words, detail=column, columnsize=0, tokenize = "{TOKENIZER}")'
    )
    table = (
        f"CREATE TABLE {name} (rowid BIGSERIAL PRIMARY KEY, {typed}, words TEXT NOT NULL, "
        "lexemes TSVECTOR GENERATED ALWAYS AS (array_to_tsvector(string_to_array(words, ' '))) STORED)"
    )
    for dialect, statement in (
        ("sqlite", virtual),
        ("postgresql", table),
        ("postgresql", f"CREATE INDEX ix_{name}_lexemes ON {name} USING gin (lexemes)"),
        ("postgresql", f"CREATE INDEX ix_{name}_columns ON {name} ({named})"),
    ):
        event.listen(after, "after_create", sa.DDL(statement).execute_if(dialect=dialect))


def matches(
    table: sa.TableClause, equal: Mapping[str, str], found: Sequence[str] = (), *, every: bool = False
) -> sa.ColumnElement[bool]:
    """Return the condition for rows of a text index.

    Each column in ``equal`` has that value, a single word. The words contain any of the terms, or all of them
    with ``every``; without terms, all rows match.
    """
    fts5 = [f'{name} : "{value}"' for name, value in equal.items()]
    conditions = [table.c[name] == value for name, value in equal.items()]
    if found:
        fts5.append(f"words : ({(' AND ' if every else ' OR ').join(quote_term(term) for term in found)})")
        lexemes = (" & " if every else " | ").join(_lexeme(term) for term in found)
        query = sa.literal(lexemes).op("::")(sa.literal_column("tsquery"))
        conditions.append(sa.literal_column(f"{table.name}.lexemes").op("@@", is_comparison=True)(query))
    return _Match(sa.literal_column(table.name), sa.literal(" AND ".join(fts5)), sa.and_(*conditions))


def _lexeme(term: str) -> str:
    """Return the term as a lexeme of a ``tsquery``."""
    quoted = term.replace("\\", "\\\\").replace("'", "''")
    return f"'{quoted}':*" if begins_words(term) else f"'{quoted}'"


class _Match(FunctionElement[bool]):
    """A condition in both dialects: the table and the query of FTS5, and the expression for PostgreSQL."""

    type = sa.Boolean()
    inherit_cache = True

    def self_group(self, against: object = None) -> Any:
        """Return the condition itself: SQLite would compare the result of a function with 1."""
        return self


@compiles(_Match, "sqlite")
def _match_in_sqlite(element: _Match, compiler: SQLCompiler, **options: object) -> str:
    table, query, _ = element.clauses
    return f"{compiler.process(table, **options)} MATCH {compiler.process(query, **options)}"


@compiles(_Match, "postgresql")
def _match_in_postgresql(element: _Match, compiler: SQLCompiler, **options: object) -> str:
    _, _, condition = element.clauses
    return f"({compiler.process(condition, **options)})"
