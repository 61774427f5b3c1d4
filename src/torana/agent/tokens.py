"""Estimate the number of tokens of a text without the model's tokenizer."""

from __future__ import annotations


def estimate(text: str) -> int:
    """Estimate the tokens of a text; for most scripts the result is too high rather than too low.

    Four ASCII characters count as one token, and every other character counts as one. Common tokenizers need
    about one token for each Chinese or Japanese character, and less for a letter of another alphabet.
    """
    plain = sum(character.isascii() for character in text)
    return -(-plain // 4) + len(text) - plain
