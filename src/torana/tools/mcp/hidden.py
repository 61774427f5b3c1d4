"""Text of strangers: characters that nobody sees, and words that are meant for the model alone."""

from __future__ import annotations

import re

#: Tags, marks of direction, things of no width, private and unassigned signs; tabs and line ends stay.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ue000-\uf8ff\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)

#: What a description of a tool has no reason to say.
_INSTRUCTIONS = re.compile(
    r"(ignore|disregard|forget|override)\W+(\w+\W+){0,3}(previous|prior|above|earlier|preceding|system|other|all)\W+"
    r"(\w+\W+){0,2}(instruction|prompt|rule|message|tool|direction)"
    r"|(do\W+not|don\W?t|never|without)\W+(\w+\W+){0,2}(tell|mention|inform|notify|reveal|show|telling|informing)"
    r"\W+(\w+\W+){0,3}user"
    r"|(system|developer)\W+prompt"
    r"|you\W+are\W+now\b|new\W+instructions?\s*:"
    r"|</?\s*(system|important|instructions?|secret|hidden)\s*>|<\|\w+\|>|\[/?INST\]"
    r"|\.ssh/|id_rsa\b|/etc/(passwd|shadow)\b|~/\.(aws|cursor|config)\b",
    re.IGNORECASE,
)


def has_hidden(text: str) -> bool:
    """Whether there are characters in it that nobody sees."""
    return _HIDDEN.search(text) is not None


def without_hidden(text: str) -> str:
    """The text as a person sees it."""
    return _HIDDEN.sub("", text)


def instructs(text: str) -> bool:
    """Whether it tells the model what to do. A sieve, not a proof: what is asked for stays asked for."""
    return _INSTRUCTIONS.search(text) is not None
