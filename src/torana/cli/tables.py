"""Print rows of untrusted text as a table that fits the terminal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import typer

from torana.cli.terminal import on_one_line

#: The spaces between two columns, and before the further lines of a row.
_GAP = "  "
#: The cells of the terminal in which a shortened text is still useful.
_LEAST = 24
#: The cells to which a text is padded where it is not shortened.
_PADDED = 40
#: The characters of an excerpt.
_EXCERPT = 60

Cells = Sequence[str]


def print_list(
    document: Mapping[str, Any],
    heads: Cells,
    rows: Iterable[Cells],
    *,
    empty: str,
    texts: Collection[str] = (),
    as_json: bool,
) -> None:
    """Print a document with ``items``: as JSON, or as a table of the rows; without items, print ``empty``."""
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    elif document["items"]:
        print_rows(heads, rows, texts=texts)
    else:
        typer.echo(empty)


def print_rows(heads: Cells, rows: Iterable[Cells], *, texts: Collection[str] = ()) -> None:
    """Print a table with a line for each row.

    On a terminal that is too narrow, the columns named by ``texts`` are shortened, and further columns continue
    on indented lines. Nothing else is cut off, so that ids can be copied and lines can be searched.
    """
    table = [heads, *([on_one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(_cells, column)) for column in zip(*table, strict=True)]
    flexible = [head in texts for head in heads]
    fits = sys.stdout.isatty()
    if fits:
        lines = _arrange(widths, flexible, shutil.get_terminal_size().columns)
    else:
        padded = (min(size, _PADDED) if text else size for size, text in zip(widths, flexible, strict=True))
        lines = [list(enumerate(padded))]
    for row in table:
        for number, columns in enumerate(lines):
            cells = [(shorten(row[one], size) if fits else row[one], size) for one, size in columns]
            line = _GAP.join(cell + " " * (size - _cells(cell)) for cell, size in cells)
            typer.echo(f"{_GAP if number else ''}{line}".rstrip())


def excerpt(text: str) -> str:
    """Return the beginning of a text, on one line."""
    return " ".join(text.split())[:_EXCERPT]


def shorten(text: str, width: int) -> str:
    """Return the text, or its beginning and an ellipsis if it is wider."""
    from rich.cells import set_cell_size

    return text if _cells(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def _arrange(widths: Sequence[int], flexible: Sequence[bool], width: int) -> list[list[tuple[int, int]]]:
    """Return the lines of a row: their columns, each with its width."""
    lines: list[list[int]] = [[]]
    used = 0
    for column, size in enumerate(widths):
        needed = min(size, _LEAST) if flexible[column] else size
        if lines[-1] and used + needed > width:
            lines.append([])
            used = len(_GAP)
        used += needed + len(_GAP)
        lines[-1].append(column)
    return [
        _share(columns, widths, flexible, width - (len(_GAP) if number else 0))
        for number, columns in enumerate(lines)
    ]


def _share(
    columns: Sequence[int], widths: Sequence[int], flexible: Sequence[bool], width: int
) -> list[tuple[int, int]]:
    """Return the columns of a line with their widths; the flexible ones share what the others leave."""
    left = width - len(_GAP) * (len(columns) - 1) - sum(widths[one] for one in columns if not flexible[one])
    texts = sorted((one for one in columns if flexible[one]), key=lambda one: widths[one])
    sizes = {one: widths[one] for one in columns}
    for number, one in enumerate(texts):
        sizes[one] = min(widths[one], max(1, left // (len(texts) - number)))
        left -= sizes[one]
    return list(sizes.items())


def _cells(text: str) -> int:
    # Imported here so that the help of a command is printed at once.
    from rich.cells import cell_len

    return cell_len(text)
