"""Secrets in what others wrote: they are not to be seen there."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Characters of the shortest secret. A shorter value keeps nothing secret, and stands in every other word.
_SHORTEST = 4


def masked(text: str, secrets: Mapping[str, str]) -> str:
    """The text with each secret replaced by what ``secrets`` has for it, the longer one where two begin.

    Upper and lower case are one, because programs write the names of hosts in lower case. A value of fewer
    than four characters stays.
    """
    values = sorted((value for value in secrets if len(value) >= _SHORTEST), key=len, reverse=True)
    if not values:
        return text
    # A group for each, which tells whose it was in whatever case it is written.
    pattern = "|".join(f"({re.escape(value)})" for value in values)
    return re.sub(pattern, lambda found: secrets[values[(found.lastindex or 1) - 1]], text, flags=re.IGNORECASE)
