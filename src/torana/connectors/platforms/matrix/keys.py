"""The encryption keys of a device on Matrix, stored as records of the account."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from nio.store import SqliteMemoryStore

#: The key with which nio encrypts all keys in its files.
_PICKLE_KEY = "DEFAULT_KEY"


class KeyStore(SqliteMemoryStore):
    """nio's store in memory. It notes which rows change: their records are stored before the next request.

    A record has the table and the number of a row as key, and the values of the row as JSON.
    """

    def __init__(self, user: str, device: str) -> None:
        super().__init__(user, device, pickle_key=_PICKLE_KEY)
        self._memory = cast("sqlite3.Connection", cast("Any", self.database).connection())
        found = self._memory.execute(
            "SELECT tables.name, columns.name "
            "FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns "
            "WHERE tables.type = 'table' AND tables.name NOT IN ('storeversion', 'sqlite_sequence')"
        )
        self._columns = {table: [name for _, name in rows] for table, rows in groupby(found, key=itemgetter(0))}
        # SQLite has no parameters for names. These are the names of nio's tables.
        self._selects = {table: f"SELECT rowid AS number, * FROM {table}" for table in self._columns}  # noqa: S608
        self._note_changes()

    def load(self, records: Mapping[str, bytes]) -> None:
        """Insert the rows of all records, which do not count as changed."""
        self._memory.execute("PRAGMA foreign_keys = OFF")
        for key, body in records.items():
            table, _, number = key.partition("/")
            values = cast("dict[str, Any]", json.loads(body, object_hook=_decode))
            self._insert(table, int(number), values)
        self._memory.execute("PRAGMA foreign_keys = ON")
        self._memory.execute("DELETE FROM changed")

    def copy_file(self, path: Path) -> None:
        """Insert the rows of a database of nio, which all count as changed."""
        self._memory.execute("PRAGMA foreign_keys = OFF")
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            file.row_factory = sqlite3.Row
            for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                if table in self._selects:
                    for row in file.execute(self._selects[table]):
                        self._insert(table, row["number"], dict(row))
        self._memory.execute("PRAGMA foreign_keys = ON")

    def take_changes(self) -> dict[str, bytes | None]:
        """Return the records of all changed rows, None for deleted ones, and forget the changes."""
        noted = self._memory.execute("DELETE FROM changed RETURNING name, number").fetchall()
        return {f"{table}/{number}": self._record(table, number) for table, number in noted}

    def put_back(self, keys: Mapping[str, object]) -> None:
        """Note changes again that could not be stored."""
        noted = [tuple(key.split("/")) for key in keys]
        self._memory.executemany("INSERT OR IGNORE INTO changed VALUES (?, ?)", noted)

    def _note_changes(self) -> None:
        # Without it, a row that REPLACE deletes would not be noted.
        self._memory.execute("PRAGMA recursive_triggers = ON")
        self._memory.execute(
            "CREATE TEMP TABLE changed (name TEXT, number INTEGER, PRIMARY KEY (name, number))"
        )
        for table in self._columns:
            for event, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
                note = f"INSERT OR IGNORE INTO changed VALUES ('{table}', {row}.rowid)"  # noqa: S608
                trigger = f"CREATE TEMP TRIGGER {event}_{table} AFTER {event} ON main.{table}"
                self._memory.execute(f"{trigger} BEGIN {note}; END")

    def _insert(self, table: str, number: int, values: Mapping[str, Any]) -> None:
        names = ["rowid", *(name for name in self._columns.get(table, ()) if name in values)]
        if len(names) > 1:
            self._memory.execute(
                f"INSERT OR REPLACE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",  # noqa: S608
                [number, *(values[name] for name in names[1:])],
            )

    def _record(self, table: str, number: int) -> bytes | None:
        row = self._memory.execute(f"{self._selects[table]} WHERE rowid = ?", [number]).fetchone()
        if row is None:
            return None
        return json.dumps(dict(zip(self._columns[table], row[1:], strict=True)), default=_encode).encode()


class StoredKeys:
    """Stores the changes of a ``KeyStore``."""

    def __init__(self, store: KeyStore, save: Callable[[Mapping[str, bytes | None]], Awaitable[None]]) -> None:
        self._store = store
        self._save = save
        self._saving = asyncio.Lock()

    async def save(self) -> None:
        """Store all changes so far. Raises what the caller's ``save`` raises."""
        async with self._saving:
            changes = self._store.take_changes()
            if not changes:
                return
            try:
                await self._save(changes)
            except BaseException:
                self._store.put_back(changes)
                raise


def _encode(value: object) -> dict[str, str]:
    return {"base64": b64encode(cast("bytes", value)).decode()}


def _decode(value: dict[str, Any]) -> Any:
    return b64decode(value["base64"]) if value.keys() == {"base64"} else value
