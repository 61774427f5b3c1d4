"""Every message costs about as much as plain text of its length."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from torana.messages import CONTENT_LIMIT
from torana.models.builtin.choice import Chooser

_LEADS = ("", "find customer: ", "use a(", "$.a in this json ", "remind me to ", "```\n", "count rows: ")
_PIECES = (
    "“",
    "“a",
    '"',
    "{?",
    "[in ",
    ",",
    "a and ",
    "a=1, ",
    "'\\",
    "1,000 ",
    "every day ",
    "```a\n",
    "\u2003",
    "?! ",
)


@pytest.mark.parametrize("lead", _LEADS)
def test_repetitive_messages_are_not_slower_than_plain_text(chooser: Chooser, lead: str) -> None:
    def choose(piece: str) -> Callable[[], object]:
        text = (lead + piece * CONTENT_LIMIT)[:CONTENT_LIMIT]
        return lambda: chooser.choose(text)

    plain = _seconds(choose("plain words "))

    # Most take as long as plain text; unclosed quotes used to take 100 times as long.
    assert {piece: took for piece in _PIECES if (took := _seconds(choose(piece))) > 20 * plain + 0.05} == {}


def _seconds(act: Callable[[], object]) -> float:
    """Return the processor time of an act, the shortest of three runs."""
    took: list[float] = []
    for _ in range(3):
        began = time.process_time()
        act()
        took.append(time.process_time() - began)
    return min(took)
