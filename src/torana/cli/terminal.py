"""Print untrusted text (answers, skills, errors) safely on a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from torana.characters import escape, escape_hidden

if TYPE_CHECKING:
    from rich.table import Table

#: A width at which no cell is wrapped.
_UNLIMITED_WIDTH = 10_000

#: The beginning of each row of a quoted text.
_MARK = "│ "

_LINE_ENDS = re.compile(r"[\n\t]")


def printable(text: str) -> str:
    """Return the text with control and invisible characters escaped; tabs and line feeds stay."""
    return escape_hidden(text)


def on_one_line(text: str) -> str:
    """Return ``printable`` text with tabs and line feeds escaped too, so that it stays on one line."""
    return _LINE_ENDS.sub(lambda found: escape(found[0]), printable(text))


def indented(text: str, by: int) -> str:
    """Return ``printable`` text with all lines but the first indented by this number of spaces."""
    return printable(text).replace("\n", "\n" + " " * by)


def marked(text: str) -> str:
    """Return the text in rows that fit the terminal, each behind a mark.

    Untrusted text thus cannot imitate other output, even if it fills the whole screen.
    """
    columns = _columns() - len(_MARK)
    lines = printable(text).expandtabs().split("\n")
    return "\n".join(f"{_MARK}{row}" for line in lines for row in _rows(line, columns))


def _columns() -> int:
    """Return the width of the terminal, also if only standard error is one, or ``COLUMNS`` if that is less."""
    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    widths = [os.get_terminal_size(terminal).columns for terminal in terminals]
    return min([shutil.get_terminal_size().columns, *filter(None, widths)])


def _rows(line: str, columns: int) -> Iterator[str]:
    """Yield the line in rows that no terminal wraps.

    Terminals measure emoji, combining marks and ambiguous characters differently, but none gives a character
    more than two columns.
    """
    row, left = "", columns
    for character in line:
        width = 1 if character.isascii() else 2
        if width > left and row:
            yield row
            row, left = "", columns
        row += character
        left -= width
    yield row


def print_result(line: str, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result of a change: the document as JSON, or else the line."""
    typer.echo(json.dumps(document, indent=2) if as_json else on_one_line(line))


def print_document(document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a document as JSON, or a line for each of its fields."""
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        print_fields(document)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print a line for each field; indent further lines of a value."""
    for name, value in fields.items():
        typer.echo(f"{name:10} {'-' if value is None else indented(str(value), by=11)}")


def print_table(table: Table) -> None:
    """Print a table: folded on a terminal, otherwise with a line for each row."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console(markup=False, highlight=False, emoji=False).print(table)
    else:
        _print_whole(table)


def _print_whole(table: Table) -> None:
    """Print a table with a line for each row, without padding to the longest line."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False, width=_UNLIMITED_WIDTH)
    with console.capture() as lines:
        console.print(table)
    typer.echo("\n".join(line.rstrip(" ") for line in lines.get().split("\n")), nl=False)
