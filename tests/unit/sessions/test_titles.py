"""Titles of sessions."""

import pytest

from torana.sessions.titles import title_of


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("Hello", "Hello"),
        ("\n \t\n  two   words \nmore", "two words"),
        ("a\x00b\x1b[31mc\x85d", "ab[31mc"),  # U+0085 ends a line
        ("\u202eabc\u2066", "abc"),
        ("👩‍👩‍👧 day", "👩‍👩‍👧 day"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 60 + " …"),
        ("word " * 20, ("word " * 12).strip() + " …"),
        ("x" * 60 + " y", "x" * 60 + " …"),
        ("\x01\x02", None),
    ],
)
def test_title_is_the_first_line_in_whole_words(content: str, title: str | None):
    assert title_of(content) == title
