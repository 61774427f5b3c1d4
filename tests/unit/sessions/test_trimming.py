"""The place where the history that a model receives begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.sessions.trimming import first_to_keep


@pytest.mark.parametrize(
    ("sizes", "room", "first"),
    [
        ([2, 2, 2], 6, 0),
        ([2, 2, 2], 0, 2),
        ([9], 4, 0),
        ([2, 9], 4, 1),
        ([2, 2, 2, 2], 4, 2),
        # Of the places 3 to 6, the fourth is the roundest.
        ([1] * 8, 6, 3),
    ],
)
def test_kept_items_fit_and_begin_at_a_round_place(sizes: list[int], room: int, first: int) -> None:
    assert first_to_keep(sizes, range(1, len(sizes) + 1), room) == first


def test_beginning_stays_for_several_items() -> None:
    begins = [first_to_keep([1] * count, range(1, count + 1), 20) for count in range(21, 120)]

    assert begins == sorted(begins)
    assert len(set(begins)) <= 100 // 8 + 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 400), st.integers(1, 1000))
def test_kept_items_fill_more_than_half_of_the_room_unless_an_item_is_large(
    sizes: list[int], room: int, place: int
) -> None:
    first = first_to_keep(sizes, range(place, place + len(sizes)), room)
    kept = sum(sizes[first:])

    assert kept <= room or first == len(sizes) - 1
    assert first == 0 or kept * 2 > room or kept + sizes[first - 1] > room
