"""Query a CSV table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Literal

from torana.tools.base import ToolError, counted, tool

Aggregate = Literal["", "count", "sum", "mean", "min", "max"]
Row = Mapping[str, str]

#: The maximum lengths of a table and of a condition, and the maximum number of rows of an answer.
CSV_LIMIT = 100_000
CONDITION_LIMIT = 500
ROWS_LIMIT = 200
#: Significant digits of a mean.
MEAN_DIGITS = 15

_SEPARATORS = (",", ";", "\t", "|")
_CONDITION = re.compile(r"(?P<column>.+?)(?P<sign>!=|<=|>=|=|<|>|\bcontains\b)\s*(?P<value>.*)", re.DOTALL)
_QUOTED = re.compile(r"(['\"])(?P<value>(?:(?!\1).)*)\1", re.DOTALL)
# Parts of an unquoted value that indicate a second condition or an unsupported operator.
_MORE = re.compile(r"[<>=]|\bcontains\b|\sor\s", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?|\.\d+)")
# The allowed order of the left value relative to the right: below (-1), equal (0), above (1).
_ORDERS = {"=": {0}, "!=": {-1, 1}, "<": {-1}, "<=": {-1, 0}, ">": {1}, ">=": {0, 1}}


@tool(idempotent=True)
def query_csv(
    text: str,
    select: list[str] | None = None,
    where: str = "",
    aggregate: Aggregate = "",
    column: str = "",
    group_by: str = "",
) -> str:
    """Pick rows and columns of a CSV table, or count, sum, average them or find the smallest or largest value.

    The first line names the columns; comma, semicolon, tab or | separates them. Numbers are added exactly.

    Args:
        text: The table, at most 100,000 characters.
        select: Columns of the answer; all when left out.
        where: One condition, such as "city = Paris", "price >= 10" or "name contains an". Two numbers are
            compared as numbers, other values as text regardless of case; a cell without digits is neither less
            nor more than a number. Quote a value that contains a sign or "or".
        aggregate: The aggregate to compute instead of showing rows.
        column: The column to aggregate; not needed for "count".
        group_by: A column; the answer has one line for each of its values.
    """
    table = _table(text)
    rows = _filter_rows(table, where)
    if aggregate:
        return _aggregate_rows(table, rows, aggregate, column, group_by)
    if column or group_by:
        raise ToolError("`column` and `group_by` need an `aggregate`: count, sum, mean, min or max.")
    if select and len(select) > len(table.header):
        raise ToolError(
            f"`select` names {len(select):,} of {len(table.header):,} columns; name each column at most once."
        )
    return _format_rows([table.column(name) for name in select or table.header], rows)


@dataclass(frozen=True, slots=True)
class _Table:
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    #: The columns' names by their case-folded names.
    spellings: Mapping[str, str]

    def column(self, name: str) -> str:
        """Return the column's name as in the table. Raises ``ToolError`` for an unknown column."""
        wanted = name.strip().strip("\"'`").casefold()
        if wanted in self.spellings:
            return self.spellings[wanted]
        raise ToolError(
            f"There is no column “{name.strip()[:60]}”; the columns are {_list_columns(self.header)}."
        )


def _list_columns(header: Sequence[str]) -> str:
    return ", ".join(header[:20]) + ("…" if len(header) > 20 else "")


