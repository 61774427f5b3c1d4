"""Conversion between units of measurement."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Protocol, cast

from torana.tools.base import ToolError, tool

#: Characters of a unit's name.
NAME_LIMIT = 60

# Of these the case matters: "Mb" are bits, though in small letters people mean bytes.
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
# What people write, in any case, where the registry knows another name or takes it for something else (C for
# coulomb).
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
def convert_units(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a value from one unit of measurement to another.

    Knows lengths, areas, volumes, weights, times, speeds, temperatures, data sizes, energies, pressures and
    more, by name, plural or symbol: km, miles, sq ft, m², km/h, miles per hour, °C, fluid ounces. A ton is
    the American one and a tonne 1,000 kg; a month is a twelfth of a year. No currencies.

    Args:
        value: How much there is of the first unit.
        from_unit: The unit it is in, for example "km".
        to_unit: The unit wanted, for example "miles".
    """
    if not math.isfinite(value):
        raise ToolError("The value must be a finite number.")
    source, target = _factors(from_unit), _factors(to_unit)
    try:
        converted = _units().convert(value, source, target)
    except (TypeError, ArithmeticError):  # pint's DimensionalityError is a TypeError
        raise ToolError(
            f"{_shown(from_unit)} and {_shown(to_unit)} do not measure the same thing; name two units that do."
        ) from None
    if not math.isfinite(converted):
        raise ToolError("The result is too large; convert a smaller value.")
    return f"{_plain(value)} {_shown(from_unit)} = {_plain(converted)} {_shown(to_unit)}"


class _Registry(Protocol):
    """What is used of pint's registry, with types."""

    def parse_unit_name(self, unit_name: str) -> tuple[tuple[str, str, str], ...]: ...
    def convert(self, value: float, src: object, dst: object) -> float: ...


class _Units:
    """pint's list of units. Nothing that a user wrote reaches its expression parser: "9**9**9 m" hangs it."""

    def __init__(self) -> None:
        # Costs 0.3 s, so only who converts something pays for it.
        from pint import UnitRegistry
        from pint.util import UnitsContainer

        self._registry = cast("_Registry", UnitRegistry())
        self._container = UnitsContainer
        self.names = tuple(name for name in dir(self._registry) if name[0].isalpha() and len(name) > 3)

    def known(self, name: str) -> str | None:
        """The registry's own name of a unit (its prefix included), or None."""
        found = self._registry.parse_unit_name(name)
        return found[0][0] + found[0][1] if found else None

    def convert(self, value: float, source: Mapping[str, int], target: Mapping[str, int]) -> float:
        """The value in the target unit. Raises ``TypeError`` where the two do not measure the same."""
        units = self._container(source), self._container(target)
        converted = float(self._registry.convert(value, *units))
        # Where zero is another on the other scale, the rest of a difference is no value: 32 °F as 5.7e-14 °C.
        return 0.0 if abs(converted) < 1e-9 and self._registry.convert(0.0, *units) else converted


@cache
def _units() -> _Units:
    return _Units()


def _factors(unit: str) -> Mapping[str, int]:
    """The unit as powers of the registry's units: "km/h" is kilometre 1, hour -1."""
    text = " ".join(unicodedata.normalize("NFKC", unit[: NAME_LIMIT + 1]).split())
    if len(text) > NAME_LIMIT:
        raise ToolError(f"The name of a unit has at most {NAME_LIMIT} characters; give a shorter one.")
    over, *under = re.split(r" ?/ ?| per ", text)
    powers: Counter[str] = Counter()
    for part, sign in [(over, 1), *((part, -1) for part in under)]:
        name, power = _factor(part)
        powers[name] += sign * power
    return powers


def _factor(text: str) -> tuple[str, int]:
    if alone := _known(text):
        return alone, 1
    match = _FACTOR.fullmatch(text)
    name = _known(match["name"]) if match else None
    if match is None or name is None:
        raise ToolError(_unknown(text))
    power = match["before"] or match["digit"] or match["after"]
    return name, _POWERS[power.lower()] if power else 1


def _known(text: str) -> str | None:
    name = _DEGREES.sub("", text).replace(" ", "_")
    if not name.isidentifier():
        return _ALIASES.get(name)
    alias = _EXACT.get(name) or _ALIASES.get(name.lower())
    return alias or _units().known(name) or _units().known(name.lower())


def _unknown(text: str) -> str:
    near = difflib.get_close_matches(text.lower().replace(" ", "_"), _units().names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "write its usual name, such as km or pounds."
    return f"I do not know the unit “{_shown(text)}”; {hint}"


def _shown(unit: str) -> str:
    return " ".join(unit.split())[:NAME_LIMIT]


def _plain(value: float) -> str:
    """Six significant digits, or all where the value needs fewer than twelve; an exponent only far from one."""
    if value and not 1e-12 <= abs(value) < 1e21:
        return f"{value:.6g}"
    exact = f"{value:.12g}"
    digits = len(re.sub(r"e.*|\D", "", exact))
    return format(Decimal(exact if digits < 12 else f"{value:.6g}").normalize(), "f")
