"""Long replies in parts, cut where a reader would cut."""

from __future__ import annotations

import re
from collections.abc import Callable

from torana.connectors.base import Abilities

#: Where to cut, the best place first: between paragraphs, lines, sentences, words.
_PLACES = (
    re.compile(r"\n{2,}"),
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),
    re.compile(r"\s+"),
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")


def split(markdown: str, abilities: Abilities) -> list[str]:
    """The text in pieces of Markdown, each of which fits when it is rendered; put together they are the text.

    A block of code that is cut is closed and opened again. Only what would show nothing is left out.
    """
    fits = _fits(abilities)
    pieces: list[str] = []
    rest = markdown.strip()
    while rest and not fits(rest):
        cut = _cut(rest, fits)
        head, tail = rest[:cut].rstrip(), rest[cut:].lstrip("\n") if rest[cut : cut + 1] == "\n" else rest[cut:]
        if opening := _open_fence(head):
            head, tail = f"{head}\n{_closing(opening)}", f"{opening}\n{tail}"
        pieces.append(head)
        rest = tail if _open_fence(tail) or tail.lstrip() != tail.lstrip(" ") else tail.lstrip()
    return [piece for piece in [*pieces, rest] if piece.strip()]


def _fits(abilities: Abilities) -> Callable[[str], bool]:
    def fits(markdown: str) -> bool:
        if len(markdown) > 4 * abilities.length:  # rendering the whole of a long text each time would be slow
            return False
        return abilities.measure(abilities.render(markdown)) <= abilities.length

    return fits


def _cut(text: str, fits: Callable[[str], bool]) -> int:
    """The last good place before which everything fits; at least one character goes in any case."""
    most = _most(text, fits)
    for place in _PLACES:
        ends = [found.start() for found in place.finditer(text, 0, most + 1) if found.start() <= most]
        if ends and ends[-1] > most // 3:
            return ends[-1]
    return max(most, 1)


def _most(text: str, fits: Callable[[str], bool]) -> int:
    """How much of the text fits at most, a cut block of code being closed."""
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        opening = _open_fence(text[:middle])
        closed = f"{text[:middle]}\n{_closing(opening)}" if opening else text[:middle]
        low, high = (middle, high) if fits(closed) else (low, middle)
    return low


def _open_fence(text: str) -> str | None:
    """The line that opens a block of code in which the text ends."""
    opening: str | None = None
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        if opening is None:
            opening = line
        elif not found[2].strip() and found[1].startswith(_closing(opening)):
            opening = None
    return opening


def _closing(opening: str) -> str:
    found = _FENCE.match(opening)
    return found[1] if found else "```"
