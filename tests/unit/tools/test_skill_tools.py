"""Listing skills and reading one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torana.skills import Skills
from torana.tools import ToolError
from torana.tools.builtin.skills import SkillTools

TEA = """\
---
name: tea
description: Brews tea.
metadata:
  openclaw:
    requires:
      env: [KETTLE_KEY]
      bins: [kettle]
---
# Tea

Boil water.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "core" / "tea"
    (folder / "references").mkdir(parents=True)
    (folder / "SKILL.md").write_text(TEA)
    return folder


@pytest.fixture
def open_tools(folder: Path) -> Callable[..., SkillTools]:
    def make(*, equipped: bool = True) -> SkillTools:
        def which(name: str) -> str | None:
            return name if equipped else None

        environ = {"KETTLE_KEY": "x"} if equipped else {}
        return SkillTools(skills=Skills(core_dir=folder.parent, user_dir=None, environ=environ, which=which))

    return make


def test_list_shows_each_skill_with_its_description(open_tools: Callable[..., SkillTools]) -> None:
    assert open_tools().list_skills() == "- Tea (`tea`): Brews tea."


@pytest.mark.parametrize("text", [TEA, TEA.replace("# Tea\n\n", "")], ids=["with a title", "without"])
def test_skill_is_loaded_with_its_title(open_tools: Callable[..., SkillTools], folder: Path, text: str) -> None:
    (folder / "SKILL.md").write_text(text)

    assert open_tools().load_skill("tea") == "# Tea\n\nBoil water."


def test_missing_requirements_and_files_are_listed(open_tools: Callable[..., SkillTools], folder: Path) -> None:
    (folder / "references" / "green.md").write_text("70 degrees")
    tools = open_tools(equipped=False)

    told = tools.load_skill("tea")

    assert "Missing requirements: KETTLE_KEY, kettle." in told
    assert told.endswith("Files to read with read_skill_file: references/green.md")
    assert tools.read_skill_file("tea", "references/green.md") == "70 degrees"


def test_unknown_skill_is_refused_with_a_hint(open_tools: Callable[..., SkillTools]) -> None:
    with pytest.raises(ToolError, match="'coffee'; list_skills lists"):
        open_tools().load_skill("coffee")


@pytest.mark.parametrize(("slug", "path"), [("tea", "missing.md"), ("tea", "../../secret"), ("coffee", "a.md")])
def test_unreadable_file_is_an_error(
    open_tools: Callable[..., SkillTools], folder: Path, slug: str, path: str
) -> None:
    (folder.parents[1] / "secret").write_text("5309")

    with pytest.raises(ToolError):
        open_tools().read_skill_file(slug, path)


def test_skill_that_was_deleted_is_an_error(open_tools: Callable[..., SkillTools], folder: Path) -> None:
    tools = open_tools()
    tools.list_skills()
    for file in folder.rglob("*.md"):
        file.unlink()
    (folder / "references").rmdir()
    folder.rmdir()

    with pytest.raises(ToolError):
        tools.load_skill("tea")
