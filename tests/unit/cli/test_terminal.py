"""Printing rows to a terminal and to other outputs."""

from __future__ import annotations

import io
import sys

import pytest

from torana.cli.chat.output import MarkdownOutput
from torana.cli.commands.setup.questions import OnTerminal
from torana.cli.terminal import indented, on_one_line, print_fields, print_rows, printable

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

HEADS = ("token", "user")
ROWS = [("tok_" + "1" * 40, "[red]ana\x1b"), ("tok_" + "2" * 40, "-")]


def printed(monkeypatch: Patch, capsys: Capture, *, columns: int, tty: bool) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    print_rows(HEADS, ROWS)
    return capsys.readouterr().out


@pytest.mark.parametrize(("columns", "tty"), [(80, True), (80, False), (20, False)])
def test_row_is_one_line_where_it_fits_or_output_is_no_terminal(
    monkeypatch: Patch, capsys: Capture, columns: int, tty: bool
):
    head, first, second = printed(monkeypatch, capsys, columns=columns, tty=tty).splitlines()
    assert second == second.rstrip()
    assert "token" in head
    assert "user" in head
    assert first.split() == [ROWS[0][0], "[red]ana\\x1b"]
    assert second.split() == list(ROWS[1])


def test_narrow_terminal_gets_one_line_per_cell(monkeypatch: Patch, capsys: Capture):
    assert printed(monkeypatch, capsys, columns=20, tty=True) == (
        f"token  {ROWS[0][0]}\nuser   [red]ana\\x1b\n\ntoken  {ROWS[1][0]}\nuser   -\n\n"
    )


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


def test_consecutive_joiners_are_escaped() -> None:
    assert printable("a\u200c\u200db") == r"a\u200c\u200db"


def test_newlines_and_tabs_are_escaped_only_on_one_line() -> None:
    assert printable("a\n\tb") == "a\n\tb"
    assert on_one_line("a\n\tb") == r"a\n\tb"
    assert indented("a\nb\x1b", by=2) == "a\n  b\\x1b"


@pytest.mark.parametrize(("columns", "tty"), [(80, True), (80, False), (20, True)])
def test_newline_in_a_cell_is_escaped(monkeypatch: Patch, capsys: Capture, columns: int, tty: bool) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    print_rows(HEADS, [("tok_1", "ana\ntok_2  root"), ("tok_3", "bob\u2028tok_4\x85tok_5\rtok_6")])
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith(("tok_2", "tok_4", "tok_5", "tok_6"))]
    assert len([line for line in lines if line]) == (4 if columns == 20 else 3)


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
