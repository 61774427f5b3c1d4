"""How many tokens a text takes, where no tokenizer is at hand: every model has its own."""

from __future__ import annotations


def estimate(text: str) -> int:
    """About how many tokens a text takes; of most scripts rather too many than too few.

    Four ASCII characters are a token, and any other character is one: common tokenizers take about one for
    each Chinese or Japanese character, and less for a letter of another alphabet.
    """
    plain = sum(character.isascii() for character in text)
    return -(-plain // 4) + len(text) - plain
