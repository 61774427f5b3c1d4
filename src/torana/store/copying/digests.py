"""Digests of tables, which are equal for equal rows in SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any


class TableDigest:
    """A SHA-256 of the rows of a table, in the order in which they are added."""

    def __init__(self) -> None:
        self.rows = 0
        self._hash = hashlib.sha256()

    def __str__(self) -> str:
        return self._hash.hexdigest()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row as a line of JSON."""
        self.rows += 1
        values = [_plain(value) for value in row.values()]
        line = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        self._hash.update(line.encode() + b"\n")


def _plain(value: Any) -> Any:
    """Return a value for JSON. Texts lose the character NUL, as they do in PostgreSQL."""
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    return value
