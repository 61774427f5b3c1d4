"""The properties of a skill that the builtin model uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Trigger(Protocol):
    """A phrase that runs one of a skill's scripts."""

    @property
    def phrase(self) -> str:
        """Return the words of the phrase, with ``{names}`` as placeholders for text."""
        ...

    @property
    def script(self) -> str:
        """Return the script's path in the skill's folder."""
        ...

    @property
    def arguments(self) -> Sequence[str]:
        """Return the script's arguments, in which ``{names}`` are replaced by the matched text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    slug: str
    title: str
    description: str
    #: Example messages.
    examples: tuple[str, ...] = ()
    #: The names of its tools.
    tools: tuple[str, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    #: The reason why its triggers cannot run, for users; '' if they can.
    refusal: str = ""
