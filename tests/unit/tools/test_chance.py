from __future__ import annotations

import pytest

from torana.tools import ToolError
from torana.tools.builtin.chance import pick_random


def test_option_is_one_of_those_given() -> None:
    assert {pick_random(["heads", "tails"]) for _ in range(100)} == {
        "Chosen at random: heads",
        "Chosen at random: tails",
    }


def test_number_lies_within_its_bounds() -> None:
    drawn = {pick_random(low=-1, high=1) for _ in range(200)}

    assert drawn == {f"Chosen at random from -1 to 1: {number}" for number in (-1, 0, 1)}


@pytest.mark.parametrize(("low", "high"), [(2, 1), (0, 10**10), (-(10**10), 0)])
def test_impossible_bounds_are_refused(low: int, high: int) -> None:
    with pytest.raises(ToolError, match="must be in order"):
        pick_random(low=low, high=high)


def test_too_many_options_are_refused() -> None:
    with pytest.raises(ToolError, match="at most 100 options"):
        pick_random(["x"] * 101)
