"""Choose the tools that a model request lists: a few by default, and those that the session has opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.tools import ToolDefinition

from torana.agent.opened_skills import slugs_opened_in
from torana.models.listing import mark_unlisted
from torana.permissions import RUNS_SKILL
from torana.skills import Skills
from torana.tools.base import OpenedTools

#: The tools that every request lists, in this order. ``load_skill`` and ``find_tools`` open other tools.
CORE = ("load_skill", "find_tools", "remember", "recall")
_SEARCH = "find_tools"
_READS_FILES = "read_skill_file"


class ToolList:
    """Lists the core, pinned and opened tools; the model opens others by their skill or by a search.

    A request lists the core first, then pinned tools, then opened ones in the order of opening. A list grows at
    its end, so that providers can cache the beginning of a session's prompts. Tools that belong to no skill
    (those of MCP servers and of the operator) are listed if there are at most ``direct`` of them.
    """

    def __init__(self, *, skills: Skills, pinned: Sequence[str], direct: int) -> None:
        """``pinned`` are names or patterns of tools that every request lists."""
        self._skills = skills
        self._pinned = tuple(pinned)
        self._direct = direct
        #: The unlisted tools of the last request by name, each with its marked copy.
        self._marked: dict[str, tuple[ToolDefinition, ToolDefinition]] = {}

    def arrange(self, tools: Sequence[ToolDefinition], opened: OpenedTools) -> list[ToolDefinition]:
        """Return the listed tools in order, then the others, which are marked as unlisted."""
        by_name = {tool.name: tool for tool in tools}
        listed = [by_name[name] for name in self._listed(tools, opened) if name in by_name]
        names = {tool.name for tool in listed}
        opened.unlisted = [tool for tool in tools if tool.name not in names]
        return [*listed, *self._mark(opened.unlisted)]

    def opened_in(self, messages: Sequence[ModelMessage]) -> Iterator[str]:
        """Yield the tools that the calls in these messages opened, in the order of the calls."""
        for slug in slugs_opened_in(messages):
            yield from self._tools_of(slug)
        for message in messages:
            for part in message.parts:
                if isinstance(part, ToolReturnPart) and part.tool_name == _SEARCH:
                    yield from _found_by(part)

    def _mark(self, unlisted: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Return marked copies of the tools; a definition is copied once for consecutive requests."""
        known, self._marked = self._marked, {}
        for tool in unlisted:
            original, marked = known.get(tool.name, (None, tool))
            self._marked[tool.name] = tool, marked if original is tool else mark_unlisted(tool)
        return [marked for _, marked in self._marked.values()]

    def _listed(self, tools: Sequence[ToolDefinition], opened: OpenedTools) -> dict[str, None]:
        pinned = [
            tool.name for tool in tools if any(fnmatchcase(tool.name, pattern) for pattern in self._pinned)
        ]
        others = self._outside_skills(tools)
        direct = others if len(others) <= self._direct else []
        return dict.fromkeys([*CORE, *pinned, *direct, *opened.names])

    def _outside_skills(self, tools: Sequence[ToolDefinition]) -> list[str]:
        of_skills = {name for skill in self._skills.catalogue().loaded for name in skill.tools}
        own = {*CORE, *of_skills, _READS_FILES, RUNS_SKILL}
        return [tool.name for tool in tools if tool.name not in own]

    def _tools_of(self, slug: str) -> Iterator[str]:
        """Yield the tools that a skill uses, and those that read its files and run its scripts."""
        skill = self._skills.catalogue().get(slug)
        if skill is None:
            return
        yield from skill.tools
        if skill.source == "user":
            yield _READS_FILES
        if skill.needs.scripts:
            yield RUNS_SKILL


def _found_by(part: ToolReturnPart) -> Iterator[str]:
    content: Any = part.content
    if isinstance(content, Mapping) and part.outcome == "success":
        found = cast("Mapping[str, Any]", content).get("tools", {})
        yield from found if isinstance(found, Mapping) else ()
