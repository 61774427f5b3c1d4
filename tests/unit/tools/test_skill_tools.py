"""Listing the skills and reading one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torana.skills import Skills
from torana.tools import ToolError
from torana.tools.skills import SkillTools

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


def test_the_list_has_each_skill_with_what_it_does(open_tools: Callable[..., SkillTools]) -> None:
    assert open_tools().list_skills() == "- Tea (`tea`): Brews tea."


@pytest.mark.parametrize("text", [TEA, TEA.replace("# Tea\n\n", "")], ids=["with a title", "without"])
def test_a_skill_is_read_whole_and_under_its_title(
    open_tools: Callable[..., SkillTools], folder: Path, text: str
) -> None:
    (folder / "SKILL.md").write_text(text)

    assert open_tools().load_skill("tea") == "# Tea\n\nBoil water."


def test_what_it_lacks_and_its_files_are_named(open_tools: Callable[..., SkillTools], folder: Path) -> None:
    (folder / "references" / "green.md").write_text("70 degrees")
    tools = open_tools(equipped=False)

    told = tools.load_skill("tea")

    assert "It lacks what it needs here: KETTLE_KEY, kettle." in told
    assert told.endswith("Files to read with read_skill_file: references/green.md")
    assert tools.read_skill_file("tea", "references/green.md") == "70 degrees"


def test_an_unknown_skill_is_an_error_with_a_way_on(open_tools: Callable[..., SkillTools]) -> None:
    with pytest.raises(ToolError, match="'coffee'; list_skills names"):
        open_tools().load_skill("coffee")


@pytest.mark.parametrize(("slug", "path"), [("tea", "missing.md"), ("tea", "../../secret"), ("coffee", "a.md")])
def test_a_file_that_cannot_be_read_is_an_error(
    open_tools: Callable[..., SkillTools], folder: Path, slug: str, path: str
) -> None:
    (folder.parents[1] / "secret").write_text("5309")

    with pytest.raises(ToolError):
        open_tools().read_skill_file(slug, path)


def test_a_skill_that_vanished_meanwhile_is_an_error(
    open_tools: Callable[..., SkillTools], folder: Path
) -> None:
    tools = open_tools()
    tools.list_skills()
    for file in folder.rglob("*.md"):
        file.unlink()
    (folder / "references").rmdir()
    folder.rmdir()

    with pytest.raises(ToolError):
        tools.load_skill("tea")
