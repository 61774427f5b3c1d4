"""Text from elsewhere (answers, skills, problems) as it may stand on a terminal, and rows of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from torana.web.visible import escape, escape_hidden

#: Columns in which everything has room.
_ENDLESS = 10_000

_LINE_ENDS = re.compile(r"[\n\t]")


def printable(text: str) -> str:
    """The text with escapes for what could steer the terminal or is not shown; tabs and line feeds stay."""
    return escape_hidden(text)


def on_one_line(text: str) -> str:
    """Return ``printable`` text with escapes for tabs and line feeds, too: it cannot look like two lines."""
    return _LINE_ENDS.sub(lambda found: escape(found[0]), printable(text))


def indented(text: str, by: int) -> str:
    """Return ``printable`` text whose lines, except for the first, begin with so many spaces."""
    return printable(text).replace("\n", "\n" + " " * by)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print a line for each field; further lines of a value stand below its first one."""
    for name, value in fields.items():
        typer.echo(f"{name:10} {'-' if value is None else indented(str(value), by=11)}")


def print_table(table: Table) -> None:
    """A table: folded on a terminal, elsewhere with a line for each row."""
    if sys.stdout.isatty():
        Console(markup=False, highlight=False, emoji=False).print(table)
    else:
        _print_whole(table)


def print_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table with a line for each row; on a terminal too narrow for it, a line for each cell.

    Nothing is cut off: ids are there to be copied, and without a terminal a line is there to be searched.
    """
    cells = [[Text(on_one_line(cell)) for cell in row] for row in rows]
    table = Table(*(Column(head, no_wrap=True) for head in heads), box=None, pad_edge=False)
    for row in cells:
        table.add_row(*row)
    console = Console(highlight=False)
    wide = console.options.update(width=_ENDLESS)
    needed = Measurement.get(console, wide, table).maximum
    if not sys.stdout.isatty() or needed <= console.width:
        _print_whole(table)
        return
    first = max(map(len, heads))
    for row in cells:
        lines = (f"{head:{first}}  {cell.plain}" for head, cell in zip(heads, row, strict=True))
        typer.echo("\n".join(lines) + "\n")


def _print_whole(table: Table) -> None:
    """A table with a line for each row, however long; no line is filled up to the longest one."""
    console = Console(markup=False, highlight=False, emoji=False, width=_ENDLESS)
    with console.capture() as lines:
        console.print(table)
    typer.echo("\n".join(line.rstrip(" ") for line in lines.get().split("\n")), nl=False)
