"""What the model may know of a skill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Trigger(Protocol):
    """A message that runs one of a skill's scripts."""

    @property
    def phrase(self) -> str:
        """Words with ``{names}`` between them, each of which stands for some text."""
        ...

    @property
    def script(self) -> str:
        """The script's path in the skill's folder."""
        ...

    @property
    def arguments(self) -> Sequence[str]:
        """Texts in which the phrase's ``{names}`` stand for what was said."""
        ...


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
    triggers: tuple[Trigger, ...] = ()
    #: Why the triggers may run nothing, as a person is told it; "" where they may.
    refusal: str = ""
