from __future__ import annotations

import time
from datetime import UTC, datetime

from torana.memory.relevance import ranked
from torana.store.fts import QUERY_LIMIT, terms
from torana.store.memories import Candidate, Remembered
from torana.store.words import words


def candidate(number: int, text: str) -> Candidate:
    memory = Remembered(
        id=f"mem_{number}", text=text, subject="", turn_id=None, created_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    return Candidate(memory=memory, words=words(text))


def test_a_lone_character_counts_the_words_that_begin_with_it() -> None:
    once, twice = candidate(1, "日程 月曜"), candidate(2, "日程 日曜")
    assert [fit.memory.id for fit in ranked(["日"], [once, twice], total=2)] == ["mem_2", "mem_1"]
    assert [fit.held for fit in ranked(["日", "日程"], [twice], total=2)] == [2]


def test_queries_of_lone_characters_cost_as_much_as_others() -> None:
    characters = [chr(0x4E00 + number) for number in range(1_000)]
    text = "".join(characters)
    candidates = [candidate(number, text) for number in range(40)]
    lone, pairs = terms(" ".join(characters)), terms(text)
    assert len(lone) == len(pairs) == QUERY_LIMIT

    assert _seconds(lone, candidates) < 10 * _seconds(pairs, candidates)


def _seconds(query: list[str], candidates: list[Candidate]) -> float:
    """The processor time of a ranking, the shortest of a few."""
    took: list[float] = []
    for _ in range(3):
        began = time.process_time()
        ranked(query, candidates, total=len(candidates))
        took.append(time.process_time() - began)
    return min(took)
