"""Read calculations."""

from __future__ import annotations

import re

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import NUMBERS, Arguments, wordings

_NUMBER = r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_LIST = rf"(?P<list>{_NUMBER}(?:(?:, and |, | and ){_NUMBER})+)"

_ASKING = wordings(
    r"\A(?:(?:what(?:'?s| is| are)|how much (?:is|are)|calculate|compute|work out|evaluate|solve|find) )+"
)
_SIGNS = wordings(
    r"(?:%|\bper ?cent) ?(?:of|off)\b",
    r"[-+*/^%×÷·−–√²³]",
    r"\b(?:plus|minus|times|multiplied by|divided by|to the power of|squared|cubed|per ?cent|mod|modulo)\b",
    r"(?<=\d) ?x ?(?=[\d.(])",
    r"\b(?:abs|ceil|exp|floor|ln|log10|max|mean|median|min|round|sqrt|sum) ?(?=\()",
)
_OPERANDS = wordings(_NUMBER, r"[(),]", r"\bpi\b", r"\s")
# Dates, telephone numbers and an idiom that look like calculations, and a single signed number.
_NO_SUM = wordings(
    rf"(?:plus|minus|times|multiplied by|divided by|[-+*/×÷^]) ?{_NUMBER} ?%?",
    r"\d+([-/.])\d+\1\d+",
    r".*\d{4}-\d\d-\d\d.*",
    r"\d{3}-\d{4}",
    r"24/7",
    r"[-+]?[\d.,]+ ?%?",
)

_TOLD = (
    (wordings(rf"(?:the )?(?:square root|sq ?rt|root) ?(?:of )?(?P<a>{_NUMBER})"), "sqrt({a})"),
    (wordings(rf"(?P<a>{_NUMBER}) (?P<sign>[-+]) (?P<b>{_NUMBER}) ?%"), "{a} {sign} {b}% of {a}"),
    (
        wordings(rf"(?P<a>{_NUMBER}) (?P<sign>plus|minus) (?P<b>{_NUMBER}) ?(?:%|per ?cent)"),
        "{a} {sign} {b}% of {a}",
    ),
    (
        wordings(rf"(?:a )?(?P<a>{_NUMBER}) ?(?:%|per ?cent) tip (?:on|of|for) [$€£]?(?P<b>{_NUMBER})"),
        "{a}% of {b}",
    ),
    (
        wordings(rf"(?:a )?tip of (?P<a>{_NUMBER}) ?(?:%|per ?cent) (?:on|of|for) [$€£]?(?P<b>{_NUMBER})"),
        "{a}% of {b}",
    ),
    (
        wordings(
            rf"(?:split|divide|share) (?:a |the )?(?:bill of )?[$€£]?(?P<a>{_NUMBER})(?: euros?| dollars?)? "
            rf"(?:between|among|by|with) (?P<b>{_NUMBER})(?: people| persons| friends| ways)?"
        ),
        "{a} / {b}",
    ),
    (wordings(rf"(?:double|twice) (?P<a>{_NUMBER})"), "{a} * 2"),
    (wordings(rf"add (?P<a>{_NUMBER}) to (?P<b>{_NUMBER})"), "{b} + {a}"),
    (wordings(rf"subtract (?P<a>{_NUMBER}) from (?P<b>{_NUMBER})"), "{b} - {a}"),
    (wordings(rf"multiply (?P<a>{_NUMBER}) (?:by|and|with) (?P<b>{_NUMBER})"), "{a} * {b}"),
    (wordings(rf"divide (?P<a>{_NUMBER}) by (?P<b>{_NUMBER})"), "{a} / {b}"),
    (wordings(rf"half of (?P<a>{_NUMBER})"), "{a} / 2"),
)
_TOTAL = wordings(rf"(?:the )?(?:sum of|total of|add(?: up)?) {_LIST}")
_MEAN = wordings(rf"(?:the )?(?:average|mean) of {_LIST}")


_NUMBER_WORD = wordings(rf"\b(?:{'|'.join(NUMBERS)})\b")
_SPELT = wordings(r"\b(?:plus|minus|times|multiplied by|divided by)\b")


def calculate(message: BuiltinMessage) -> Arguments | None:
    """Read a calculation in numbers and operators, or in one of a few phrases, and nothing else."""
    phrase = _digits(_ASKING.sub("", message.phrase).removesuffix(" as a decimal").rstrip("= "))
    expression = _expression_of_phrase(phrase) or (phrase if _is_sum(phrase) else "")
    return {"expression": expression} if expression else None


def _digits(phrase: str) -> str:
    return (
        _NUMBER_WORD.sub(lambda match: str(NUMBERS[match[0].lower()]), phrase)
        if _SPELT.search(phrase)
        else phrase
    )


def _is_sum(phrase: str) -> bool:
    if _NO_SUM.fullmatch(phrase) or not re.search(r"\d", phrase):
        return False
    operands, signs = _SIGNS.subn(" ", phrase)
    return signs > 0 and not _OPERANDS.sub("", operands)


def _expression_of_phrase(phrase: str) -> str:
    for pattern, expression in _TOLD:
        if match := pattern.fullmatch(phrase):
            return expression.format(
                **{name: number.replace(",", "") for name, number in match.groupdict().items()}
            )
    if match := _TOTAL.fullmatch(phrase):
        return " + ".join(_numbers(match["list"]))
    if match := _MEAN.fullmatch(phrase):
        return f"mean({', '.join(_numbers(match['list']))})"
    return ""


def _numbers(listed: str) -> list[str]:
    return [number.replace(",", "") for number in re.split(r",? and |, ", listed)]
