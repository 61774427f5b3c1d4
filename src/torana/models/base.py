"""What a model may know of a skill."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A skill as a model sees it before it is loaded: enough to tell whether it fits a message."""

    slug: str
    title: str
    description: str
    #: Messages that a person might write.
    examples: tuple[str, ...] = ()
    #: The tools that it works with, by name.
    tools: tuple[str, ...] = ()
