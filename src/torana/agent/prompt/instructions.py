"""The instructions of a turn and the note on its message, from the templates beside this file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from string import Template
from zoneinfo import ZoneInfo

from torana.agent.text import estimate
from torana.messages import Turn
from torana.sessions.history import one_line
from torana.skills.library import Skills

#: Maximum tokens of the user's memories in the instructions.
_MEMORY_TOKENS = 500

#: Maximum characters of the lines of all skills, and of one line.
_SKILLS_LENGTH, _SKILL_LENGTH = 4_500, 150
#: A line shorter than this is not useful, so the skills at the end are left out instead.
_SKILL_LENGTH_MIN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """The facts of a turn besides its messages: other participants, memories and the summary."""

    shared: bool
    memories: Sequence[str]
    #: The summary of the messages that the history window leaves out.
    before: str | None = None


class Instructions:
    """Renders the instructions and the note of one turn at a time.

    The instructions hold what stays the same in a session, so that providers can cache them. The note holds
    what belongs to one message.
    """

    def __init__(
        self, *, persona: str, timezone: ZoneInfo, skills: Skills, servers: Sequence[str] = ()
    ) -> None:
        """``servers`` are the names of the MCP servers."""
        self._persona = persona
        self._timezone = timezone
        self._skills = skills
        self._servers = tuple(servers)
        (self._wording, self._note), template_bytes = _templates()
        #: The usable skills at the last call, and the lines that were shown for them.
        self._usable: list[str] = []
        self._shown: list[str] = []
        self._shown_skills()
        self._own_bytes = template_bytes + sum(len(text.encode()) for text in (persona, *self._servers))

    def size(self) -> int:
        """Return the bytes of the persona, the skills and the templates. Thread-safe."""
        return self._own_bytes + sum(len(line.encode()) + len("- ") for line in self._shown)

    def render(self, turn: Turn, knowledge: Knowledge, *, now: datetime) -> str:
        """Return the instructions for a turn. They change once a day, so that providers can cache them."""
        wording, before, skills = self._wording, knowledge.before, self._shown_skills()
        today = f"{now.astimezone(self._timezone):%A, %-d %B %Y}"
        parts = [wording["begin"].substitute(persona=self._persona, today=today, timezone=self._timezone.key)]
        if skills:
            servers = wording["servers"].substitute(names=", ".join(self._servers)) if self._servers else ""
            parts.append(wording["skills"].substitute(servers=servers, skills=_list(skills)))
        if turn.account is not None:
            parts.append(wording["platform"].substitute())
        if before:
            parts.append(wording["summary"].substitute(before=before))
        return "\n\n".join(parts).strip()

    def note(self, turn: Turn, knowledge: Knowledge) -> str:
        """Return the note on a turn's message; empty for most messages."""
        wording, parts = self._note, list[str]()
        if turn.is_scheduled:
            parts.append(wording["scheduled"].substitute())
        if knowledge.shared:
            speaker = one_line(turn.user) if turn.user else "an unnamed user"
            parts.append(wording["room"].substitute(speaker=speaker))
        if memories := _fitting(knowledge.memories, _MEMORY_TOKENS):
            parts.append(wording["memories"].substitute(memories=_list(memories)))
        return "\n\n".join(parts).strip()

    def _shown_skills(self) -> list[str]:
        """Return a line for each usable skill, shorter if there are many; ``find_tools`` finds all skills."""
        usable = [
            f"`{skill.slug}`: {skill.description}"
            for skill in self._skills.catalogue().loaded
            if not any(self._skills.missing(skill).values())
        ]
        if usable != self._usable:
            shown = usable[: _SKILLS_LENGTH // _SKILL_LENGTH_MIN]
            length = min(_SKILL_LENGTH, _SKILLS_LENGTH // max(1, len(shown)))
            more = len(usable) - len(shown)
            self._shown = [_shortened(line, length) for line in shown]
            self._shown += [f"and {more} more; `find_tools` finds them"] if more else []
            self._usable = usable
        return self._shown


@cache
def _templates() -> tuple[tuple[Mapping[str, Template], Mapping[str, Template]], int]:
    """Return the parts of instructions and note by name, and their bytes. Read once for the process."""
    folder = resources.files("torana.agent.prompt")
    instructions, note = (folder.joinpath(name).read_text("utf-8") for name in ("instructions.md", "note.md"))
    return (_parts(instructions), _parts(note)), len(instructions.encode()) + len(note.encode())


def _parts(text: str) -> Mapping[str, Template]:
    """Return the parts of a text, each below a line with its name in brackets."""
    _, *found = re.split(r"^\[(\w+)\]\n", text, flags=re.MULTILINE)
    return {name: Template(part.strip()) for name, part in zip(found[::2], found[1::2], strict=True)}


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _shortened(line: str, length: int) -> str:
    """Return the sentences of a line that fit into ``length`` characters, else its beginning."""
    if len(line) <= length:
        return line
    end = line.rfind(". ", 0, length)
    return line[: end + 1] if end > 0 else f"{line[: length - 1].rsplit(' ', 1)[0].rstrip(',;:')}…"


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
