"""Text from elsewhere (answers, skills, problems) as it may stand on a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with escapes for what could steer the terminal; tabs and line ends stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
