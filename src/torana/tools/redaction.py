"""Replace secrets in untrusted text."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The minimum length of a secret. Shorter values occur in ordinary words.
_SHORTEST = 4


def mask(text: str, secrets: Mapping[str, str]) -> str:
    """Replace each secret in the text by its value in ``secrets``. The longer of overlapping secrets counts.

    Case is ignored, because programs write host names in lower case. Values of fewer than four characters are
    not replaced.
    """
    values = sorted((value for value in secrets if len(value) >= _SHORTEST), key=len, reverse=True)
    if not values:
        return text
    # A group for each secret identifies it in any case.
    pattern = "|".join(f"({re.escape(value)})" for value in values)
    return re.sub(pattern, lambda found: secrets[values[(found.lastindex or 1) - 1]], text, flags=re.IGNORECASE)
