"""Long replies in parts, cut where a reader would cut."""

from __future__ import annotations

import re
from collections.abc import Callable

from torana.connectors.base import Abilities
from torana.connectors.markup import tame

#: Where to cut, the best place first: between paragraphs, lines, sentences, words.
_PLACES = (
    re.compile(r"\n{2,}"),
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),
    re.compile(r"\s+"),
)
#: A line that opens or closes a block of code (CommonMark 0.31, 4.5), and of what the first word says.
_FENCE = re.compile(r"^ {0,3}(?:(`{3,})([^`]*)|(~{3,})(.*))$")
_LANGUAGE = re.compile(r"\s*([\w+#.-]{1,20})?")


def split(markdown: str, abilities: Abilities) -> list[str]:
    """The text in pieces of Markdown, each of which fits when it is rendered; put together they are the text.

    A block of code that is cut is closed and opened again. Only what would show nothing is left out.
    """
    fits = _fits(abilities)
    pieces: list[str] = []
    rest = tame(markdown.strip())
    while rest and not fits(rest):
        cut = _cut(rest, fits)
        head, tail = _whole(rest[:cut].rstrip()), rest[cut:].lstrip("\n")
        opening = _open_fence(rest[:cut])
        if opening and cut > len(opening) + 1:  # else it would never get shorter
            tail = f"{opening}\n{tail}"
        elif not opening:
            tail = tail.lstrip()
        pieces.append(head)
        rest = tail
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
        low, high = (middle, high) if fits(_whole(text[:middle])) else (low, middle)
    return low


def _whole(text: str) -> str:
    """The beginning as a text of its own: a cut block of code is closed, half of a line begins none."""
    if opening := _open_fence(text):
        return f"{text}\n{_closing(opening)}"
    before, newline, line = text.rpartition("\n")
    found = _FENCE.match(line)
    if found and (found[2] or found[4] or "").strip() and not _open_fence(f"{before}\n"):
        return f"{before}{newline}\\{line.lstrip()}"
    return text


def _open_fence(text: str) -> str | None:
    """What opens the block of code again in which the text ends; a line that is cut itself opens none."""
    opening: str | None = None
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        found = _FENCE.match(line)
        if found is None:
            continue
        mark, info = found[1] or found[3], found[2] or found[4] or ""
        if opening is None and number < len(lines):
            language = _LANGUAGE.match(info)
            opening = mark + ((language and language[1]) or "")
        elif opening is not None and not info.strip() and mark.startswith(_closing(opening)):
            opening = None
    return opening


def _closing(opening: str) -> str:
    """The marks alone of what opens a block."""
    return opening[0] * (len(opening) - len(opening.lstrip(opening[0])))
