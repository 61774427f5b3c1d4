"""A copy of a database as it is at one moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

_PAGES = 256  # copied between two reports of progress

#: Called with how many of how many parts are done.
Progress = Callable[[int, int], None]


def copy_database(source: Path, target: Path, progress: Progress = lambda _done, _all: None) -> None:
    """Copy a database as it is now, by SQLite's own backup; a gateway may write to it meanwhile.

    The copy is readable by its owner alone. Raises ``OSError`` or ``sqlite3.Error``; what was copied until then
    stays.
    """
    target.touch(mode=0o600)
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        # One reader's view for all steps: without it the copy starts anew whenever the gateway has written.
        old.execute("BEGIN")
        old.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        old.backup(new, pages=_PAGES, progress=lambda _status, left, all_: progress(all_ - left, all_))
        new.execute("PRAGMA journal_mode=DELETE")
