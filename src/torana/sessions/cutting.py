"""Choose where the history that a model receives begins, so that this place rarely changes."""

from __future__ import annotations

from collections.abc import Sequence


def first_kept(sizes: Sequence[int], places: Sequence[int], room: int) -> int:
    """Return the index of the first item to keep; the items are in order, and ``places`` are their numbers.

    All items are kept if they fit into ``room``, and the newest one always. Otherwise the kept items fill more
    than half of the room, and begin at the roundest place: the one that two divides most often. So the choice
    is the same for several items in turn, and a provider's prompt cache still knows the beginning of the
    request.
    """
    first = len(sizes)
    kept = 0
    rounder: list[int] = []
    while first and kept + sizes[first - 1] <= room:
        first -= 1
        kept += sizes[first]
        if kept * 2 > room:
            rounder.append(first)
    if first == 0 or not rounder:
        return min(first, len(sizes) - 1)
    return max(rounder, key=lambda index: (_roundness(places[index]), -index))


def _roundness(place: int) -> int:
    return place & -place