def _table(text: str) -> _Table:
    if len(text) > CSV_LIMIT:
        raise ToolError(f"The table has {len(text):,} characters; send at most {CSV_LIMIT:,}.")
    source = text.lstrip("\ufeff").strip("\r\n")
    separator = max(_SEPARATORS, key=source.partition("\n")[0].count)
    lines = csv.reader(io.StringIO(source, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    try:
        header, *rows = [[cell.strip() for cell in line] for line in lines if any(map(str.strip, line))]
    except csv.Error as error:
        raise ToolError(f"This is not CSV: {error}. Close every quote.") from None
    except ValueError:
        raise ToolError("The table is empty; its first line must name the columns.") from None
    spellings = {name.casefold(): name for name in header}
    _refuse_ragged(header, rows, spellings)
    return _Table(tuple(header), tuple(dict(zip(header, row, strict=True)) for row in rows), spellings)


def _refuse_ragged(header: list[str], rows: list[list[str]], spellings: Mapping[str, str]) -> None:
    if len(spellings) < len(header):
        raise ToolError(f"Two columns have the same name: {_list_columns(header)}; rename one.")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ToolError(
                f"Row {number} has {len(row)} cells but the first line names {len(header)} columns; "
                "quote cells that contain the separator."
            )


def _filter_rows(table: _Table, where: str) -> list[Row]:
    if not where.strip():
        return list(table.rows)
    match = _CONDITION.fullmatch(where.strip()) if len(where) <= CONDITION_LIMIT else None
    if match is None:
        raise ToolError("A condition reads “column = value”, with =, !=, <, <=, >, >= or contains.")
    column, sign, value = table.column(match["column"]), match["sign"], _value(match["value"])
    number = _number(value)
    return [row for row in table.rows if _holds(row[column], sign, value, number, column)]


def _value(text: str) -> str:
    """Return the value to compare with. Raises ``ToolError`` if another condition follows it."""
    if quoted := _QUOTED.fullmatch(text):
        return quoted["value"]
    if _MORE.search(text):
        raise ToolError(f"There can be one condition only; if “{text[:60]}” is a value, quote it.")
    return text.strip("\"'")


def _holds(cell: str, sign: str, value: str, number: Decimal | None, column: str) -> bool:
    """Return whether a cell meets a condition. ``number`` is the condition's value if it is a number."""
    left, right = cell.casefold(), value.casefold()
    if sign == "contains":
        return right in left
    own = None if number is None else _number(cell)
    if own is not None and number is not None:
        order = (own > number) - (own < number)
    elif number is None or sign in ("=", "!="):
        order = (left > right) - (left < right)
    elif re.search(r"\d", cell):
        raise ToolError(
            f"“{cell[:60]}” in the column {column} is not a number, so it cannot be compared with {value}."
        )
    else:
        return False
    return order in _ORDERS[sign]


def _number(cell: str) -> Decimal | None:
    """Parse a plain decimal number, in which commas may separate thousands."""
    return Decimal(cell.replace(",", "")) if _NUMBER.fullmatch(cell) else None


def _aggregate_rows(table: _Table, rows: list[Row], aggregate: Aggregate, column: str, group_by: str) -> str:
    source = table.column(column) if column or aggregate != "count" else ""
    label = f"{aggregate} of {source}" if source else "count"
    if not group_by:
        return f"{label} = {_worked_out(rows, aggregate, source)} ({counted(len(rows), 'row')})"
    key = table.column(group_by)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    lines = [{key: value, label: _worked_out(group, aggregate, source)} for value, group in groups.items()]
    return _format_rows([key, label], lines)


def _worked_out(rows: list[Row], aggregate: Aggregate, column: str) -> str:
    if aggregate == "count":
        return str(sum(1 for row in rows if not column or row[column]))
    numbers = [_required_number(row[column], column) for row in rows if row[column]]
    if not numbers:
        return "0" if aggregate == "sum" else "nothing"
    match aggregate:
        case "min":
            result = min(numbers)
        case "max":
            result = max(numbers)
        case "mean":
            result = Context(prec=MEAN_DIGITS).divide(_sum(numbers), Decimal(len(numbers)))
        case _:
            result = _sum(numbers)
    return format(result, "f")


def _sum(numbers: Sequence[Decimal]) -> Decimal:
    # The whole table has fewer digits than this, so a sum needs no more.
    with localcontext(Context(prec=2 * CSV_LIMIT)):
        return sum(numbers, Decimal(0))


def _required_number(cell: str, column: str) -> Decimal:
    number = _number(cell)
    if number is None:
        raise ToolError(
            f"“{cell[:60]}” in the column {column} is not a number; leave such rows out with `where`."
        )
    return number


def _format_rows(columns: Sequence[str], rows: Sequence[Row]) -> str:
    if not rows:
        return "No row fits."
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[column] for column in columns] for row in rows[:ROWS_LIMIT])
    left = len(rows) - ROWS_LIMIT
    return out.getvalue() + (f"(and {left:,} more rows)" if left > 0 else f"({counted(len(rows), 'row')})")
