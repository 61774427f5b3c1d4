from __future__ import annotations

import time
from datetime import UTC, datetime

from torana.memory.bm25 import rank
from torana.store.engine.fts import QUERY_LIMIT, terms
from torana.store.engine.tokenizer import words
from torana.store.rows.memories import Candidate, Remembered


def candidate(number: int, text: str) -> Candidate:
    memory = Remembered(
        id=f"mem_{number}", text=text, subject="", turn_id=None, created_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    return Candidate(memory=memory, words=" ".join(words(text)))


def test_single_character_matches_words_that_begin_with_it() -> None:
    once, twice = candidate(1, "日程 月曜"), candidate(2, "日程 日曜")
    assert [fit.memory.id for fit in rank(["日"], [once, twice], total=2)] == ["mem_2", "mem_1"]
    assert [fit.matched_terms for fit in rank(["日", "日程"], [twice], total=2)] == [2]


def test_single_character_queries_are_not_slower() -> None:
    characters = [chr(0x4E00 + number) for number in range(1_000)]
    text = "".join(characters)
    candidates = [candidate(number, text) for number in range(40)]
    lone, pairs = characters[:QUERY_LIMIT], terms(text)
    assert len(lone) == len(pairs) == QUERY_LIMIT

    assert _seconds(lone, candidates) < 10 * _seconds(pairs, candidates)


def test_query_has_at_most_two_prefixes() -> None:
    assert terms("我 猫 blue 是 一 我的") == ["我", "猫", "blue", "我的"]


def test_only_the_beginning_of_a_query_is_read() -> None:
    characters = "".join(chr(0x10000 + number) for number in range(4_096))
    rare = [characters, characters * 200]
    took: list[float] = []
    for text in rare:
        began = time.process_time()
        terms(text)
        took.append(time.process_time() - began)
    assert took[1] < 10 * took[0]
    assert terms(" " * 4_095 + "ab") == ["a"]


def _seconds(query: list[str], candidates: list[Candidate]) -> float:
    """Return the processor time of a ranking, the shortest of three runs."""
    took: list[float] = []
    for _ in range(3):
        began = time.process_time()
        rank(query, candidates, total=len(candidates))
        took.append(time.process_time() - began)
    return min(took)
