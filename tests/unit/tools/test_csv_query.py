from __future__ import annotations

import csv
import io
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.tools.base import ToolError
from torana.tools.builtin.csv_query import Aggregate, query_csv

SALES = (
    'name,city,amount,on\nAna,Paris,0.1,2026-01-05\nBob,Rome,0.2,2026-02-01\n\nCy,paris,"1,200.50",2026-03-01\n'
)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({"select": ["NAME"]}, "name\nAna\nBob\nCy\n(3 rows)"),
        ({"where": "city = Paris", "select": ["name"]}, "name\nAna\nCy\n(2 rows)"),
        ({"where": "city != 'Paris'", "select": ["name", "amount"]}, "name,amount\nBob,0.2\n(1 row)"),
        ({"where": "amount >= 0.2", "select": ["name"]}, "name\nBob\nCy\n(2 rows)"),
        ({"where": "amount < 1000", "select": ["name"]}, "name\nAna\nBob\n(2 rows)"),
        ({"where": "on > 2026-01-31", "select": ["name"]}, "name\nBob\nCy\n(2 rows)"),
        ({"where": "name contains a", "select": ["name"]}, "name\nAna\n(1 row)"),
        ({"where": "city = Oslo"}, "No row fits."),
        ({"where": "city = 'x > 1'"}, "No row fits."),
        ({"aggregate": "sum", "column": "amount"}, "sum of amount = 1200.80 (3 rows)"),
        ({"aggregate": "mean", "column": "amount", "where": "amount < 1"}, "mean of amount = 0.15 (2 rows)"),
        ({"aggregate": "min", "column": "amount"}, "min of amount = 0.1 (3 rows)"),
        ({"aggregate": "max", "column": "amount"}, "max of amount = 1200.50 (3 rows)"),
        ({"aggregate": "count"}, "count = 3 (3 rows)"),
        ({"aggregate": "sum", "column": "amount", "where": "city = Oslo"}, "sum of amount = 0 (0 rows)"),
        ({"aggregate": "min", "column": "amount", "where": "city = Oslo"}, "min of amount = nothing (0 rows)"),
        ({"aggregate": "count", "group_by": "city"}, "city,count\nParis,1\nRome,1\nparis,1\n(3 rows)"),
    ],
)
def test_csv_questions_are_answered(question: dict[str, Any], answer: str) -> None:
    assert query_csv(SALES, **question) == answer


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("n < 10", ["5"]),
        ("n <= 10", ["5"]),
        ("n > 1", ["5"]),
        ("n >= 1", ["5"]),
        ("n != 5", ["", "n/a"]),
        ("n =", [""]),
    ],
)
def test_comparisons_skip_cells_that_are_not_numbers(where: str, kept: list[str]) -> None:
    answer = query_csv("n;x\n;1\nn/a;1\n5;1", where=where, select=["n"])
    assert [line.strip('"') for line in answer.splitlines()[1:-1]] == kept


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separator_is_detected(separator: str) -> None:
    table = f"\ufeffa{separator}b\r\n1{separator}2\r\n"
    assert query_csv(table, aggregate="sum", column="b") == "sum of b = 2 (1 row)"


@pytest.mark.parametrize(
    ("table", "question", "why"),
    [
        ("", {}, "table is empty"),
        ("a,b\n1\n", {}, "Row 1 has 1 cells"),
        ("a,A\n1,2", {}, "same name"),
        ('a,b\n"x', {}, "not CSV"),
        ("x" * 100_001, {}, "at most 100,000"),
        (SALES, {"select": ["name"] * 5}, "name each column at most once"),
        (SALES, {"select": ["nope"]}, "the columns are name, city, amount, on"),
        (SALES, {"where": "city"}, "A condition reads"),
        (SALES, {"where": "town = Rome"}, "no column “town”"),
        (SALES, {"where": "city = " + "x" * 600}, "A condition reads"),
        (SALES, {"where": "city = Paris and amount > 1"}, "one condition"),
        (SALES, {"where": "city = 'Paris' and amount > 1"}, "one condition"),
        (SALES, {"where": "city = 'Paris' and name = 'Ana'"}, "one condition"),
        (SALES, {"where": "city = Paris or name contains B"}, "one condition"),
        (SALES, {"where": "city = Paris or Rome"}, "one condition"),
        (SALES, {"where": "amount > 0.1, amount < 1"}, "one condition"),
        (SALES, {"where": "city == Paris"}, "one condition"),
        (SALES, {"where": "amount => 1"}, "one condition"),
        (SALES, {"where": "on > 2026"}, "“2026-01-05” in the column on is not a number"),
        (SALES, {"aggregate": "sum"}, "no column “”"),
        (SALES, {"aggregate": "sum", "column": "name"}, "“Ana” in the column name is not a number"),
        (SALES, {"column": "amount"}, "need an `aggregate`"),
    ],
)
def test_invalid_question_is_refused_with_a_reason(table: str, question: dict[str, Any], why: str) -> None:
    with pytest.raises(ToolError) as refused:
        query_csv(table, **question)
    assert why in str(refused.value)


def test_rows_beyond_the_limit_are_counted() -> None:
    answer = query_csv("n\n" + "\n".join(map(str, range(1, 1001))))
    assert answer.endswith("\n200\n(and 800 more rows)")


numbers_of_any_length = st.decimals(allow_nan=False, allow_infinity=False).filter(
    lambda n: abs(n.adjusted()) < 60
)


@given(st.lists(numbers_of_any_length, min_size=1, max_size=30))
def test_aggregates_are_exact(numbers: list[Decimal]) -> None:
    table = "n\n" + "\n".join(f"{number:f}" for number in numbers)
    expected: dict[Aggregate, Fraction] = {
        "sum": sum(map(Fraction, numbers), Fraction(0)),
        "min": Fraction(min(numbers)),
        "max": Fraction(max(numbers)),
    }
    for aggregate, result in expected.items():
        assert Fraction(query_csv(table, aggregate=aggregate, column="n").split()[4]) == result


def test_sum_of_numbers_of_any_magnitude_is_exact() -> None:
    numbers = ["9" * 1000, "0." + "0" * 1000 + "1", "-" + "9" * 1000]
    table = "n\n" + "\n".join(numbers)

    assert query_csv(table, aggregate="sum", column="n") == f"sum of n = {numbers[1]} (3 rows)"
    assert query_csv(table, aggregate="mean", column="n").startswith(
        f"mean of n = 0.{'0' * 1001}333333333333333 "
    )


cells = st.text(st.characters(categories=["L", "N", "P"]), min_size=1).filter(lambda cell: cell == cell.strip())


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=20))
def test_rows_are_returned_unchanged(rows: list[tuple[str, str]]) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([("first", "second"), *rows])
    answer = query_csv(out.getvalue())
    assert [tuple(row) for row in csv.reader(io.StringIO(answer.rpartition("(")[0]))][1:] == rows


@given(st.text(max_size=200), st.text(max_size=50))
def test_any_text_is_parsed_as_a_table_or_refused(text: str, where: str) -> None:
    with suppress(ToolError):
        assert query_csv(text, where=where)
