"""The list of tools in a request, of which a model that lists few leaves out the marked ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic_ai.tools import ToolDefinition

from torana.agent.prompt.tool_list import ToolList
from torana.models.listing import listed
from torana.skills import CORE_DIR, Skills
from torana.tools.base import OpenedTools

REMEMBER, SUM, DIFFERENCE = (ToolDefinition(name=name) for name in ("remember", "sum", "difference"))


def tool_list(folder: Path) -> ToolList:
    return ToolList(skills=Skills(core_dir=CORE_DIR, user_dir=folder, environ={}), pinned=(), direct=0)


def test_unlisted_tools_are_marked_once_for_all_requests(tmp_path: Path) -> None:
    tools = tool_list(tmp_path)

    first = tools.arrange([REMEMBER, SUM], OpenedTools())
    second = tools.arrange([REMEMBER, SUM], OpenedTools())

    assert listed(first) == [REMEMBER]
    assert second[1] is first[1]
    assert SUM.metadata is None


def test_changed_and_removed_tools_are_marked_anew(tmp_path: Path) -> None:
    tools = tool_list(tmp_path)
    tools.arrange([REMEMBER, SUM, DIFFERENCE], OpenedTools())
    changed = replace(SUM, description="Adds two numbers.")

    found = tools.arrange([REMEMBER, changed], OpenedTools())

    assert [(tool.name, tool.description) for tool in found] == [
        ("remember", None),
        ("sum", "Adds two numbers."),
    ]
    assert listed(found) == [REMEMBER]


def test_opened_tool_is_listed_without_a_mark(tmp_path: Path) -> None:
    tools = tool_list(tmp_path)
    tools.arrange([REMEMBER, SUM], OpenedTools())

    assert listed(tools.arrange([REMEMBER, SUM], OpenedTools(["sum"]))) == [REMEMBER, SUM]
