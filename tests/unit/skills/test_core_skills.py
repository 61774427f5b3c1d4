"""The skills in the package pass the format's reference validator and are complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from skills_ref import validate

from torana.api.schemas.contract import SkillBody
from torana.skills import CORE_DIR, Skill, Skills, parse_skill

TOOLS = {
    "calculator": ("calculate", "run_python"),
    "chance": ("pick_random",),
    "conversation": ("earlier_messages",),
    "csv-query": ("query_csv",),
    "dates-and-times": ("current_time", "days_between", "shift_date"),
    "files": ("list_files", "read_file", "write_file", "delete_file"),
    "json-query": ("query_json",),
    "lists": ("add_to_list", "show_list", "remove_from_list"),
    "memory": ("remember", "recall", "correct", "forget"),
    "reminders": ("schedule_once", "schedule_repeating", "list_schedules", "cancel_schedule"),
    "skill-guide": ("list_skills", "load_skill", "read_skill_file"),
    "skill-writer": (),
    "text-tools": ("count_text", "change_text", "sort_lines", "unique_lines"),
    "unit-converter": ("convert_units",),
    "web": ("web_fetch",),
}


@pytest.fixture(params=sorted(TOOLS))
def skill(request: pytest.FixtureRequest) -> Skill:
    return parse_skill(CORE_DIR / request.param, source="core")


def test_every_core_skill_is_loaded_and_usable_anywhere() -> None:
    skills = Skills(core_dir=CORE_DIR, user_dir=None, environ={}, which=lambda name: None)

    catalogue = skills.catalogue()

    assert [skill.slug for skill in catalogue.loaded] == sorted(TOOLS)
    assert catalogue.broken == ()
    assert all(SkillBody.from_skill(skill, skills.missing(skill)).eligible for skill in catalogue.loaded)


def test_reference_validator_finds_nothing(skill: Skill) -> None:
    assert validate(skill.path) == []


def test_tools_are_declared_and_explained(skill: Skill) -> None:
    assert skill.tools == TOOLS[skill.slug]
    assert [tool for tool in skill.tools if f"`{tool}" not in skill.instructions] == []


def test_description_says_when_to_use_it(skill: Skill) -> None:
    assert " Use it when" in skill.description or " Use it for" in skill.description


def test_examples_are_given_and_metadata_is_complete(skill: Skill) -> None:
    assert 4 <= len(skill.examples) <= 8
    assert (skill.version, skill.license) == ("1.0", "Apache-2.0")
    assert skill.tags


def test_template_of_the_skill_writer_is_a_valid_skill(tmp_path: Path) -> None:
    skills = Skills(core_dir=CORE_DIR, user_dir=None, environ={})
    template = skills.read_file("skill-writer", "references/template.md")
    text = template.split("```markdown\n")[1].split("```")[0]
    folder = tmp_path / "weekly-report"
    folder.mkdir()
    (folder / "SKILL.md").write_text(text, encoding="utf-8")

    assert validate(folder) == []
    assert len(parse_skill(folder, source="user").examples) == 3
