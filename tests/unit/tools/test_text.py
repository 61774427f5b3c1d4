from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.tools.base import ToolError
from torana.tools.builtin.text import TEXT_LIMIT, change_text, count_text, sort_lines, unique_lines


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a", "1 line, 1 word, 1 character (1 without spaces)."),
        ("one two\n\nthree 猫", "3 lines, 4 words, 16 characters (12 without spaces)."),
        ("", "0 lines, 0 words, 0 characters (0 without spaces)."),
        ("👍🏽", "1 line, 1 word, 2 characters (2 without spaces)."),
        ("x " * 1000, "1 line, 1,000 words, 2,000 characters (1,000 without spaces)."),
    ],
)
def test_words_lines_and_characters_are_counted(text: str, answer: str) -> None:
    assert count_text(text) == answer


@pytest.mark.parametrize(
    ("text", "part", "answer"),
    [
        ("strawberry", "r", "“r” occurs 3 times."),
        ("Anna and Hanna", "an", "“an” occurs 3 times."),
        ("Strawberry", "S", "“S” occurs once."),
        ("pear", "x", "“x” occurs 0 times."),
    ],
)
def test_occurrences_are_counted_regardless_of_case(text: str, part: str, answer: str) -> None:
    assert count_text(text, part) == answer


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ("uppercase", "IT'S A DAY"),
        ("lowercase", "it's a day"),
        ("title", "It's A Day"),
        ("reverse", "yaD a s'tI"),
    ],
)
def test_text_is_changed(change: Literal["uppercase", "lowercase", "title", "reverse"], answer: str) -> None:
    assert change_text("It's a Day", change) == answer


@pytest.mark.parametrize(
    ("text", "order", "answer"),
    [
        ("pear\nApple\n\nfig\napple", "ascending", "Apple\napple\nfig\npear"),
        ("a\nc\nb", "descending", "c\nb\na"),
        ("x 10\nnone\nx 9\n-1.5", "numeric", "-1.5\nx 9\nx 10\nnone"),
        ("1,200\n90\n15", "numeric", "15\n90\n1,200"),
        ("1,200.5\n1,200\n1,1999", "numeric", "1,1999\n1,200\n1,200.5"),
        ("file-10\nfile-9\nfile-2", "numeric", "file-2\nfile-9\nfile-10"),
        ("2026-03-04\n2025-12-24", "numeric", "2025-12-24\n2026-03-04"),
        ("5\n−1\n-2", "numeric", "-2\n−1\n5"),
        ("b\r\na  ", "ascending", "a\nb"),
    ],
)
def test_lines_are_sorted(text: str, order: Literal["ascending", "descending", "numeric"], answer: str) -> None:
    assert sort_lines(text, order) == answer


def test_repeated_lines_are_removed_in_place() -> None:
    assert unique_lines("b\na\nb\n\nA\na") == "b\na\nA"


@given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1), min_size=1))
def test_sorting_keeps_every_line_and_unique_lines_sort_alike(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert sorted(sort_lines(text).split("\n")) == sorted(lines)
    assert sort_lines(sort_lines(text)) == sort_lines(text)
    assert set(unique_lines(text).split("\n")) == set(lines)


@pytest.mark.parametrize("tool", [count_text, sort_lines, unique_lines])
def test_oversized_text_is_refused(tool: Callable[[str], str]) -> None:
    with pytest.raises(ToolError, match="at most 100,000"):
        tool("x" * (TEXT_LIMIT + 1))


@pytest.mark.parametrize("tool", [sort_lines, unique_lines])
def test_empty_text_is_refused(tool: Callable[[str], str]) -> None:
    with pytest.raises(ToolError, match="no text"):
        tool(" \n ")
