"""Long replies in parts, cut where a reader would cut."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torana.connectors.base import Abilities
from torana.connectors.markup import tame

#: Where to cut, the best place first: between paragraphs, lines, sentences, words.
_PLACES = (
    re.compile(r"\n{2,}"),
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),
    re.compile(r"\s+"),
)
_BLANKS, _LINE_ENDS = re.compile(r"\s*"), re.compile(r"\n*")
#: A line that opens or closes a block of code (CommonMark 0.31, 4.5), and of what the first word says.
_FENCE = re.compile(r"^ {0,3}(?:(`{3,})([^`]*)|(~{3,})(.*))$")
_LANGUAGE = re.compile(r"\s*([\w+#.-]{1,20})?")

#: How often a piece is rendered to find out how much fits, and how full it is when no more is tried.
_TRIES = 6
_FULL = 0.9


def split(markdown: str, abilities: Abilities) -> list[str]:
    """The text in pieces of Markdown, each of which fits when it is rendered; put together they are the text.

    A block of code that is cut is closed and opened again. Only what would show nothing is left out.
    """
    return list(pieces(markdown, abilities))


def pieces(markdown: str, abilities: Abilities) -> Iterator[str]:
    """Yield the pieces of ``split`` one by one, and render no more than each of them needs."""
    text = tame(markdown.strip())
    at, opening, usual = 0, "", abilities.length
    while at < len(text):
        window = opening + text[at : at + 4 * abilities.length]
        most = _most(window, abilities, usual)
        ends = len(window) - len(opening) == len(text) - at
        cut = most if ends and most == len(window) else _cut(window, most, abilities)
        if cut <= len(opening):  # a block of code that is opened again would never get shorter
            opening = ""
            continue
        if (piece := _head(window, cut)).strip():
            yield piece
        usual = max(most, 1)
        at += cut - len(opening)
        mark = _open_fence(window[:cut])
        if found := (_LINE_ENDS if mark else _BLANKS).match(text, at):
            at = found.end()
        # Of a longer mark there would be more in each piece than of what is in its block.
        opening = f"{mark}\n" if mark and len(mark) <= abilities.length // 4 else ""


def _head(text: str, end: int) -> str:
    """The beginning of a text as a piece."""
    return _whole(text[:end].rstrip())


def _size(text: str, end: int, abilities: Abilities) -> int:
    return abilities.measure(abilities.render(_head(text, end)))


def _cut(text: str, most: int, abilities: Abilities) -> int:
    """The last good place before which everything fits; at least one character goes in any case."""
    for place in _PLACES:
        ends = [found.start() for found in place.finditer(text, 0, most + 1) if found.start() <= most]
        if ends and ends[-1] > most // 3 and _size(text, ends[-1], abilities) <= abilities.length:
            return ends[-1]
    return max(most, 1)


def _most(text: str, abilities: Abilities, usual: int) -> int:
    """Return how much of the text fits, a cut block of code being closed: not always the most that would.

    It begins with what is ``usual``, and renders a few times, or until anything fits.
    """
    fits, too_much = (0, 0), (len(text) + 1, 0)
    guess = len(text) if len(text) <= 2 * usual else usual
    tries = 0
    while too_much[0] - fits[0] > 1 and (tries < _TRIES or fits[0] == 0):
        size = _size(text, guess, abilities)
        if size > abilities.length:
            too_much = guess, size
        else:
            fits = guess, size
            if size >= _FULL * abilities.length:
                break
        tries += 1
        guess = _guess(fits, too_much, abilities.length, halve=tries % 2 == 0)
    return fits[0]


def _guess(fits: tuple[int, int], too_much: tuple[int, int], length: int, *, halve: bool) -> int:
    """Return how many characters may have the length, by the sizes of fewer and of more."""
    if halve:
        guess = (fits[0] + too_much[0]) // 2
    elif too_much[1]:
        share = (length - fits[1]) / (too_much[1] - fits[1])
        guess = fits[0] + int(share * (too_much[0] - fits[0]))
    else:  # nothing was too much yet
        guess = fits[0] * length // max(fits[1], 1)
    return min(max(guess, fits[0] + 1), too_much[0] - 1)


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
