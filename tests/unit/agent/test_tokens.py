"""Tokens are estimated by the kind of character."""

from __future__ import annotations

import pytest

from torana.agent.text import estimate


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("four", 1), ("fives", 2), ("我喜欢绿茶", 5), ("茶 tea", 2), ("🍵", 1)],
)
def test_four_ascii_characters_or_one_other_make_a_token(text: str, tokens: int) -> None:
    assert estimate(text) == tokens
