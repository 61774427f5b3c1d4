"""The digest of a call, and the displayed form of its arguments."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from html import unescape

import pytest
from markdown_it import MarkdownIt

from torana.connectors.base import Capabilities
from torana.connectors.transport import markup
from torana.connectors.transport.splitting import split
from torana.store.rows.approval_questions import arguments_text, call_digest, question_after, question_text


def test_digest_is_computed_from_canonical_json() -> None:
    digest = call_digest("pay", {"to": "ana é", "amount": 5})

    canonical = b'{"arguments":{"amount":5,"to":"ana \\u00e9"},"tool":"pay"}'
    assert digest == f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    assert call_digest("pay", {"amount": 5, "to": "ana é"}) == digest


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("play", {"amount": 5}),
        ("pay", {"amount": 6}),
        ("pay", {"amount": "5"}),
        ("pay", {}),
        ("pay", {"Amount": 5}),
    ],
)
def test_different_calls_have_different_digests(tool: str, arguments: dict[str, object]) -> None:
    assert call_digest(tool, arguments) != call_digest("pay", {"amount": 5})


def test_invisible_characters_are_escaped() -> None:
    tag, private = "\U000e0001", "\ue0001"

    assert arguments_text({"a\nb": "\x1b[2J\u202e é"}) == '{\n "a\\nb": "\\u001b[2J\\u202e é"\n}'
    assert arguments_text({"a": tag}) != arguments_text({"a": private})


@pytest.mark.parametrize(
    "blank",
    [
        *("\u3164", "\u115f", "\u2800", "\u2d7f", "\ufffc", "\U0001107f", "\U00016fe4", "\U0001d159"),
        *("\U000e0100", "\ufe0f\ufe0e", "\ufe00", "\ufe0f", "\u180b", "\u180f"),
    ],
    ids=lambda blank: blank.encode("unicode_escape").decode(),
)
def test_blank_characters_are_escaped(blank: str) -> None:
    shown = arguments_text({"to": f"ana{blank}@example.org"})

    assert blank not in shown
    assert json.loads(shown) == {"to": f"ana{blank}@example.org"}


@pytest.mark.parametrize(
    "text", ["\u2764\ufe0f", "1\ufe0f\u20e3", "\u1820\u180b"], ids=["heart", "key", "mongolian"]
)
def test_characters_with_a_variation_selector_stay(text: str) -> None:
    assert arguments_text({"to": text}) == f'{{\n "to": "{text}"\n}}'


@pytest.mark.parametrize("selector", ["\ufe01", "\u180b", "\ufe0f"], ids=["fe01", "180b", "fe0f"])
def test_further_selectors_are_escaped(selector: str) -> None:
    shown = arguments_text({"to": f"\u2764\ufe0f{selector}\u1820\u180b{selector}"})

    assert selector * 2 not in shown
    assert shown.count("\\u") == 2


@pytest.mark.parametrize("values", [1, 300])
def test_gaps_between_words_are_escaped(values: int) -> None:
    arguments = {"code": "if a:\n" + " " * 24 + "b" + " " * 25 + "c", "of": [0] * values, "to": " " * 60_000}
    for some in (arguments, {**arguments, "to": ""}):
        shown = arguments_text(some)

        assert json.loads(shown) == some
        assert " " * 24 + "b" + "\\u0020" * 25 + "c" in shown
        assert " " * 25 not in shown


def test_text_of_arguments_is_exact() -> None:
    numbers = [2**53 + 1, -(10**30), 0.1 + 0.2, 1.0]

    assert '"of": 9007199254740993' in arguments_text({"of": 2**53 + 1})
    assert json.loads(arguments_text({"of": numbers}), parse_int=str) == {
        "of": ["9007199254740993", "-1000000000000000000000000000000", 0.30000000000000004, 1.0]
    }


def test_very_long_arguments_are_exact_and_in_ascii() -> None:
    arguments = {"text": "\u200b\u00e9" * 30_000}

    shown = arguments_text(arguments)

    assert shown.isascii()
    assert json.loads(shown) == arguments


def test_many_values_are_on_one_line() -> None:
    assert arguments_text({"of": ["a, b"] * 100}).count("\n") == 103
    assert "\n" not in arguments_text({"of": [0] * 200})


def test_questions_differ_when_only_the_cut_text_differs() -> None:
    first, second = [question_text("pay", {"to": "x" * 2_000 + end}) for end in "ab"]

    assert first != second
    assert call_digest("pay", {"to": "x" * 2_000 + "a"}) in first


def test_arguments_are_cut_before_they_are_escaped() -> None:
    question = question_text("pay", {"to": "x" * 1_500 + "\u200b" * 1_000})

    assert "… (1013 more characters)" in question


def test_question_is_cut_also_if_escapes_make_it_long() -> None:
    question = question_text("pay", {"to": "\u200b" * 1_000})

    assert 1_500 < len(question) < 1_800
    assert "more characters)" in question


@pytest.mark.parametrize(
    "before", ["", "```", "Output:\n\n   ````py\nx", "~~~", "```\n~~~", "- a\n  ```\n```", "~~~\nx\n~~~\n```"]
)
@pytest.mark.parametrize("marks", ["", "```", "~~~", "`" * 300, "~" * 300])
def test_arguments_are_code_after_any_reply(before: str, marks: str) -> None:
    arguments = {"to": f"{marks} [hello](https://example.com 'and more')"}

    tokens = MarkdownIt().parse(question_after(before, "pay", arguments))

    code = next(token for token in reversed(tokens) if token.type == "fence")
    assert "[hello](https://example.com 'and more')" in code.content


@pytest.mark.parametrize("mark", ["1)", "2.", "-", "*", "+", ">"])
@pytest.mark.parametrize("render", [markup.plain, markup.telegram, markup.slack, markup.discord])
def test_list_marks_in_arguments_are_shown(render: Callable[[str], str], mark: str) -> None:
    marks = " ".join([mark] * 200)
    for length in range(700, 780, 9):
        abilities = Capabilities(
            length=4_000, repeat="keyed", render=render, measure=lambda text: len(text.encode())
        )

        parts = split(question_text("pay", {"to": f"{'&' * length} {marks} end"}), abilities)

        shown = [re.sub(r"```|</?(pre|code)[^>]*>", "", unescape(render(part))) for part in parts]
        assert "".join(f"{marks} end".split()) in "".join("".join(shown).replace("\u2060", "").split())
