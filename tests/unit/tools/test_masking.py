"""Masking of secrets in text from others."""

from __future__ import annotations

import pytest

from torana.tools.redaction import mask

SECRETS = {
    "k3y-Abc123": "[KEY]",
    "k3y-Abc123.example.com": "[HOST]",
    "HOST": "[WORD]",
    "eu": "[REGION]",
    "R": "[E]",
    "1": "[DAYS]",
    "": "[EMPTY]",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("with k3y-Abc123 in it", "with [KEY] in it"),
        ("the longer one: k3y-Abc123.example.com", "the longer one: [HOST]"),
        ("what stands for one is no HOST", "what stands for one is no [WORD]"),
        ("in lower case: k3y-abc123.example.com:443", "in lower case: [HOST]:443"),
        ("Neutral weather in Europe, 12 degrees", "Neutral weather in Europe, 12 degrees"),
        ("k3y.Abc123", "k3y.Abc123"),
    ],
)
def test_secrets_are_masked(text: str, shown: str) -> None:
    assert mask(text, SECRETS) == shown


def test_text_is_unchanged_without_secrets() -> None:
    assert mask("a text", {}) == "a text"
