"""Replies in parts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.connectors import markup
from torana.connectors.base import Abilities
from torana.connectors.splitting import split

_pieces = st.sampled_from(
    ["word ", "sentence. ", "\n", "\n\n", "```\n", "- item\n", "**b** ", "<&> ", "ü" * 70, "> q\n"]
)
texts = st.lists(_pieces, max_size=80).map("".join)


def abilities(length: int) -> Abilities:
    return Abilities(length=length, repeat="blind", render=markup.telegram)


def test_a_short_text_is_one_part() -> None:
    assert split("Hello *there*.\n", abilities(50)) == ["Hello *there*."]
    assert split(" \n", abilities(50)) == []


def test_it_is_cut_between_paragraphs_first_then_lines_sentences_and_words() -> None:
    assert split("one two three\n\nfour five six", abilities(20)) == ["one two three", "four five six"]
    assert split("one two three\nfour five six", abilities(20)) == ["one two three", "four five six"]
    assert split("One two three. Four five six.", abilities(20)) == ["One two three.", "Four five six."]
    assert split("one two three four", abilities(10)) == ["one two", "three four"]
    assert split("一二三。四五六七八。", abilities(6)) == ["一二三。", "四五六七八。"]
    assert split("x" * 25, abilities(10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_block_of_code_is_closed_and_opened_again() -> None:
    code = "\n".join(f"  line {n}" for n in range(12))

    parts = split(f"See:\n\n```py\n{code}\n```\n\nDone.", abilities(60))

    assert all(part.count("```") % 2 == 0 for part in parts)
    shown = "\n".join(re.sub("</?pre>", "", markup.telegram(part)) for part in parts)
    assert [line for line in code.split("\n") if line not in shown] == []
    assert "  line 11" in shown


@pytest.mark.parametrize(
    "text",
    [
        "```sql SELECT " + "a, " * 400 + "```",
        "~~~ " + "word " * 400,
        "`" * 1000,
        "~" * 1000 + "\n" + "x" * 300,
        "```" + "x" * 300 + "\n" + "y" * 300,
        "```py\n" + "z" * 1000 + "\n```",
        "> " * 500 + "deep",
    ],
)
def test_whatever_a_model_writes_it_comes_to_an_end_and_nothing_is_lost(text: str) -> None:
    for length in (40, 100):
        parts = split(text, abilities(length))

        assert len(parts) < 200
        shown = "".join(markup.plain(part) for part in parts)
        for letter in "SELCTaworxzd":
            assert shown.count(letter) == text.count(letter), letter


@given(texts, st.integers(40, 200))
def test_every_part_fits_and_no_word_is_lost(text: str, length: int) -> None:
    parts = split(text, abilities(length))

    assert all(0 < len(markup.telegram(part)) <= length for part in parts if part.strip("`\n >-*"))
    whole, shown = (re.findall(r"\w+", one) for one in (text, " ".join(parts)))
    assert "".join(whole) == "".join(shown)
