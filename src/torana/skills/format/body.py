"""Read the title and the example messages from the Markdown of a ``SKILL.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator

EXAMPLES_LIMIT = 50
EXAMPLE_LIMIT = 300

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_EXAMPLES = re.compile(r"##\s+examples?:?", re.IGNORECASE)
_BULLET = re.compile(r"\s*[-*+]\s+(\S.*)")
_QUOTES = frozenset({'""', "''", "``", "“”", "‘’", "«»"})


def heading_of(body: str) -> str | None:
    """Return the text of the first ``# `` heading outside code blocks, or None."""
    headings = (" ".join(line[2:].split()) for line in _prose(body) if line.startswith("# "))
    return next((heading for heading in headings if heading), None)


def examples_of(body: str) -> tuple[str, ...]:
    """Return the list items under ``## Examples``, in order, without quotation marks around them.

    At most 50, each of at most 300 characters; longer items are omitted.
    """
    bullets = (_BULLET.match(line) for line in _example_lines(body))
    lines = (" ".join(bullet[1].split()) for bullet in bullets if bullet)
    texts = (one[1:-1].strip() if len(one) > 1 and one[0] + one[-1] in _QUOTES else one for one in lines)
    return tuple(text for text in texts if 0 < len(text) <= EXAMPLE_LIMIT)[:EXAMPLES_LIMIT]


def _example_lines(body: str) -> Iterator[str]:
    inside = False
    for line in _prose(body):
        if line.startswith(("# ", "## ")):
            inside = _EXAMPLES.fullmatch(line.strip()) is not None
        elif inside:
            yield line


def _prose(body: str) -> Iterator[str]:
    """Yield the lines outside fenced code blocks (CommonMark 4.5): a ``#`` in a script is no heading."""
    fence = ""
    for line in body.split("\n"):
        if fence:
            ends = line.strip().startswith(fence) and set(line.strip()) == {fence[0]}
            fence = "" if ends else fence
        elif opening := _FENCE.match(line):
            fence = opening[1]
        else:
            yield line
