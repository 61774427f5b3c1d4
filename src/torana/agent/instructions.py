"""The instructions of a turn, from the template beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from zoneinfo import ZoneInfo

import jinja2

from torana.messages import Turn
from torana.skills.library import Skills

#: What is put in front of the model of a user's memory, in characters.
_MEMORY_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What a turn knows besides its message: who else listens, and what is remembered."""

    shared: bool
    memories: Sequence[str]


class Instructions:
    """Renders ``instructions.md`` for one turn at a time."""

    def __init__(self, *, persona: str, timezone: ZoneInfo, skills: Skills) -> None:
        self._persona = persona
        self._timezone = timezone
        self._skills = skills
        source = resources.files("torana.agent").joinpath("instructions.md").read_text("utf-8")
        # The result is plain text for a model: there is nothing to escape for.
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701
        self._template = environment.from_string(source)

    def render(self, turn: Turn, knowledge: Knowledge, *, now: datetime) -> str:
        """The instructions for a turn; they change with the day, not the minute: providers cache them."""
        return self._template.render(
            persona=self._persona,
            today=f"{now.astimezone(self._timezone):%A, %-d %B %Y}",
            timezone=self._timezone.key,
            skills=[
                skill
                for skill in self._skills.catalogue().loaded
                if not any(self._skills.missing(skill).values())
            ],
            room=knowledge.shared,
            speaker=turn.user or "someone without a name",
            memories=_bounded(knowledge.memories),
        ).strip()


def _bounded(memories: Sequence[str]) -> list[str]:
    kept: list[str] = []
    room = _MEMORY_CHARS
    for memory in memories:
        room -= len(memory)
        if room < 0:
            break
        kept.append(" ".join(memory.split()))
    return kept
