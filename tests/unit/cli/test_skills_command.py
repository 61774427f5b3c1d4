"""``torana skills list`` and ``torana skills show``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from torana.skills import CORE_DIR

Command = Callable[..., tuple[int, str, str]]
AddSkill = Callable[[str, str], Path]

TEA = """---
name: tea
description: Brews tea. Use it when someone is thirsty.
license: MIT
metadata:
  version: "2.1"
  openclaw: {requires: {env: [KETTLE_KEY]}}
---
# Tea time

Boil water.
"""


def test_list_shows_each_skill_with_missing_requirements(command: Command, add_skill: AddSkill) -> None:
    add_skill("tea", TEA)
    code, out, err = command("skills", "list")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert len(lines) == 1 + len(list(CORE_DIR.iterdir())) + 1
    assert lines[0].split() == ["skill", "source", "description"]
    assert re.fullmatch(r"tea +user +\(missing: KETTLE_KEY\) Brews tea\. Use it when some.*…", lines[-1])


def test_list_has_one_line_of_80_columns_for_each_skill(command: Command, add_skill: AddSkill) -> None:
    add_skill("tea", TEA.replace("Brews tea.", "泡茶。" * 40))

    lines = command("skills", "list")[1].splitlines()

    assert len(lines) == 1 + len(list(CORE_DIR.iterdir())) + 1
    assert max(map(cell_len, lines)) <= 80
    assert lines[-1].endswith("…")


def test_skill_with_a_long_description_is_loaded_with_a_warning(command: Command, add_skill: AddSkill) -> None:
    add_skill("tea", TEA.replace("Brews tea.", "x" * 1_068))

    _, out, err = command("skills", "list")

    assert "\ntea " in out
    assert err == (
        "tea: The description in SKILL.md has 1,100 characters, and only the first 1,024 are used; "
        "move details below the front matter.\n"
    )
    assert "too long, so that only a part is used: tea" in command("doctor")[1]
    (tea,) = (
        one for one in json.loads(command("skills", "list", "--json")[1])["items"] if one["slug"] == "tea"
    )
    assert (len(tea["description"]), len(tea["warnings"])) == (1_024, 1)


def test_json_list_has_the_records_of_the_http_api(command: Command, add_skill: AddSkill) -> None:
    add_skill("tea", TEA)
    folder = add_skill("bad", "no front matter")
    code, out, err = command("skills", "list", "--json")
    listed = json.loads(out)
    tea = listed["items"][-1]
    assert (code, err) == (0, "")
    assert (tea["slug"], tea["source"], tea["version"], tea["eligible"]) == ("tea", "user", "2.1", False)
    assert tea["missing"] == {"env": ["KETTLE_KEY"], "bins": []}
    (broken,) = listed["broken"]
    assert (broken["slug"], broken["source"], broken["path"]) == ("bad", "user", str(folder))
    assert "front matter" in broken["fault"]


def test_broken_skill_is_one_line_on_stderr(command: Command, add_skill: AddSkill) -> None:
    add_skill("bad", "no front matter")
    code, out, err = command("skills", "list")
    assert code == 0
    assert "bad" not in out
    assert err.startswith("bad: ")
    assert err.count("\n") == 1


def test_show_prints_all_details_of_a_skill(command: Command, add_skill: AddSkill) -> None:
    folder = add_skill("tea", TEA)
    (folder / "references").mkdir()
    (folder / "references" / "leaves.md").write_text("Green.")
    code, out, err = command("skills", "show", "tea")
    assert (code, err) == (0, "")
    assert out.startswith("Tea time (tea, user)\nBrews tea. Use it when someone is thirsty.\n\n")
    assert f"path     {folder}\n" in out
    assert "version  2.1\nlicense  MIT\n" in out
    assert "files    SKILL.md, references/leaves.md\n" in out
    assert out.endswith("Boil water.\n")


def test_show_as_json_has_path_files_and_instructions(command: Command, add_skill: AddSkill) -> None:
    folder = add_skill("tea", TEA)
    shown = json.loads(command("skills", "show", "tea", "--json")[1])
    assert (shown["path"], shown["files"], shown["title"]) == (str(folder), ["SKILL.md"], "Tea time")
    assert "Boil water." in shown["instructions"]


@pytest.mark.parametrize(
    ("slug", "hint"),
    [("calculatr", "did you mean calculator?"), ("zzz", "`torana skills list` lists all skills")],
)
def test_show_of_an_unknown_skill_gives_a_hint(command: Command, slug: str, hint: str) -> None:
    assert command("skills", "show", slug) == (1, "", f"there is no skill {slug!r}; {hint}\n")


def test_show_of_a_broken_skill_prints_its_error(command: Command, add_skill: AddSkill) -> None:
    add_skill("bad", "---\nname: bad\n---\n")
    code, out, err = command("skills", "show", "bad")
    assert (code, out) == (1, "")
    assert err.startswith("bad could not be loaded: SKILL.md has no description")


@pytest.mark.parametrize("arguments", [("list",), ("show", "odd")])
def test_control_characters_of_a_skill_are_escaped(
    command: Command, add_skill: AddSkill, arguments: tuple[str, ...]
) -> None:
    add_skill("odd", '---\nname: odd\ndescription: "[/b] \\e[2J\\x9b1m :smile:"\n---\n')
    _, out, _ = command("skills", *arguments)
    assert r"[/b] \x1b[2J\x9b1m :smile:" in out
