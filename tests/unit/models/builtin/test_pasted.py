"""Questions about a text in the same message."""

from __future__ import annotations

import time
from typing import Any

import pytest

from torana.models.builtin.choice import Chooser
from torana.models.builtin.explicit import ExplicitCall, Unclear
from torana.models.builtin.message import read

TABLE = "name,city,amount\nAna,Paris,1\nBob,Rome,2"


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("count the words in this text: one  two", "count_text", {"text": "one  two"}),
        ("How many characters are in this\n\n a b \nc", "count_text", {"text": " a b \nc"}),
        ("```\na b\n```\ncount the lines", "count_text", {"text": "a b"}),
        ('how many words are there in "to be or not"?', "count_text", {"text": "to be or not"}),
        ("sort these lines:\nb\na", "sort_lines", {"text": "b\na", "order": "ascending"}),
        ("Sort these lines in descending order\nb\na", "sort_lines", {"text": "b\na", "order": "descending"}),
        ("sort: pear, apple,fig", "sort_lines", {"text": "pear\napple\nfig", "order": "ascending"}),
        ("sort these numbers from small to large: 10, 9", "sort_lines", {"text": "10\n9", "order": "numeric"}),
        (
            "sort numerically: -5, 3, 1.5, 1,000",
            "sort_lines",
            {"text": "-5\n3\n1.5\n1,000", "order": "numeric"},
        ),
        ("sort these numbers: 10,9,2000", "sort_lines", {"text": "10\n9\n2000", "order": "numeric"}),
        ("remove duplicate lines\na\na", "unique_lines", {"text": "a\na"}),
        ("Remove the duplicates from this list: a, b, a", "unique_lines", {"text": "a\nb\na"}),
    ],
)
def test_line_and_word_questions_are_matched(
    chooser: Chooser, text: str, tool: str, arguments: dict[str, Any]
) -> None:
    assert chooser.choose(text) == ExplicitCall(tool, arguments)


@pytest.mark.parametrize(
    ("text", "path", "json"),
    [
        ('get $.items[0].name from this JSON: {"items": []}', "$.items[0].name", '{"items": []}'),
        ('what is [0].name in [{"name": "a  b"}]?', "[0].name", '[{"name": "a  b"}]'),
        ('What is the value of user.email in this JSON?\n{"user": {}}', "user.email", '{"user": {}}'),
        ('```json\n{"a": 1}\n```\nget a from this JSON', "a", '{"a": 1}'),
        ("query $[?@.price < 10].name in:\n[1,\n2]", "$[?@.price < 10].name", "[1,\n2]"),
    ],
)  # fmt: skip
def test_json_questions_are_matched(chooser: Chooser, text: str, path: str, json: str) -> None:
    assert chooser.choose(text) == ExplicitCall("query_json", {"text": json, "path": path})


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ("sum of amount in this CSV:", {"aggregate": "sum", "column": "amount"}),
        ("What is the average amount by city?", {"aggregate": "mean", "column": "amount", "group_by": "city"}),
        ("which is the highest amount in this table", {"aggregate": "max", "column": "amount"}),
        ("total amount where city = Paris", {"aggregate": "sum", "column": "amount", "where": "city = Paris"}),
        ("rows where city = Paris in this table", {"where": "city = Paris"}),
        ("show the rows where name contains n", {"where": "name contains n"}),
        ("how many rows where amount > 1 in this csv?", {"aggregate": "count", "where": "amount > 1"}),
        ("count the rows by city", {"aggregate": "count", "group_by": "city"}),
        ("only show the columns name and city", {"select": ["name", "city"]}),
    ],
)
def test_csv_questions_are_matched(chooser: Chooser, question: str, arguments: dict[str, Any]) -> None:
    assert chooser.choose(f"{question}\n{TABLE}") == ExplicitCall("query_csv", {"text": TABLE, **arguments})


@pytest.mark.parametrize(
    "text",
    [
        "Sort these lines",
        "what is the sum of amount in this CSV?",
        "count the words in this text",
        "get a.b from this JSON",
    ],
)
def test_missing_text_is_requested(chooser: Chooser, text: str) -> None:
    answer = chooser.choose(text)
    assert isinstance(answer, Unclear)
    assert "Send it in the same message" in answer.text


@pytest.mark.parametrize(
    "text",
    [
        "rows where it rains\n" + TABLE,
        "sum of amount in this CSV:\nno table",
        "what do you think of this: it is a text",
        "sort numbers in descending order: 1, 2",
        "sort these numbers: 1,000,90",
        "remove duplicates: 1,000,1,000",
        "translate this\nuno\ndue",
        "get the best from this JSON: {}",
        "```\n" * 3000,
        "{ " * 5000,
        "\n" * 5000 + "sort",
    ],
)
def test_unclear_messages_call_no_tool(chooser: Chooser, text: str) -> None:
    assert not isinstance(chooser.choose(text), ExplicitCall)


def test_unclosed_json_is_not_slow() -> None:
    costs: list[float] = []
    for text in ("word" + "]" * 20_000 + "end", ":[" * 100 + "]" * 20_000 + "end"):
        before = time.process_time()
        for _ in range(20):
            read(text)
        costs.append(time.process_time() - before)

    assert costs[1] < 30 * costs[0]
