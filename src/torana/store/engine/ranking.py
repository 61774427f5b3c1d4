"""Rank a few short texts by their similarity to a message."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from weakref import finalize

from torana.store.engine.fts import TOKENIZER, any_of, terms
from torana.store.engine.tokenizer import words

_TABLE = f'CREATE VIRTUAL TABLE documents USING fts5(text, tokenize = "{TOKENIZER}")'
_RANK = "SELECT rowid, -bm25(documents) FROM documents WHERE documents MATCH ? ORDER BY 2 DESC, 1 LIMIT ?"


@dataclass(frozen=True, slots=True)
class Match:
    """A text that shares words with the message. Scores are comparable within one call; higher is better."""

    key: str
    score: float


class Ranking:
    """Texts in memory, ranked by BM25 (SQLite FTS5). Immutable and thread-safe."""

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
        """Return at most ``limit`` texts that share a word with ``text``, best first, equal scores by key.

        Search syntax in ``text`` has no effect.
        """
        query = any_of(terms(text))
        if not query:
            return []
        with self._lock:
            rows: list[tuple[int, float]] = self._connection.execute(_RANK, (query, max(limit, 0))).fetchall()
        return [Match(self._keys[row], score) for row, score in rows]

    def close(self) -> None:
        """Free the memory; ``rank`` then raises ``sqlite3.ProgrammingError``."""
        with self._lock:
            self._close()
