"""Every message costs about as much as plain text of its length."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from torana.messages import CONTENT_LIMIT
from torana.models.builtin.choice import Chooser
from torana.models.builtin.followups import EARLIER_LIMIT
from torana.models.builtin.message import PHRASE_LIMIT

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
_WORDS = (
    "a ",
    "and ",
    "in ",
    "to ",
    "on my list ",
    "not ",
    "i like ",
    "5 ",
    "5 and ",
    "' ",
    "-",
    "a, ",
    "or ",
    "for ",
)


@pytest.mark.parametrize("lead", _LEADS)
def test_repetitive_messages_are_not_slower_than_plain_text(chooser: Chooser, lead: str) -> None:
    def choose(piece: str) -> Callable[[], object]:
        text = (lead + piece * CONTENT_LIMIT)[:CONTENT_LIMIT]
        return lambda: chooser.choose(text)

    plain = _seconds(choose("plain words "))

    # Most take as long as plain text; unclosed quotes used to take 100 times as long.
    assert {piece: took for piece in _PIECES if (took := _seconds(choose(piece))) > 20 * plain + 0.05} == {}


@pytest.mark.parametrize(
    "lead", ["", "add ", "put a on my ", "remind me to ", "what is ", "set a timer for ", "note that "]
)
def test_repetitive_phrases_are_not_slower_than_plain_text(chooser: Chooser, lead: str) -> None:
    def choose(piece: str) -> Callable[[], object]:
        text = (lead + piece * PHRASE_LIMIT)[: PHRASE_LIMIT - 1]
        return lambda: chooser.choose(text, [text] * EARLIER_LIMIT)

    plain = _seconds(choose("plain words "))

    # A pattern with a polynomial time takes seconds.
    assert {piece: took for piece in _WORDS if (took := _seconds(choose(piece))) > 20 * plain + 0.05} == {}


def _seconds(act: Callable[[], object]) -> float:
    """Return the processor time of an act, the shortest of three runs."""
    took: list[float] = []
    for _ in range(3):
        began = time.process_time()
        act()
        took.append(time.process_time() - began)
    return min(took)
