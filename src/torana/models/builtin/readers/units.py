"""Read conversions of units."""

from __future__ import annotations

import re

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, wordings

# Other words in the place of a unit mean a different question.
# fmt: off
_UNITS = frozenset({
    "m", "cm", "mm", "µm", "nm", "km", "meter", "metre", "centimeter", "centimetre", "millimeter", "millimetre",
    "micrometer", "micrometre", "kilometer", "kilometre", "inch", "inches", "in", "ft", "foot", "feet", "yd",
    "yard", "mi", "mile", "nautical mile", "light year", "furlong",
    "mg", "g", "kg", "gram", "gramme", "milligram", "kilogram", "kilo", "oz", "ounce", "lb", "pound", "st",
    "stone", "t", "ton", "tonne",
    "ml", "cl", "dl", "l", "milliliter", "millilitre", "centiliter", "centilitre", "deciliter", "decilitre",
    "liter", "litre", "gallon", "gal", "quart", "pint", "cup", "tsp", "teaspoon", "tbsp", "tablespoon", "fl oz",
    "fluid ounce", "us gallon", "imperial gallon", "acre", "hectare", "ha", "sqft", "sqm",
    "ms", "s", "sec", "second", "min", "minute", "h", "hr", "hour", "day", "week", "month", "year",
    "c", "°c", "f", "°f", "k", "celsius", "centigrade", "fahrenheit", "kelvin",
    "mph", "kph", "knot", "kn",
    "bit", "byte", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "kilobyte", "megabyte", "gigabyte", "terabyte",
    "j", "kj", "joule", "kilojoule", "cal", "kcal", "calorie", "kilocalorie", "wh", "kwh", "btu",
    "w", "kw", "watt", "kilowatt", "hp", "horsepower",
    "pa", "hpa", "kpa", "pascal", "bar", "psi", "atm", "hz", "khz", "mhz", "ghz", "hertz", "newton",
})
# fmt: on
_QUALIFIED = wordings(r"\A(?:degrees? |square |sq\.? |cubic |cu\.? )(?=\S)")
_VALUE = r"(?P<value>-?\d[\d,]*+(?:\.\d++)?|-?\.\d++|\ban?\b|\bone\b)"

_INTO = wordings(
    rf"(?:(?:convert|change|turn|express|what(?:'s| is| are)|how much (?:is|are)) )?{_VALUE} ?"
    r"(?P<source>\D.*?) (?:in|to|into|as|=) (?P<target>.+)"
)
_QUANTITY = wordings(rf"{_VALUE} ?(?P<source>\D.*)")
_HOW_MANY = wordings(
    r"how many (?P<target>.+?) (?:(?:are|is) (?:there )?(?:in )?|in |make (?:up )?|per |do you get from )"
    rf"{_VALUE} ?(?P<source>\D.*)"
)
_FEET = (
    r"(?P<feet>\d{1,6}(?:\.\d+)?) ?(?:'|′|ft\.?|foot|feet) ?(?:and )?"
    r"(?P<inches>\d{1,3}(?:\.\d+)?) ?(?:\"|″|''|in\.?|inch|inches)?"
)
_TALL = (
    wordings(
        rf"(?:(?:convert|change|what(?:'s| is)|how (?:tall|much|long) is) )?{_FEET} "
        r"(?:in|to|into|as) (?P<target>.+)"
    ),
    wordings(rf"how many (?P<target>[\w ]{{1,30}}?) (?:are|is|in|are in) {_FEET}"),
)


def convert_units(message: BuiltinMessage) -> Arguments | None:
    """Read a value and two units, and nothing else. Feet may have inches with them."""
    tall = first_match(_TALL, message.phrase)
    if tall and is_unit(tall["target"]):
        return {
            "value": float(tall["feet"]),
            "from_unit": "ft",
            "to_unit": tall["target"],
            "more_value": float(tall["inches"]),
            "more_unit": "in",
        }
    match = _INTO.fullmatch(message.phrase) or _HOW_MANY.fullmatch(message.phrase)
    if not match or not (is_unit(match["source"]) and is_unit(match["target"])):
        return None
    return {"value": _value(match["value"]), "from_unit": match["source"], "to_unit": match["target"]}


def read_quantity(text: str) -> Arguments | None:
    """Return the value and the unit of a text such as "10 miles"."""
    match = _QUANTITY.fullmatch(text)
    return (
        {"value": _value(match["value"]), "from_unit": match["source"]}
        if match and is_unit(match["source"])
        else None
    )


def _value(text: str) -> float:
    return float(text.replace(",", "")) if re.search(r"\d", text) else 1.0


def is_unit(text: str) -> bool:
    return all(map(_is_simple_unit, re.split(r" ?/ ?| per ", text)))


def _is_simple_unit(text: str) -> bool:
    name = re.sub(r"\^?[23²³]\Z", "", _QUALIFIED.sub("", text)).lower()
    return name in _UNITS or name.removesuffix("s") in _UNITS
