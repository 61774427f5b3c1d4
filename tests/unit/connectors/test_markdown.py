"""Cost and completeness of Markdown rendering."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.connectors.transport import markup

#: Function calls for each character. A short line in ten quotations takes most: it is shown with their marks.
_CALLS = 500

#: Characters that are shown for each one of the text, at most in such lines.
_SHOWN = 40

_UNITS = [
    *("[", "]", "![", "[[", "![[", "](", ")", "](b)", '](b "', "](https://example.org/a)", "[a]", "[a][a]"),
    *("*", "_", "**", "~~", "*a ", " a*", "a**b", "_a*", "***", "*_", "`", "``", "`a``b", "```\n", "~~~ a\n"),
    *("> ", ">", "> a\n", "- ", "- a\n", "* a\n", "1. a\n", "-\n", "  - a\n", "\t- a\n", "    a\n", "- > "),
    *("|", "a|b\n-|-\n", "|a|b|\n|-|-|\n", "|\n", "|a", "|-", "|x|y|z|\n", "\\|"),
    *("&", "&amp;", "&#", "&#35;", "&a", "<", "<a:", "<http://a>", "<a@b.c>", ">", "@", "http://a.b/"),
    *("[a]: https://example.org/\n", "[a]: b '\n", "[\n", "\\", "\\[", "\\\n", "#", "# a\n", "===\n", "---\n"),
    *("\n", "\n\n", "  \n", " ", "\t", "a", "word ", "ü", "🙂"),
]
_repeated = st.tuples(st.sampled_from(_UNITS), st.integers(1, 1_500)).map(lambda two: two[0] * two[1])
_nested = st.tuples(*[st.sampled_from(_UNITS)] * 3, st.integers(1, 700)).map(
    lambda four: four[0] * four[3] + four[1] + four[2] * four[3]
)
_mixed = st.tuples(st.lists(st.sampled_from(_UNITS), min_size=2, max_size=6), st.integers(1, 500)).map(
    lambda two: "".join(two[0]) * two[1]
)
adversarial = st.lists(_repeated | _nested | _mixed, min_size=1, max_size=3).map(
    lambda all_: "".join(all_)[:3_000]
)


def calls(work: Callable[[], object]) -> int:
    """Return how many functions are called, which is the same each time."""
    count = 0

    def note(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    markup.telegram("*loaded*")


def check_cost(text: str) -> None:
    shown: list[str] = []
    cost = calls(lambda: shown.append(markup.telegram(text)))

    assert cost <= _CALLS * len(text) + 5_000
    assert len(shown[0]) <= _SHOWN * len(text) + 100


@given(adversarial)
def test_cost_of_any_text_is_linear(text: str) -> None:
    check_cost(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 9_000,
        "![" * 4_500,
        "![[" * 3_000,
        "[" * 4_500 + "]" * 4_500,
        "![" * 1_500 + "a" + "](b)" * 1_500,
        "*a " * 1_500 + " a*" * 1_500,
        "*a" * 2_250 + "a*" * 2_250,
        "> " * 10 + "a\n" * 4_500,
        "".join("  " * level + "- a\n" for level in range(90)),
        "|a" * 1_000 + "|\n" + "|-" * 1_000 + "|\n" + "|\n" * 2_500,
        ("|a" * 20 + "|\n" + "|-" * 20 + "|\n" + "|b\n" * 40 + "\n") * 43,
        f"[a]: https://example.org/{'b' * 4_500}\n\n" + "[a] " * 1_125,
    ],
    ids=lambda text: text[:12],
)
def test_cost_of_uniform_text_is_linear(text: str) -> None:
    check_cost(text)


def test_link_in_long_paragraph_stays_link() -> None:
    words = "word " * 1_000
    shown = markup.slack(f"{words}[here](https://example.org/) {words}")

    assert "<https://example.org/|here>" in shown
    assert shown.count("word") == 2_000


def test_too_deeply_nested_list_is_shown() -> None:
    lines = [f"{'  ' * level}- item {level}" for level in range(90)]
    shown = markup.plain("\n".join(lines))

    assert [level for level in range(90) if f"item {level}\n" not in f"{shown}\n"] == []


@pytest.mark.parametrize("row", ["|1|2|3|", "|1"])
def test_table_row_with_different_number_of_cells_is_shown(row: str) -> None:
    head = "a|b\n-|-\n" if row.endswith("|") else f"{'|a' * 9}|\n{'|-' * 9}|\n"

    assert markup.plain(f"{head}{row}").splitlines()[-1].strip("| ") == row.strip("|")


def test_table_row_may_omit_cells() -> None:
    assert markup.plain("|a|b|c|\n|-|-|-|\n|1|2|\n") == "a | b | c\n1 | 2 | "


_shown_units = st.sampled_from([unit for unit in _UNITS if not set(unit) & set("[]<~`:|a")])


@given(st.lists(st.one_of(_shown_units, st.just("X "), st.just("[X](https://example.org/)")), max_size=300))
def test_every_word_is_kept(pieces: list[str]) -> None:
    text = "".join(pieces)

    assert markup.plain(text).count("X") == text.count("X")
