from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.store.engine.ranking import Ranking

DOCUMENTS = {
    "calculator": "Calculate sums and percentages: what is 17 % of 2340",
    "units": "Convert miles, kilometres, pounds and degrees",
    "dates": "The time in Tokyo, days until Christmas",
    "duck": "我喜欢北京烤鸭 🥲",
    "tower": "東京タワーは高い",
    "coffee": "café crème, קפה, قهوة",
}


@pytest.fixture(scope="module")
def ranking() -> Iterator[Ranking]:
    ranking = Ranking(DOCUMENTS)
    yield ranking
    ranking.close()


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("how many kilometres are in a mile", "units"),
        ("what TIME is it in tokyo", "dates"),
        ("17 % of 80", "calculator"),
        ("北京", "duck"),
        ("高", "tower"),  # a single ideograph matches the pairs that begin with it
        ("🥲", "duck"),
        ("東京", "tower"),
        ("cafe", "coffee"),
        ("قهوة", "coffee"),
        ("קפה", "coffee"),
    ],
)
def test_best_match_is_ranked_first(ranking: Ranking, text: str, best: str) -> None:
    assert ranking.rank(text)[0].key == best


def test_scores_decrease_and_only_matching_texts_are_listed(ranking: Ranking) -> None:
    matches = ranking.rank("convert the time in Tokyo and calculate")
    scores = [match.score for match in matches]
    assert scores == sorted(scores, reverse=True)
    assert {match.key for match in matches} == {"dates", "units", "calculator"}


def test_equal_texts_are_listed_by_key_up_to_the_limit() -> None:
    ranking = Ranking(dict.fromkeys(["c", "a", "b"], "the same words"))
    assert [match.key for match in ranking.rank("same", limit=2)] == ["a", "b"]
    assert ranking.rank("same", limit=0) == []
    ranking.close()


@pytest.mark.parametrize(
    "text",
    ['" OR "miles', "text:miles NEAR(", "miles AND NOT convert", "mile* ^convert", "-miles", "miles -- ; DROP"],
)
def test_search_syntax_is_ignored(ranking: Ranking, text: str) -> None:
    assert ranking.rank(text)[0].key == "units"


@pytest.mark.parametrize("text", ["", "   ", '"', "***", "\0", "\ud800", "NEAR"])
def test_text_without_known_words_matches_nothing(ranking: Ranking, text: str) -> None:
    assert ranking.rank(text) == []


@given(text=st.text())
def test_any_text_can_be_ranked(ranking: Ranking, text: str) -> None:
    assert len(ranking.rank(text, limit=2)) <= 2


@given(text=st.text(min_size=1).filter(lambda text: bool(Ranking({"": text}).rank(text))))
def test_text_matches_its_own_words(text: str) -> None:
    ranking = Ranking({"self": text, "other": "nothing in common"})
    assert "self" in {match.key for match in ranking.rank(text)}
    ranking.close()


def test_ranking_is_thread_safe(ranking: Ranking) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ranking.rank, ["Tokyo"] * 40))
    assert {matches[0].key for matches in found} == {"dates"}


def test_huge_text_is_ranked_by_its_first_words(ranking: Ranking) -> None:
    assert ranking.rank("miles " + "filler " * 100_000)[0].key == "units"


def test_closed_ranking_raises() -> None:
    ranking = Ranking(DOCUMENTS)
    ranking.close()
    with pytest.raises(sqlite3.ProgrammingError):
        ranking.rank("miles")


def test_empty_ranking_returns_no_matches() -> None:
    ranking = Ranking({})
    assert ranking.rank("miles") == []
    ranking.close()
