"""Convert units of measurement."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any

from torana.characters import normalize
from torana.tools.base import ToolError, tool

#: The maximum length of a unit's name.
NAME_LIMIT = 60

#: The maximum number of results that pint keeps of each kind. It keeps one for each different unit, and "km/h"
#: is one of trillions.
_KEPT = 2_000

# Units whose case matters: "Mb" is a bit unit, while "mb" usually means bytes.
_EXACT = {
    "b": "bit",
    "B": "byte",
    "Kb": "kilobit",
    "Mb": "megabit",
    "Gb": "gigabit",
    "Tb": "terabit",
    "Kib": "kibibit",
    "Mib": "mebibit",
    "Gib": "gibibit",
    "mHz": "millihertz",
    "pA": "picoampere",
}
# Common names, without case, that the registry lacks or reads as something else (C as coulomb).
_ALIASES = {
    "c": "degree_Celsius",
    "centigrade": "degree_Celsius",
    "f": "degree_Fahrenheit",
    "k": "kelvin",
    "kilo": "kilogram",
    "kilos": "kilogram",
    "kgs": "kilogram",
    "gramme": "gram",
    "grammes": "gram",
    "st": "stone",
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "w": "watt",
    "kw": "kilowatt",
    "wh": "watt_hour",
    "kwh": "kilowatt_hour",
    "j": "joule",
    "kj": "kilojoule",
    "btu": "british_thermal_unit",
    "pa": "pascal",
    "hpa": "hectopascal",
    "kpa": "kilopascal",
    "kb": "kilobyte",
    "mb": "megabyte",
    "gb": "gigabyte",
    "tb": "terabyte",
    "kib": "kibibyte",
    "mib": "mebibyte",
    "gib": "gibibyte",
    "mins": "minute",
    "fl_oz": "fluid_ounce",
    "us_gallon": "gallon",
    "sqft": "square_foot",
    "sqm": "centiare",
    "″": "inch",
    "′": "foot",
    '"': "inch",
    "'": "foot",
}
_DEGREES = re.compile(r"(?:degrees?|deg\.?|°) *(?=[cfk])", re.IGNORECASE)
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3, "2": 2, "3": 3}
_FACTOR = re.compile(
    r"(?:(?P<before>square|sq|cubic|cu)\.? +)?"
    r"(?P<name>[^\W\d_][^\W\d]*(?: [^\W\d_]+)*?|[″′'\"])"
    r"(?:(?:\^|\*\*| )?(?P<digit>[23])| (?P<after>squared|cubed))?",
    re.IGNORECASE,
)


@tool(idempotent=True)
def convert_units(
    value: float, from_unit: str, to_unit: str, more_value: float = 0.0, more_unit: str = ""
) -> str:
    """Convert a value from one unit of measurement to another.

    Supports lengths, areas, volumes, weights, times, speeds, temperatures, data sizes, energies, pressures and
    more, by name, plural or symbol: km, miles, sq ft, m², km/h, miles per hour, °C, fluid ounces. A ton is
    the American one and a tonne 1,000 kg; a month is a twelfth of a year. No currencies.

    Args:
        value: The amount in the first unit.
        from_unit: The unit of the value, for example "km".
        to_unit: The target unit, for example "miles".
        more_value: The rest of a value in two units: for 6 ft 2 in, it is 2.
        more_unit: The unit of the rest.
    """
    if not (math.isfinite(value) and math.isfinite(more_value)):
        raise ToolError("The value must be a finite number.")
    source, target = _factors(from_unit), _factors(to_unit)
    label = f"{_plain(value)} {_unit_label(from_unit)}"
    try:
        if more_unit:
            value += _units().convert(more_value, _factors(more_unit), source)
            label += f" {_plain(more_value)} {_unit_label(more_unit)}"
        converted = _units().convert(value, source, target)
    except (TypeError, ArithmeticError):  # pint's DimensionalityError is a TypeError
        raise ToolError(
            f"{_unit_label(from_unit)} and {_unit_label(to_unit)} do not measure the same "
            "quantity; name two units of one quantity."
        ) from None
    if not math.isfinite(converted):
        raise ToolError("The result is too large; convert a smaller value.")
    return f"{label} = {_plain(converted)} {_unit_label(to_unit)}"


class _Units:
    """pint's units. User input never reaches its expression parser: "9**9**9 m" hangs it."""

    def __init__(self) -> None:
        # The import takes 0.3 s, so it happens on demand.
        from pint import UnitRegistry
        from pint.util import UnitsContainer

        self._registry: Any = UnitRegistry()
        self._container = UnitsContainer
        self.names = tuple(name for name in dir(self._registry) if name[0].isalpha() and len(name) > 3)

    def canonical_name(self, name: str) -> str | None:
        """Return the registry's name of a unit, including its prefix, or None."""
        found = self._registry.parse_unit_name(name)
        return found[0][0] + found[0][1] if found else None

    def convert(self, value: float, source: Mapping[str, int], target: Mapping[str, int]) -> float:
        """Return the value in the target unit. Raises ``TypeError`` for units of different quantities."""
        self._forget_results()
        units = self._container(source), self._container(target)
        converted = float(self._registry.convert(value, *units))
        # For scales with different zeros, remove the rounding error near zero: 32 °F would be 5.7e-14 °C.
        return 0.0 if abs(converted) < 1e-9 and self._registry.convert(0.0, *units) else converted

    def _forget_results(self) -> None:
        """Limit the memory of pint's results, which it never frees."""
        kept = self._registry._cache  # noqa: SLF001 - there is no public attribute
        for results in (kept.conversion_factor, kept.root_units, kept.dimensionality):
            if len(results) > _KEPT:
                results.clear()


