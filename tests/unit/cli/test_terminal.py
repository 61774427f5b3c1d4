"""Printing untrusted text to a terminal."""

from __future__ import annotations

import io
import os
import sys
import termios

import pytest

from torana.cli.chat.output import MarkdownOutput
from torana.cli.commands.setup.questions import OnTerminal
from torana.cli.terminal import indented, marked, on_one_line, print_fields, printable

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

#: Control characters, line separators, direction marks, and zero-width characters.
HIDDEN = [
    *map(chr, [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)]),
    *"\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069",
    *"\u00ad\u034f\u115f\u180e\u3164\ufeff\ufff9\U000e0041\U000e0100",
]


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_hidden_characters_are_escaped(hidden: str) -> None:
    code = hidden.encode("unicode_escape").decode()
    for escaped in (printable, on_one_line):
        assert escaped(f"a{hidden}b") == f"a{code}b"


@pytest.mark.parametrize(
    "text", ["José", "日本語", "नमस्ते", "می\u200cخواهم", "👩\u200d💻", "❤\ufe0f", "\\x1b", "𐍈"]
)
def test_text_of_any_language_is_unchanged(text: str) -> None:
    assert printable(text) == on_one_line(text) == text


def test_each_row_of_a_quoted_text_begins_with_a_mark(monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "8")

    assert marked("abcdefgh\n\n日本語日本\x1b").split("\n") == [
        "│ abcdef",
        "│ gh",
        "│ ",
        "│ 日本語",
        "│ 日本\\x",
        "│ 1b",
    ]


@pytest.mark.parametrize("character", ["\U0001f3fb", "\U0001f1e6", "\u0301", "Ж"])
def test_terminals_that_measure_characters_differently_wrap_no_marked_row(
    monkeypatch: Patch, character: str
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    assert marked(character * 20).split("\n") == [f"│ {character * 9}"] * 2 + [f"│ {character * 2}"]


def test_marked_rows_fit_the_terminal_if_only_standard_error_is_one(monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 30))

    with os.fdopen(theirs, "w") as stderr, os.fdopen(ours):
        monkeypatch.setattr(sys, "stderr", stderr)
        rows = marked("x" * 60).split("\n")

    assert rows == [f"│ {'x' * 28}"] * 2 + ["│ xxxx"]


def test_tabs_of_a_quoted_text_become_spaces(monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "8")

    assert marked("a\tb").split("\n") == ["│ a     ", "│   b"]


def test_consecutive_joiners_are_escaped() -> None:
    assert printable("a\u200c\u200db") == r"a\u200c\u200db"


def test_newlines_and_tabs_are_escaped_only_on_one_line() -> None:
    assert printable("a\n\tb") == "a\n\tb"
    assert on_one_line("a\n\tb") == r"a\n\tb"
    assert indented("a\nb\x1b", by=2) == "a\n  b\\x1b"


def test_continuation_lines_of_a_field_are_indented(capsys: Capture) -> None:
    print_fields({"state": "failed", "content": "hello\nstate      completed", "reply": None})
    assert capsys.readouterr().out.splitlines() == [
        "state      failed",
        "content    hello",
        "           state      completed",
        "reply      -",
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<https://a/%1b]52;c;eA==%1b%5c%E2%80%AE%9b>", id="address of a link"),
        pytest.param("a &#x202e;b &#8203;c &#x2028;d &#13;e &#xE0041;f &zwj;&zwnj;", id="entities"),
        pytest.param(
            "# &#x202e;a\n\n- &#x202e;b\n\n| &#x202e;c |\n|-|\n| &#x202e;d |\n\n> &#x202e;e", id="blocks"
        ),
        pytest.param("![&#x202e;a](<b&#x202e;>)\n\n[a](<b&#x202e;> '&#x202e;c')", id="pictures and links"),
    ],
)
def test_markdown_does_not_decode_control_characters(capsys: Capture, text: str) -> None:
    output = MarkdownOutput()
    output.add(text)
    output.finish()
    printed = capsys.readouterr().out
    assert printed.strip()
    assert not [char for char in printed if char != "\n" and not char.isprintable()]


def test_default_of_a_question_is_escaped(capsys: Capture, monkeypatch: Patch) -> None:
    """A server's list of models can contain any text; the first model is the default."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    hostile = "gpt\x1b]52;c;eA==\x07\u202e"
    assert OnTerminal().choose("Which model?", {hostile: ""}, default=hostile, flag="--model") == hostile
    printed = capsys.readouterr().out
    assert "gpt" in printed
    assert not {"\x1b", "\x07", "\u202e"} & set(printed)
