"""Splitting of replies into parts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.connectors.base import Capabilities
from torana.connectors.transport import markup
from torana.connectors.transport.splitting import pieces, split, split_beginning, utf16_length

_words = st.sampled_from(
    ["word ", "sentence. ", "\n", "\n\n", "```\n", "- item\n", "**b** ", "<&> ", "ü" * 70, "> q\n"]
)
texts = st.lists(_words, max_size=80).map("".join)


def abilities(length: int) -> Capabilities:
    return Capabilities(length=length, repeat="blind", render=markup.telegram)


def test_short_text_is_one_part() -> None:
    assert split("Hello *there*.\n", abilities(50)) == ["Hello *there*."]
    assert split(" \n", abilities(50)) == []


def test_text_is_split_at_paragraphs_then_lines_sentences_and_words() -> None:
    assert split("one two three\n\nfour five six", abilities(20)) == ["one two three", "four five six"]
    assert split("one two three\nfour five six", abilities(20)) == ["one two three", "four five six"]
    assert split("One two three. Four five six.", abilities(20)) == ["One two three.", "Four five six."]
    assert split("one two three four", abilities(10)) == ["one two", "three four"]
    assert split("一二三。四五六七八。", abilities(6)) == ["一二三。", "四五六七八。"]
    assert split("x" * 25, abilities(10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_parts_fit_utf16_limits_and_keep_characters_whole() -> None:
    able = Capabilities(length=10, repeat="blind", measure=utf16_length)

    assert split("😀" * 12, able) == ["😀" * 5, "😀" * 5, "😀" * 2]
    assert split("a" + "😀" * 6, able) == ["a" + "😀" * 4, "😀" * 2]


def test_code_block_is_closed_and_reopened() -> None:
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
def test_splitting_terminates_and_loses_nothing(text: str) -> None:
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


@given(texts, st.integers(40, 200))
def test_text_that_is_cut_step_by_step_loses_no_word(text: str, length: int) -> None:
    parts: list[str] = []
    rest = text * 5
    while rest:
        some, rest = split_beginning(rest, abilities(length))
        assert len(some) <= 8
        parts += some

    assert all(0 < len(markup.telegram(part)) <= length for part in parts if part.strip("`\n >-*"))
    whole, shown = (re.findall(r"\w+", one) for one in (text * 5, " ".join(parts)))
    assert "".join(whole) == "".join(shown)


class Counted:
    """A platform's rendering that counts what it renders."""

    def __init__(self, render: Callable[[str], str], length: int) -> None:
        self.renders = self.characters = 0
        self._render = render
        self.abilities = Capabilities(length=length, repeat="blind", render=self._count)

    def _count(self, text: str) -> str:
        self.renders += 1
        self.characters += len(text)
        return self._render(text)


def escaped(text: str) -> str:
    """Render text with the longest escapes."""
    return "".join(f"&#{ord(letter)};" if letter in "[*&" else letter for letter in text)


_costly = st.sampled_from(
    [
        "[",
        "![[",
        "*a ",
        "> " * 10 + "a\n" + "b\n" * 50,
        "- a\n",
        "|a|b|\n|-|-|\n",
        "`",
        "```\n",
        "&",
        "\\",
        "word ",
    ]
)
_uneven = st.lists(
    st.tuples(_costly, st.integers(1, 1_500)).map(lambda two: (two[0] * two[1])[:1_500]), min_size=1, max_size=5
).map("".join)


@given(
    _uneven, st.sampled_from([markup.plain, markup.telegram, markup.discord, escaped]), st.integers(100, 2_000)
)
def test_every_part_takes_few_renders(text: str, render: Callable[[str], str], length: int) -> None:
    counted = Counted(render, length)

    parts = split(text, counted.abilities)

    assert [part for part in parts if len(render(part)) > length] == []
    assert counted.renders <= 8 * len(parts) + 8
    # A piece has a third of what fits at least, and markup may be thirty times as long as its text.
    assert counted.characters <= 40 * len(text) + 8 * length


def test_first_part_does_not_depend_on_length_of_text() -> None:
    counted = Counted(markup.telegram, 100)

    first = next(pieces("[" * 1_000_000, counted.abilities))

    assert first == "[" * 100
    assert counted.characters <= 1_000


@pytest.mark.parametrize("length", [100, 4_000])
def test_first_parts_do_not_depend_on_length_of_text(length: int) -> None:
    counted = Counted(markup.telegram, length)

    some, rest = split_beginning("- a\n" * 250_000, counted.abilities)

    assert len(some) + len(rest) > 900_000
    assert counted.characters <= 40 * 20_000 + 40 * length


def test_code_block_continues_in_the_rest() -> None:
    some, rest = split_beginning("```py\n" + "x\n" * 100 + "```", abilities(20))
    assert len(some) == 8
    assert rest.startswith("```py\nx\n")


def test_code_block_with_overlong_fence_is_not_reopened() -> None:
    mark = "`" * 60

    parts = split(f"{mark}\n{'x' * 1_000}\n{mark}", abilities(200))

    assert len(parts) <= 10
    assert sum(part.count("x") for part in parts) == 1_000
