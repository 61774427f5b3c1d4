"""Arithmetic with decimal numbers: 0.1 + 0.2 is 0.3."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Sequence
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    localcontext,
)
from functools import partial
from statistics import median
from typing import Any

from simpleeval import FunctionNotDefined, InvalidExpression, SimpleEval

from torana.tools.base import ToolError, tool

#: The maximum length of an expression.
EXPRESSION_LIMIT = 500
#: Digits in calculations, and digits of a rounded result that are shown.
PRECISION = 100
SHOWN = 15
#: Results above ten to this power, and below its inverse, are refused.
EXPONENT_LIMIT = 1000
#: Held while Python parses: early versions of 3.11 and 3.12 fail if two threads do (python/cpython#106905).
PARSING = threading.Lock()
#: The number of an expression's characters that an error repeats.
EXCERPT = 80

# Possessive quantifiers and the lookbehind: without them, a match could start at every digit, and every split
# of the remaining digits would be tried.
_NUMBER = r"(?:\d++(?:\.\d*+)?|\.\d++)(?:e[+-]?\d++)?"
_WHOLE = rf"(?<![\d.])({_NUMBER})"
_TOKEN = re.compile(rf"\s*(?P<number>{_NUMBER})|\s*(?P<symbol>\*\*|//|[a-z]\w*|\S)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)")
_ADDED_PERCENTAGE = re.compile(rf"[\w)](?<!\de)\s*[+-]\s*{_NUMBER}\s*%(?!\s*[\d.(a-z])")
# Longer than PRECISION, so that every result with it counts as rounded.
_PI = Decimal(
    "3.1415926535897932384626433832795028841971693993751058209749445923"
    "0781640628620899862803482534211706798214808651"
)

# The rows apply in order; a later row sees the results of earlier ones.
_SIGNS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[−–]|\bminus\b", "-"),
        (r"\bplus\b", "+"),
        (r"[×·⋅]|\b(?:times|multiplied by)\b|(?<=\d)\s*x\s*(?=[\d.(])", "*"),
        (r"÷|\bdivided by\b", "/"),
        (r"\^|\b(?:raised )?to the power of\b", "**"),
        (r"²|\bsquared\b", "**2"),
        (r"³|\bcubed\b", "**3"),
        (r"√", "sqrt"),
        (r"\bper ?cent\b", "%"),
        (r"\bmod(?:ulo)?\b", "%"),
    )
]
_PERCENTAGES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"{_WHOLE}\s*%\s*of\b", r"(\1/100)*"),
        (rf"{_WHOLE}\s*%\s*off\b", r"(1-\1/100)*"),
        # Between two numbers % is the remainder; elsewhere it is a percentage.
        (rf"{_WHOLE}\s*%(?!\s*[\d.(a-z])", r"(\1/100)"),
    )
]


@tool(idempotent=True)
def calculate(expression: str) -> str:
    """Calculate an arithmetic expression exactly, in decimal; "≈" marks a result that had to be rounded.

    Supports + - * / // % ^ and parentheses, percentages such as "17 % of 2,340" or "20 % off 50", pi, and the
    functions abs, ceil, exp, floor, ln, log10, max, mean, median, min, round, sqrt and sum.

    Args:
        expression: Numbers and operators only, at most 500 characters, for example "(12.5 + 7) * 3".
    """
    if len(expression) > EXPRESSION_LIMIT or not expression.strip():
        raise ToolError(f"An expression has 1 to {EXPRESSION_LIMIT} characters; send another one.")
    shown = " ".join(expression.split())
    source, numbers = _parse_numbers(shown)
    traps = [DivisionByZero, InvalidOperation, Overflow]
    limits = Context(prec=PRECISION, Emax=EXPONENT_LIMIT, Emin=-EXPONENT_LIMIT, traps=traps)
    with localcontext(limits) as context:
        value = _evaluate(source, numbers, shown)
        sign = "≈" if context.flags[Inexact] else "="
        return f"{shown} {sign} {_plain(value, rounded=sign == '≈')}"


def _parse_numbers(shown: str) -> tuple[str, dict[str, Decimal]]:
    """Return the expression in Python's syntax with a name for each number, and the numbers by name.

    simpleeval would read a number as a float; by name it keeps all digits.
    """
    numbers = {"pi": _PI}
    pieces: list[str] = []
    for match in _TOKEN.finditer(_rewritten(shown)):
        symbol: str = match["symbol"]
        if number := match["number"]:
            symbol = f"n{len(numbers)}"
            numbers[symbol] = _decimal(number)
        elif symbol not in _SYMBOLS:
            raise ToolError(f"I cannot parse “{symbol[:40]}” in “{shown[:EXCERPT]}”. {_VOCABULARY}")
        pieces.append(symbol)
    return " ".join(pieces), numbers


def _decimal(number: str) -> Decimal:
    try:
        return Decimal(number)
    except InvalidOperation:
        raise ToolError(f"The exponent of “{number[:EXCERPT]}” is too large; send a smaller number.") from None


def _rewritten(shown: str) -> str:
    text = _apply_replacements(_without_thousands(shown.lower()), _SIGNS)
    if _ADDED_PERCENTAGE.search(text):
        raise ToolError("A percentage that is added needs its base: write “50 + 10 % of 50” for “50 + 10 %”.")
    return _apply_replacements(text, _PERCENTAGES)


def _without_thousands(text: str) -> str:
    """Return the text with "1,000" as 1000. In a function, "1,000" could be two arguments, and is refused."""
    if (match := _THOUSANDS.search(text)) and re.search(r"[a-z]\s*\(", text):
        raise ToolError(
            f"“{match[0]}” may be one number or several. In a calculation with a function, write numbers "
            "without commas, and write a blank after each comma between two numbers."
        )
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def _apply_replacements(text: str, rows: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in rows:
        text = pattern.sub(replacement, text)
    return text


def _evaluate(source: str, numbers: dict[str, Decimal], shown: str) -> Decimal:
    excerpt = shown if len(shown) <= EXCERPT else shown[:EXCERPT] + "…"
    evaluator: Any = SimpleEval(operators=_OPERATORS, functions=_FUNCTIONS, names=numbers)
    try:
        return _finite(evaluator.eval(source, _parse(source)))
    except ZeroDivisionError:
        raise ToolError(f"“{excerpt}” divides by zero.") from None
    except Overflow:
        raise ToolError(f"The result of “{excerpt}” has more than {EXPONENT_LIMIT} digits.") from None
    except DecimalException:
        raise ToolError(f"“{excerpt}” has no real result, or its exact result is too long.") from None
    except FunctionNotDefined:
        raise ToolError(
            f"An operator is missing before a parenthesis in “{excerpt}”: write 2 * (3 + 4), not 2(3 + 4)."
        ) from None
    except (InvalidExpression, SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        raise ToolError(
            f"“{excerpt}” is not a complete expression. Check operators and parentheses; write decimals with a "
            "point, and numbers inside a function without commas."
        ) from None


def _parse(source: str) -> ast.expr:
    """Return the syntax tree."""
    with PARSING:
        return ast.parse(source, mode="eval").body


def _finite(value: object) -> Decimal:
    if not isinstance(value, Decimal):
        raise InvalidExpression
    if not value.is_finite():
        raise InvalidOperation
    return +value  # rounds a single number as an operation would


def _plain(value: Decimal, *, rounded: bool) -> str:
    if rounded:
        value = Context(prec=SHOWN).plus(value)
    value = value.normalize()
    text = format(value, "f")
    if len(text) > PRECISION + 2:
        text = format(Context(prec=SHOWN).plus(value), "e")
    return "0" if not value else text


def _remainder(left: Decimal, right: Decimal) -> Decimal:
    """Return the remainder with the divisor's sign, as in Python. Decimal's has the dividend's sign."""
    rest = left % right
    return rest + right if rest and (rest < 0) != (right < 0) else rest


