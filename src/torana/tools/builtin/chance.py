"""Choose at random."""

from __future__ import annotations

import secrets

from torana.tools.base import ToolError, tool

#: Maximum number of options, and the largest number.
OPTIONS_LIMIT, NUMBER_LIMIT = 100, 1_000_000_000


@tool(idempotent=True)
def pick_random(options: list[str] | None = None, low: int = 1, high: int = 6) -> str:
    """Choose one of several options at random, or a whole number: flip a coin, roll a die, draw a name.

    Args:
        options: What to choose from; leave it out for a number.
        low: The smallest number.
        high: The largest number.
    """
    if options:
        if len(options) > OPTIONS_LIMIT:
            raise ToolError(f"There are at most {OPTIONS_LIMIT} options; give fewer.")
        return f"Chosen at random: {secrets.choice(options)}"
    if not -NUMBER_LIMIT <= low <= high <= NUMBER_LIMIT:
        raise ToolError(f"The numbers must be in order, and between -{NUMBER_LIMIT:,} and {NUMBER_LIMIT:,}.")
    return f"Chosen at random from {low} to {high}: {low + secrets.randbelow(high - low + 1)}"
