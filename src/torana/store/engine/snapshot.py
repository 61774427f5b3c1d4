"""Copy a database at one moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

_PAGES = 256  # copied between two reports of progress

#: Called with the number of finished parts and of all parts.
Progress = Callable[[int, int], None]


def copy_database(source: Path, target: Path, progress: Progress = lambda _done, _all: None) -> None:
    """Copy a database with SQLite's backup API; a gateway may write to it at the same time.

    Only the owner can read the copy. Raises ``OSError`` or ``sqlite3.Error``, and leaves an incomplete copy.
    """
    target.touch(mode=0o600)
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        # Read all steps in one transaction: otherwise the copy restarts after each write of the gateway.
        old.execute("BEGIN")
        old.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        old.backup(new, pages=_PAGES, progress=lambda _status, left, all_: progress(all_ - left, all_))
        new.execute("PRAGMA journal_mode=DELETE")
