"""Which of a few short texts fits a message best."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from weakref import finalize

from torana.store.fts import TOKENIZER, any_of, terms
from torana.store.words import words

_TABLE = f'CREATE VIRTUAL TABLE documents USING fts5(text, tokenize = "{TOKENIZER}")'
_RANK = "SELECT rowid, -bm25(documents) FROM documents WHERE documents MATCH ? ORDER BY 2 DESC, 1 LIMIT ?"


@dataclass(frozen=True, slots=True)
class Match:
    """A text that shares words with the message. Scores compare within one call only; higher is better."""

    key: str
    score: float


class Ranking:
    """Texts in memory, ranked by BM25 (SQLite FTS5).

    May be built, used and closed in any thread. The texts do not change; build another one when they do.
    """

    def __init__(self, documents: Mapping[str, str]) -> None:
        self._keys = sorted(documents)
        self._lock = Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._close = finalize(self, self._connection.close)
        with self._connection as connection:
            connection.execute(_TABLE)
            connection.executemany(
                "INSERT INTO documents (rowid, text) VALUES (?, ?)",
                ((row, " ".join(words(documents[key]))) for row, key in enumerate(self._keys)),
            )

    def rank(self, text: str, *, limit: int = 5) -> list[Match]:
        """At most ``limit`` texts that share a word with ``text``, best first, equals by key.

        ``text`` is words and nothing else: no search syntax in it has a meaning.
        """
        query = any_of(terms(text))
        if not query:
            return []
        with self._lock:
            rows: list[tuple[int, float]] = self._connection.execute(_RANK, (query, max(limit, 0))).fetchall()
        return [Match(self._keys[row], score) for row, score in rows]

    def close(self) -> None:
        """Free the memory now and not with the object; ``rank`` then raises ``sqlite3.ProgrammingError``."""
        with self._lock:
            self._close()
