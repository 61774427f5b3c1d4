"""Compare a database's schema with the one that the migrations build for its revision."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlalchemy.engine import Connection

#: An object's type (``table``, ``index``, ``trigger`` or ``view``) and name.
Key = tuple[str, str]

#: The table that an object belongs to, and its SQL.
Definition = tuple[str, str]

#: Maximum length of a quoted name.
_NAME_LIMIT = 60

# A name in brackets without an end extends to the end of the text: a search at each bracket would take long.
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]?|\w+|\S""")
_QUOTED_NAME = re.compile(r'"([A-Za-z_]\w*)"')


def read_schema(connection: Connection) -> dict[Key, Definition]:
    """Return the definition of every object; SQLite's automatic indices have no SQL.

    Reads only the schema table: nothing that the schema defines is executed.
    """
    rows = connection.exec_driver_sql("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema")
    return {(str(kind), str(name)): (str(table), str(sql)) for kind, name, table, sql in rows}


def differences(found: Mapping[Key, Definition], expected: Mapping[Key, Definition]) -> list[str]:
    """Describe each object that is added, changed or missing, such as ``the trigger 'x' is added``."""
    added = [key for key in found if key not in expected]
    missing = [key for key in expected if key not in found]
    changed = [key for key in expected if key in found and not same(found[key], expected[key])]
    groups = [(added, "added"), (changed, "changed"), (missing, "missing")]
    return [f"the {kind} {name[:_NAME_LIMIT]!r} is {what}" for keys, what in groups for kind, name in keys]


def same(one: Definition, other: Definition) -> bool:
    """Return whether two definitions are equal except for differences that upgrades cause.

    These are white space, quotation marks around plain names, and the order of columns and constraints: an
    upgraded table has its newer columns last.
    """
    return one == other or _normal_form(*one) == _normal_form(*other)


def _normal_form(table: str, sql: str) -> tuple[str, list[str]]:
    tokens = [_QUOTED_NAME.sub(r"\1", token) for token in _TOKEN.findall(sql)]
    if tokens[:2] != ["CREATE", "TABLE"] or "(" not in tokens:
        return table, tokens
    opening = tokens.index("(")
    return table, [*tokens[:opening], *sorted(_parts(tokens[opening + 1 :]))]


def _parts(tokens: list[str]) -> list[str]:
    """Return the definitions between a table's brackets, and the text after the closing one."""
    parts: list[list[str]] = [[]]
    depth = 1
    for word in tokens:
        depth += (word == "(") - (word == ")")
        if (word, depth) in ((",", 1), (")", 0)):
            parts.append([])
        parts[-1].append(word)
    return [" ".join(part).removeprefix(", ") for part in parts]
