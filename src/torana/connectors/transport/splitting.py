"""Split long replies into parts at paragraphs, lines, sentences or words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torana.connectors.base import Capabilities
from torana.connectors.transport.markup import escape_unrendered

#: The places to cut, in order of preference: between paragraphs, lines, sentences, words.
_PLACES = (
    re.compile(r"\n{2,}"),
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),
    re.compile(r"\s+"),
)
_BLANKS, _LINE_ENDS = re.compile(r"\s*"), re.compile(r"\n*")
#: A line that opens or closes a code block (CommonMark 0.31, 4.5), and the language in its info string.
_FENCE = re.compile(r"^ {0,3}(?:(`{3,})([^`]*)|(~{3,})(.*))$")
_LANGUAGE = re.compile(r"\s*([\w+#.-]{1,20})?")

#: Maximum number of renderings to find how much text fits, and the fill ratio that is good enough.
_TRIES = 6
_FULL = 0.9

#: The limits of ``split_beginning``.
_PIECES, _CHARACTERS = 8, 20_000


def split(markdown: str, abilities: Capabilities) -> list[str]:
    """Split a text into pieces of Markdown that fit when they are rendered; together they are the text.

    A code block that is cut is closed and opened again. Only pieces that would show nothing are left out.
    """
    return list(pieces(markdown, abilities))


def pieces(markdown: str, abilities: Capabilities) -> Iterator[str]:
    """Yield the pieces of ``split`` one by one, and render no more than each of them needs."""
    return (piece for piece, _, _ in _cut(escape_unrendered(markdown.strip()), abilities))


def split_beginning(markdown: str, abilities: Capabilities) -> tuple[list[str], str]:
    """Return the first pieces of ``split``, and the Markdown of the rest; it is empty if there is no more.

    At most 8 pieces are cut, and none after 20,000 characters, because rendering a long text takes minutes.
    """
    text = escape_unrendered(markdown.strip())
    found: list[str] = []
    for piece, opening, at in _cut(text, abilities):
        found.append(piece)
        if at < len(text) and (len(found) == _PIECES or at >= _CHARACTERS):
            return found, opening + text[at:]
    return found, ""


def _cut(text: str, abilities: Capabilities) -> Iterator[tuple[str, str, int]]:
    """Yield the pieces, each with the line that opens the rest, and the position at which the rest begins."""
    at, opening, usual = 0, "", abilities.length
    while at < len(text):
        window = opening + text[at : at + 4 * abilities.length]
        most = _most(window, abilities, usual)
        ends = len(window) - len(opening) == len(text) - at
        if opening and most <= len(opening):  # a piece with only this line would not advance the loop
            opening = ""
            continue
        is_last = ends and most == len(window)
        cut = most if is_last else _find_cut(window, most, abilities, after=len(opening))
        piece = _head(window, cut)
        usual = max(most, 1)
        at += cut - len(opening)
        mark = _open_fence(window[:cut])
        if found := (_LINE_ENDS if mark else _BLANKS).match(text, at):
            at = found.end()
        # A longer mark would take more of each piece than the code itself.
        opening = f"{mark}\n" if mark and len(mark) <= abilities.length // 4 else ""
        if piece.strip():
            yield piece, opening, at


def _head(text: str, end: int) -> str:
    return _whole(text[:end].rstrip())


def _size(text: str, end: int, abilities: Capabilities) -> int:
    return abilities.measure(abilities.render(_head(text, end)))


def _find_cut(text: str, most: int, abilities: Capabilities, *, after: int) -> int:
    """Return the best position to cut, behind ``after``, such that the text before it fits."""
    least = max(after, most // 3)
    for place in _PLACES:
        ends = [found.start() for found in place.finditer(text, 0, most + 1) if found.start() <= most]
        if ends and ends[-1] > least and _size(text, ends[-1], abilities) <= abilities.length:
            return ends[-1]
    return max(most, 1)


def _most(text: str, abilities: Capabilities, usual: int) -> int:
    """Return a number of characters that fit, with the fence that closes a cut code block; it may be too low.

    The search begins with ``usual``, and renders a few times, or until anything fits.
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
    """Estimate the number of characters that fit, from a number that fits and one that does not."""
    if halve:
        guess = (fits[0] + too_much[0]) // 2
    elif too_much[1]:
        share = (length - fits[1]) / (too_much[1] - fits[1])
        guess = fits[0] + int(share * (too_much[0] - fits[0]))
    else:  # no number was too large yet
        guess = fits[0] * length // max(fits[1], 1)
    return min(max(guess, fits[0] + 1), too_much[0] - 1)


def _whole(text: str) -> str:
    """Make the beginning of a text valid by itself: close a cut code block, escape a cut fence line."""
    if opening := _open_fence(text):
        return f"{text}\n{_closing(opening)}"
    before, newline, line = text.rpartition("\n")
    found = _FENCE.match(line)
    if found and (found[2] or found[4] or "").strip() and not _open_fence(f"{before}\n"):
        return f"{before}{newline}\\{line.lstrip()}"
    return text


def _open_fence(text: str) -> str | None:
    """Return the line that reopens the code block in which the text ends; None if it ends in no block."""
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
    """Return the fence marks of a line that opens a block."""
    return opening[0] * (len(opening) - len(opening.lstrip(opening[0])))


def utf16_length(text: str) -> int:
    """Return the length of a text in UTF-16 code units, as several platforms count."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
