"""Printing rows to a terminal and to other outputs."""

from __future__ import annotations

import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest
from rich.cells import cell_len

from torana.cli.tables import print_rows, shorten

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

HEADS = ("turn", "state", "message", "error")
TEXTS = ("message", "error")
ONE, TWO = ("turn_" + digit * 32 for digit in "12")
#: A letter with an accent, in one cell.
ACCENTED = "e\u0301"


def printed(
    monkeypatch: Patch, capsys: Capture, *rows: tuple[str, ...], columns: int, tty: bool = True
) -> list[str]:
    """Return the lines of a table with these rows, on a terminal of this width or in a pipe."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    print_rows(HEADS, rows, texts=TEXTS)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("tty", [True, False])
def test_columns_that_fit_are_aligned(monkeypatch: Patch, capsys: Capture, tty: bool) -> None:
    assert printed(monkeypatch, capsys, (ONE, "failed", "hi", "no"), columns=80, tty=tty) == [
        f"turn{' ' * 33}  state   message  error",
        f"{ONE}  failed  hi       no",
    ]


def test_texts_are_shortened_and_columns_continue_on_narrow_terminals(
    monkeypatch: Patch, capsys: Capture
) -> None:
    row = (ONE, "failed", "what is the capital of France? " * 3, "no credit " * 9)
    assert printed(monkeypatch, capsys, row, columns=80) == [
        f"turn{' ' * 33}  state   message",
        "  error",
        f"{ONE}  failed  what is the capital of France? w…",
        f"  {'no credit ' * 7}no cred…",
    ]


def test_texts_share_a_line(monkeypatch: Patch, capsys: Capture) -> None:
    row = (ONE, "failed", "a" * 100, "b" * 100)
    _, line = printed(monkeypatch, capsys, row, columns=110)
    assert line == f"{ONE}  failed  {'a' * 29}…  {'b' * 30}…"


def test_ids_are_never_cut(monkeypatch: Patch, capsys: Capture) -> None:
    lines = printed(monkeypatch, capsys, (ONE, "failed", "hi", "no"), columns=20)
    assert lines == ["turn", "  state   message", "  error", ONE, "  failed  hi", "  no"]


def test_piped_rows_are_whole_and_not_padded_to_the_longest_text(monkeypatch: Patch, capsys: Capture) -> None:
    long = "word " * 40 + "end"
    rows = [(ONE, "failed", long, "no"), (TWO, "completed", "hi", "-")]
    lines = printed(monkeypatch, capsys, *rows, columns=20, tty=False)
    assert lines[1] == f"{ONE}  failed     {long}  no"
    assert lines[2] == f"{TWO}  completed  hi{' ' * 38}  -"


def test_width_of_characters_is_counted_in_cells(monkeypatch: Patch, capsys: Capture) -> None:
    rows = [(ONE, "failed", "東京の天気" * 9, "no"), (TWO, "failed", ACCENTED * 90, "-")]
    lines = printed(monkeypatch, capsys, *rows, columns=80)
    assert max(map(cell_len, lines)) <= 80
    assert lines[1:] == [
        f"{ONE}  failed  東京の天気東京の天気東京…   no",
        f"{TWO}  failed  {ACCENTED * 25}…  -",
    ]


def test_shortened_text_ends_before_a_wide_character_that_does_not_fit() -> None:
    assert shorten("東京", 4) == "東京"
    assert shorten("東京の", 4) == "東…"
    assert shorten("東京の", 1) == "…"


@pytest.mark.parametrize(("columns", "tty"), [(120, True), (120, False), (20, True)])
def test_control_characters_of_a_cell_are_escaped(
    monkeypatch: Patch, capsys: Capture, columns: int, tty: bool
) -> None:
    rows = [
        ("turn_1", "ok", "hi\nturn_2  ok", "[red]\x1b[31m\x07"),
        ("turn_3", "ok", "\u202ehi", "a\u2028turn_4\x85turn_5\rb"),
    ]
    lines = printed(monkeypatch, capsys, *rows, columns=columns, tty=tty)
    assert all(char.isprintable() for line in lines for char in line)
    assert not [line for line in lines if line.startswith(("turn_2", "turn_4", "turn_5"))]
    assert len(lines) == (9 if columns == 20 else 3)
    assert columns == 20 or "[red]\\x1b[31m\\x07" in lines[1]


def test_table_fits_the_window_of_a_terminal() -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    script = (
        "from torana.cli.tables import print_rows\n"
        f"print_rows({HEADS}, [({ONE!r}, 'failed', 'long ' * 99, 'no')], texts={TEXTS})\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    subprocess.run([sys.executable, "-c", script], env=environ, stdout=theirs, timeout=60, check=True)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        lines = terminal.read1().decode().splitlines()
    assert lines[2:] == [f"{ONE}  failed", f"  {'long ' * 7}long…   no"]
