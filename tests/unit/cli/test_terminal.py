"""Rows on a terminal, and without one."""

from __future__ import annotations

import sys

import pytest

from torana.cli.terminal import print_rows

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
def test_a_row_is_a_whole_line_where_it_fits_or_nothing_is_folded(
    monkeypatch: Patch, capsys: Capture, columns: int, tty: bool
):
    head, first, second = printed(monkeypatch, capsys, columns=columns, tty=tty).splitlines()
    assert second == second.rstrip()
    assert "token" in head
    assert "user" in head
    assert first.split() == [ROWS[0][0], "[red]ana\\x1b"]
    assert second.split() == list(ROWS[1])


def test_on_a_narrow_terminal_a_cell_is_a_whole_line(monkeypatch: Patch, capsys: Capture):
    assert printed(monkeypatch, capsys, columns=20, tty=True) == (
        f"token  {ROWS[0][0]}\nuser   [red]ana\\x1b\n\ntoken  {ROWS[1][0]}\nuser   -\n\n"
    )
