from __future__ import annotations

import gc
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.tools.base import ToolError, promises
from torana.tools.builtin.arithmetic import calculate


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("17 % of 2,340", "17 % of 2,340 = 397.8"),
        ("0.1 + 0.2", "0.1 + 0.2 = 0.3"),
        ("  2 +   2 ", "2 + 2 = 4"),
        ("1,234,567.5 * 2", "1,234,567.5 * 2 = 2469135"),
        ("20 % off 50", "20 % off 50 = 40"),
        ("15 percent of 15 per cent of 1000", "15 percent of 15 per cent of 1000 = 22.5"),
        ("200 * 15%", "200 * 15% = 30"),
        ("10% + 5%", "10% + 5% = 0.15"),
        ("100 + 10 % of 50", "100 + 10 % of 50 = 105"),
        ("80 plus 19 mod sqrt(49)", "80 plus 19 mod sqrt(49) = 85"),
        ("7 % 3", "7 % 3 = 1"),
        ("-7 % 3", "-7 % 3 = 2"),
        ("-7 // 2", "-7 // 2 = -4"),
        ("2^10", "2^10 = 1024"),
        ("2 to the power of 0.5", "2 to the power of 0.5 ≈ 1.4142135623731"),
        ("5² + 2³", "5² + 2³ = 33"),
        ("3 × 4 ÷ 2 − 1", "3 × 4 ÷ 2 − 1 = 5"),
        ("3x4", "3x4 = 12"),
        ("12 plus 3 times 2 minus 4 divided by 2", "12 plus 3 times 2 minus 4 divided by 2 = 16"),
        ("1/3", "1/3 ≈ 0.333333333333333"),
        ("sqrt(1764)", "sqrt(1764) = 42"),
        ("√(2)", "√(2) ≈ 1.4142135623731"),
        ("max(1, 2.5, -3) + min(4, 5)", "max(1, 2.5, -3) + min(4, 5) = 6.5"),
        (
            "mean(1, 2, 4.5) + median(3, 1, 2) + sum(1, 1)",
            "mean(1, 2, 4.5) + median(3, 1, 2) + sum(1, 1) = 6.5",
        ),
        ("round(2.5) + round(2.345, 2)", "round(2.5) + round(2.345, 2) = 5.35"),
        ("floor(-1.5) + ceil(1.2) + abs(-3)", "floor(-1.5) + ceil(1.2) + abs(-3) = 3"),
        ("pi", "pi ≈ 3.14159265358979"),
        ("0 * -5", "0 * -5 = 0"),
        ("2**300", "2**300 = " + str(2**300)),
        ("2**400", "2**400 ≈ 2.58224987808691e+120"),
        ("1e3", "1e3 = 1000"),
        ("2e+10%", "2e+10% = 200000000"),
    ],
)
def test_expressions_are_calculated(expression: str, answer: str) -> None:
    assert calculate(expression) == answer


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "1 to 500 characters"),
        ("1+" * 300 + "1", "1 to 500 characters"),
        ("9**9**9", "has more than 1000 digits"),
        ("9^9^9^9", "has more than 1000 digits"),
        ("1e9999", "has more than 1000 digits"),
        ("1e" + "9" * 30, "exponent"),
        ("exp(5000)", "has more than 1000 digits"),
        ("1/0", "divides by zero"),
        ("0/0", "no real result"),
        ("sqrt(-1)", "no real result"),
        ("ln(0)", "no real result"),
        ("round(1, 1e900)", "no real result"),
        ("50 + 10 %", "50 + 10 % of 50"),
        ("80 plus 19%", "50 + 10 % of 50"),
        ("80 minus 15%", "50 + 10 % of 50"),
        ("100 + 19 percent", "50 + 10 % of 50"),
        ("80 − 15%", "50 + 10 % of 50"),
        ("9² + 10%", "50 + 10 % of 50"),
        ("2(3)", "operator is missing"),
        ("(2", "not a complete expression"),
        ("1,5", "decimals with a point"),
        ("sqrt(2,340)", "without commas"),
        ("max(1,000, 20)", "without commas"),
        ("sum(1,000, 2)", "without commas"),
        ("max(1,200)", "without commas"),
        ("sqrt", "not a complete expression"),
        ("sqrt + 1", "not a complete expression"),
        ("max()", "not a complete expression"),
        ("max(**1)", "not a complete expression"),
        ("(" * 240 + "1" + ")" * 240, "not a complete expression"),
        ("3 of 4", "cannot parse “of”"),
        ("__import__('os')", "cannot parse “_”"),
        ("(1).real", "cannot parse"),
        ("2 if 1 else 3", "cannot parse “if”"),
        ("a := 1", "cannot parse “a”"),
        ("'a' * 9", "cannot parse"),
        ("[1]", "cannot parse"),
        ("1; 2", "cannot parse"),
        ("seven + 1", "cannot parse “seven”"),
    ],
)
def test_invalid_expression_is_refused_with_a_reason(expression: str, why: str) -> None:
    with pytest.raises(ToolError, match=r".") as refused:
        calculate(expression)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 400


numbers = st.decimals(min_value=-(10**9), max_value=10**9, places=4)


@given(left=numbers, right=numbers, sign=st.sampled_from("+-*"))
def test_sums_and_products_are_exact(left: Decimal, right: Decimal, sign: str) -> None:
    exact = {"+": left + right, "-": left - right, "*": left * right}[sign]
    answer = calculate(f"({left:f}) {sign} ({right:f})")
    assert Decimal(answer.rpartition(" = ")[2]) == exact


@given(left=st.integers(-1000, 1000), right=st.integers(-50, 50).filter(bool))
def test_remainders_and_quotients_equal_pythons(left: int, right: int) -> None:
    assert calculate(f"({left}) % ({right})").endswith(f" = {left % right}")
    assert calculate(f"({left}) // ({right})").endswith(f" = {left // right}")


@given(st.text(max_size=60) | st.text("0123456789+-*/%^(),. sqrtmax", max_size=60))
def test_any_text_gives_an_answer_or_a_reason(expression: str) -> None:
    with suppress(ToolError):
        assert re.search("[=≈]", calculate(expression))


def test_threads_calculate_at_the_same_time() -> None:
    """Early versions of Python 3.11 and 3.12 fail if another thread parses during a garbage collection."""

    def let_other_threads_run(*_: object) -> None:
        time.sleep(0)

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sums = ["+".join(["(1*2)"] * 60), "3*4"] * 500
    expected = [calculate(expression) for expression in sums]
    sys.setswitchinterval(1e-6)
    gc.set_threshold(100, 5, 5)
    gc.callbacks.append(let_other_threads_run)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(calculate, sums)) == expected
    finally:
        gc.callbacks.remove(let_other_threads_run)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)


def test_calculate_is_idempotent() -> None:
    assert promises(calculate)["idempotent"]
