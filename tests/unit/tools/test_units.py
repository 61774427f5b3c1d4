from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.tools.base import ToolError
from torana.tools.builtin.units import _units, convert_units  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("value", "source", "target", "answer"),
    [
        (12, "km", "miles", "12 km = 7.45645 miles"),
        (1, "mile", "feet", "1 mile = 5280 feet"),
        (100, "F", "C", "100 F = 37.7778 C"),
        (-40, "°C", "°F", "-40 °C = -40 °F"),
        (32, "F", "C", "32 F = 0 C"),
        (-459.67, "F", "K", "-459.67 F = 0 K"),
        (2, "grammes", "mg", "2 grammes = 2000 mg"),
        (100, "Mb/s", "MB/s", "100 Mb/s = 12.5 MB/s"),
        (1, "Gb", "GB", "1 Gb = 0.125 GB"),
        (100, "mb", "Mb", "100 mb = 800 Mb"),
        (8, "b", "B", "8 b = 1 B"),
        (1, "atm", "pa", "1 atm = 101325 pa"),
        (1, "bar", "hpa", "1 bar = 1000 hpa"),
        (1, "kpa", "Pa", "1 kpa = 1000 Pa"),
        (1, "kj", "j", "1 kj = 1000 j"),
        (1, "w", "kw", "1 w = 0.001 kw"),
        (1, "wh", "kj", "1 wh = 3.6 kj"),
        (1, "btu", "j", "1 btu = 1055.056 j"),
        (1, "ghz", "mhz", "1 ghz = 1000 mhz"),
        (1, "MHz", "khz", "1 MHz = 1000 khz"),
        (1, "mHz", "Hz", "1 mHz = 0.001 Hz"),
        (1, "gib", "mib", "1 gib = 1024 mib"),
        (1, "MiB", "kib", "1 MiB = 1024 kib"),
        (1, "pA", "A", "1 pA = 0.000000000001 A"),
        (1, "℃", "K", "1 ℃ = 274.15 K"),
        (20, "degrees Celsius", "degrees fahrenheit", "20 degrees Celsius = 68 degrees fahrenheit"),
        (65, "mph", "km/h", "65 mph = 104.60736 km/h"),
        (5, "miles per hour", "m/s", "5 miles per hour = 2.2352 m/s"),
        (9.8, "m/s^2", "ft/s/s", "9.8 m/s^2 = 32.1522 ft/s/s"),
        (100, "sq ft", "m²", "100 sq ft = 9.290304 m²"),
        (2, "square feet", "sq. inches", "2 square feet = 288 sq. inches"),
        (1, "m3", "litres", "1 m3 = 1000 litres"),
        (1, "cubic metre", "l", "1 cubic metre = 1000 l"),
        (3, "fl oz", "ml", "3 fl oz = 88.7206 ml"),
        (1, "imperial gallon", "litres", "1 imperial gallon = 4.54609 litres"),
        (1, "GB", "mb", "1 GB = 1000 mb"),
        (2, "KILOMETRES", "m", "2 KILOMETRES = 2000 m"),
        (11, "stone", "kilos", "11 stone = 69.85322498 kilos"),
        (1, "week", "minutes", "1 week = 10080 minutes"),
        (12345678, "cm", "m", "12345678 cm = 123456.78 m"),
        (0, "m", "km", "0 m = 0 km"),
        (1e300, "m", "km", "1e+300 m = 1e+297 km"),
        (6, "′", '"', '6 ′ = 72 "'),
    ],
)
def test_values_are_converted(value: float, source: str, target: str, answer: str) -> None:
    assert convert_units(value, source, target) == answer


@pytest.mark.parametrize(
    ("value", "source", "target", "why"),
    [
        (1, "kg", "miles", "do not measure the same"),
        (1, "C/h", "F/h", "do not measure the same"),
        (1, "killometer", "m", "did you mean kilometer"),
        (5, "USD", "EUR", "The unit “USD” is unknown"),
        (1, "9**9**9 m", "km", "is unknown; "),
        (1, "m**9**9**9", "km", "is unknown; "),
        (1, "(m)", "km", "is unknown; "),
        (1, "__class__", "km", "is unknown; "),
        (1, "", "km", "The unit “” is unknown"),
        (1, "km/", "m", "is unknown; "),
        (1, "m" * 61, "km", "at most 60 characters"),
        (float("nan"), "m", "km", "finite"),
        (float("inf"), "m", "km", "finite"),
        (1e308, "km", "nm", "too large"),
    ],
)
def test_impossible_conversion_is_refused_with_a_reason(
    value: float, source: str, target: str, why: str
) -> None:
    with pytest.raises(ToolError) as refused:
        convert_units(value, source, target)
    assert why in str(refused.value)


@given(st.floats(-1e6, 1e6), st.sampled_from([("km", "miles"), ("C", "F"), ("kg", "lb"), ("l", "us gallon")]))
def test_conversion_is_reversible(value: float, units: tuple[str, str]) -> None:
    source, target = units
    there = float(convert_units(value, source, target).split(" = ")[1].split()[0])
    back = float(convert_units(there, target, source).split(" = ")[1].split()[0])
    assert back == pytest.approx(value, rel=1e-4, abs=1e-3)


@given(st.text(max_size=70), st.text("mkft /^*23sqcubi.", max_size=30))
def test_any_text_is_parsed_as_a_unit_or_refused(source: str, target: str) -> None:
    with suppress(ToolError):
        assert convert_units(1.0, source, target)


def test_unit_library_is_not_imported_at_start(imported_at_start: frozenset[str]) -> None:
    assert "torana.tools.builtin.units" in imported_at_start
    assert "pint" not in imported_at_start


def test_value_in_two_units_is_converted_as_their_sum() -> None:
    assert convert_units(6, "ft", "cm", more_value=2, more_unit="in") == "6 ft 2 in = 187.96 cm"


def test_two_units_of_different_quantities_are_refused() -> None:
    with pytest.raises(ToolError, match="do not measure the same quantity"):
        convert_units(6, "ft", "cm", more_value=2, more_unit="kg")


def test_results_of_ever_new_units_are_not_kept() -> None:
    lengths, times, weights = "km mile foot inch", "hour second day week", "kg pound ounce stone"
    names = ["/".join(unit) for unit in product(lengths.split(), times.split(), weights.split())]

    for source, target in product(names, names):
        convert_units(1, source, target)

    kept = _units()._registry._cache  # pyright: ignore[reportPrivateUsage]
    assert max(len(kept.conversion_factor), len(kept.root_units), len(kept.dimensionality)) < 2_100
    assert convert_units(36, "km/h", "m/s") == "36 km/h = 10 m/s"
