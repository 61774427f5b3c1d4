"""The instructions of a turn, from the template beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

import jinja2

from torana.agent.tokens import estimate
from torana.messages import Turn
from torana.sessions.history import one_line
from torana.skills.library import Skills

#: Maximum tokens of the user's memories in the instructions.
_MEMORY_TOKENS = 500

#: Maximum tokens of the skills' descriptions.
_SKILL_TOKENS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """The facts of a turn besides its messages: other participants, memories and the summary."""

    shared: bool
    memories: Sequence[str]
    #: The summary of the messages that the history window leaves out.
    before: str | None = None


class Instructions:
    """Renders ``instructions.md`` for one turn at a time."""

    def __init__(self, *, persona: str, timezone: ZoneInfo, skills: Skills) -> None:
        self._persona = persona
        self._timezone = timezone
        self._skills = skills
        self._template, template_bytes = _template()
        #: The usable skills at the last call, and the lines that were shown for them.
        self._usable: list[str] = []
        self._shown: list[str] = []
        self._shown_skills()
        self._own_bytes = template_bytes + len(persona.encode())

    def size(self) -> int:
        """Return the bytes of the persona, the skills and the template. Thread-safe."""
        return self._own_bytes + sum(len(line.encode()) + len("- ") for line in self._shown)

    def render(self, turn: Turn, knowledge: Knowledge, *, now: datetime) -> str:
        """Return the instructions for a turn. They change once a day, so that providers can cache them."""
        return self._template.render(
            persona=self._persona,
            today=f"{now.astimezone(self._timezone):%A, %-d %B %Y}",
            timezone=self._timezone.key,
            skills=self._shown_skills(),
            platform=turn.account is not None,
            scheduled=turn.is_scheduled,
            room=knowledge.shared,
            speaker=one_line(turn.user) if turn.user else "an unnamed user",
            memories=_fitting(knowledge.memories, _MEMORY_TOKENS),
            before=knowledge.before,
        ).strip()

    def _shown_skills(self) -> list[str]:
        """Return a line for each usable skill within the token limit; ``list_skills`` lists all skills."""
        usable = [
            f"`{skill.slug}`: {skill.description}"
            for skill in self._skills.catalogue().loaded
            if not any(self._skills.missing(skill).values())
        ]
        if usable != self._usable:
            shown = _fitting(usable, _SKILL_TOKENS)
            more = len(usable) - len(shown)
            self._shown = [*shown, f"and {more} more; `list_skills` lists them"] if more else shown
            self._usable = usable
        return self._shown


@cache
def _template() -> tuple[jinja2.Template, int]:
    """Return the template and its bytes. Compiled once for all gateways of the process."""
    source = resources.files("torana.agent").joinpath("instructions.md").read_text("utf-8")
    # The result is plain text for a model, so nothing is escaped.
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701
    return environment.from_string(source), len(source.encode())


def _fitting(texts: Sequence[str], room: int) -> list[str]:
    """Return the first texts, each as one line, that fit into ``room`` tokens."""
    kept: list[str] = []
    for text in texts:
        line = " ".join(text.split())
        room -= estimate(line)
        if room < 0:
            break
        kept.append(line)
    return kept
