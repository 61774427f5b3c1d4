"""Text from elsewhere (answers, skills, problems) as it may stand on a terminal, and rows of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with escapes for what could steer the terminal; tabs and line ends stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def print_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table with a line for each row; on a terminal too narrow for it, a line for each cell.

    Nothing is cut off: ids are there to be copied, and without a terminal a line is there to be searched.
    """
    cells = [[Text(printable(cell)) for cell in row] for row in rows]
    table = Table(*(Column(head, no_wrap=True) for head in heads), box=None, pad_edge=False)
    for row in cells:
        table.add_row(*row)
    console = Console(highlight=False)
    wide = console.options.update(width=10_000)
    needed = Measurement.get(console, wide, table).maximum
    if not sys.stdout.isatty() or needed <= console.width:
        Console(highlight=False, width=max(needed, console.width)).print(table)
        return
    first = max(map(len, heads))
    for row in cells:
        lines = (f"{head:{first}}  {cell.plain}" for head, cell in zip(heads, row, strict=True))
        typer.echo("\n".join(lines) + "\n")