@cache
def _units() -> _Units:
    return _Units()


def _factors(unit: str) -> Mapping[str, int]:
    """Return the unit as powers of the registry's units: "km/h" is kilometre 1, hour -1."""
    text = " ".join(normalize("NFKC", unit[: NAME_LIMIT + 1]).split())
    if len(text) > NAME_LIMIT:
        raise ToolError(f"The name of a unit has at most {NAME_LIMIT} characters; give a shorter one.")
    over, *under = re.split(r" ?/ ?| per ", text)
    powers: Counter[str] = Counter()
    for part, sign in [(over, 1), *((part, -1) for part in under)]:
        name, power = _factor(part)
        powers[name] += sign * power
    return powers


def _factor(text: str) -> tuple[str, int]:
    if alone := _find_unit(text):
        return alone, 1
    match = _FACTOR.fullmatch(text)
    name = _find_unit(match["name"]) if match else None
    if match is None or name is None:
        near = difflib.get_close_matches(text.lower().replace(" ", "_"), _units().names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "write its usual name, such as km or pounds."
        raise ToolError(f"The unit “{_unit_label(text)}” is unknown; {hint}")
    power = match["before"] or match["digit"] or match["after"]
    return name, _POWERS[power.lower()] if power else 1


def _find_unit(text: str) -> str | None:
    name = _DEGREES.sub("", text).replace(" ", "_")
    if not name.isidentifier():
        return _ALIASES.get(name)
    alias = _EXACT.get(name) or _ALIASES.get(name.lower())
    return alias or _units().canonical_name(name) or _units().canonical_name(name.lower())


def _unit_label(unit: str) -> str:
    return " ".join(unit.split())[:NAME_LIMIT]


def _plain(value: float) -> str:
    """Format with six significant digits, or all if fewer than twelve. Only extreme values get an exponent."""
    if value and not 1e-12 <= abs(value) < 1e21:
        return f"{value:.6g}"
    exact = f"{value:.12g}"
    digits = len(re.sub(r"e.*|\D", "", exact))
    return format(Decimal(exact if digits < 12 else f"{value:.6g}").normalize(), "f")
