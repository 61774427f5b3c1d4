"""Choose the first item of the history that a model receives, so that the choice rarely changes."""

from __future__ import annotations

from collections.abc import Sequence


def first_to_keep(sizes: Sequence[int], places: Sequence[int], room: int) -> int:
    """Return the index of the first item to keep.

    The items are in order, and ``places`` are their numbers in the whole history. The newest item is always
    kept, and all items are kept if they fit into ``room``. Otherwise the kept items fill more than half of the
    room and begin at the place with the highest power of two as a factor. The choice therefore stays the same
    while several items are added, and a provider's prompt cache still contains the beginning of the request.
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