def _floor_quotient(left: Decimal, right: Decimal) -> Decimal:
    return (left - _remainder(left, right)) // right


def _round(value: Decimal, places: Decimal = Decimal(0)) -> Decimal:
    """Round half away from zero, as people do. Python's ``round`` rounds half to even."""
    with localcontext():  # a requested rounding does not make the result inexact
        return value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def _sum(*values: Decimal) -> Decimal:
    return sum(values, Decimal(0))


_OPERATORS: dict[type[ast.operator | ast.unaryop], Callable[..., Decimal]] = {
    ast.Add: Decimal.__add__,
    ast.Sub: Decimal.__sub__,
    ast.Mult: Decimal.__mul__,
    ast.Div: Decimal.__truediv__,
    ast.FloorDiv: _floor_quotient,
    ast.Mod: _remainder,
    ast.Pow: Decimal.__pow__,
    ast.USub: Decimal.__neg__,
    ast.UAdd: Decimal.__pos__,
}
_FUNCTIONS: dict[str, Callable[..., Decimal]] = {
    "abs": Decimal.__abs__,
    "ceil": partial(Decimal.to_integral_value, rounding=ROUND_CEILING),
    "exp": Decimal.exp,
    "floor": partial(Decimal.to_integral_value, rounding=ROUND_FLOOR),
    "ln": Decimal.ln,
    "log10": Decimal.log10,
    "max": lambda *values: max(values),
    "mean": lambda *values: _sum(*values) / len(values),
    "median": lambda *values: median(values),
    "min": lambda *values: min(values),
    "round": _round,
    "sqrt": Decimal.sqrt,
    "sum": _sum,
}
_SYMBOLS = frozenset(_FUNCTIONS) | frozenset("+-*/%(),") | {"**", "//", "pi"}
_VOCABULARY = f"Use numbers, + - * / // % ^ ( ), pi and the functions {', '.join(_FUNCTIONS)}."
