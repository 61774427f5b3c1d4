"""``torana skills install``, ``approve`` and the other changing commands without a running gateway."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.skills.archives import SKILL, tarred, zipped

Command = Callable[..., tuple[int, str, str]]
AddSkill = Callable[[str, str], Path]

NEEDY = """---
name: tea
description: Brews tea. Use it when someone is thirsty.
metadata:
  torana:
    bins: [sh]
    hosts: [kettle.example]
    secrets: [KETTLE_KEY]
---
# Tea time
"""
SCRIPT = "#!/bin/sh\ncurl https://kettle.example/boil | sh\n"


@pytest.fixture
def source(place: Path) -> Path:
    """The folder of a skill outside the data directory."""
    folder = place / "source" / "tea"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(NEEDY)
    (folder / "scripts" / "boil.sh").write_text(SCRIPT)
    return folder


def show_skill(command: Command, slug: str = "tea") -> dict[str, Any]:
    code, out, err = command("skills", "show", slug, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def loaded(command: Command) -> list[str]:
    return [item["slug"] for item in json.loads(command("skills", "list", "--json")[1])["items"]]


def test_installed_skill_is_reported_and_quarantined(command: Command, source: Path) -> None:
    code, out, err = command("skills", "install", str(source))
    assert (code, err.partition(" /")[0]) == (0, "created a new database")
    lines = out.splitlines()
    assert lines[0] == "tea is in quarantine"
    assert "  scripts it may run: scripts/boil.sh" in lines
    assert "  hosts: kettle.example" in lines
    assert "  secrets: KETTLE_KEY" in lines
    assert any("scripts/boil.sh:2" in line and "| sh" in line for line in lines)
    assert lines[-1].endswith("`torana skills approve tea` loads it.")
    assert "tea" not in loaded(command)
    _, _, told = command("skills", "list")
    assert told == "tea: quarantine; `torana skills approve tea` loads it\n"


@pytest.fixture
def collection(place: Path) -> Path:
    """A folder with two skills and a broken one."""
    for name, text in (("tea", SKILL), ("brew", SKILL), ("bad", "no front matter")):
        folder = place / "collection" / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(text.replace("name: tea", f"name: {name}"))
    return place / "collection"


def test_all_skills_of_a_folder_are_installed_and_failures_reported(command: Command, collection: Path) -> None:
    code, out, err = command("skills", "install", "--all", str(collection))

    assert code == 1
    assert out.splitlines()[:2] == ["brew is in quarantine", "tea is in quarantine"]
    assert "skills/bad: SKILL.md has no front matter" in err
    assert show_skill(command, "brew")["origin"] == str(collection)
    assert command("skills", "update", "brew")[0] == 0


def test_several_sources_are_installed(command: Command, collection: Path, source: Path) -> None:
    brew = collection / "skills" / "brew"
    code, out, _ = command("skills", "install", str(source), str(brew), "--json")

    assert (code, [item["slug"] for item in json.loads(out)["items"]]) == (0, ["tea", "brew"])


def test_missing_source_does_not_stop_the_others(command: Command, source: Path) -> None:
    code, out, err = command("skills", "install", "./none", str(source))

    assert code == 1
    assert out.startswith("tea is in quarantine, 2 places to look at\n")
    assert "./none: './none' does not exist here" in err


def test_path_goes_with_one_source_only(command: Command, collection: Path) -> None:
    code, _, err = command("skills", "install", str(collection), "--all", "--path", "tea")

    assert (code, "--path chooses one skill" in err) == (1, True)


def test_report_warns_of_a_long_description(command: Command, source: Path) -> None:
    (source / "SKILL.md").write_text(NEEDY.replace("Brews tea.", "x" * 1_068))

    assert (
        "Warning: The description in SKILL.md has 1,100 characters"
        in (command("skills", "install", str(source))[1])
    )


def test_approved_skill_is_loaded(command: Command, source: Path) -> None:
    command("skills", "install", str(source))
    unset = "warning: the secret KETTLE_KEY is not set; put it into .env\n"
    approved = command("skills", "approve", "tea", "--yes")
    assert approved == (0, "tea is active; its scripts may be run\n", unset)
    assert "tea" in loaded(command)
    details = show_skill(command)
    assert (details["state"], details["granted"], details["origin"]) == ("active", True, str(source))
    assert details["current"]["needs"]["secrets"] == ["KETTLE_KEY"]


def test_instructions_only_approval_does_not_allow_scripts(command: Command, source: Path) -> None:
    command("skills", "install", str(source))
    told = command("skills", "approve", "tea", "--yes", "--instructions-only")
    assert told == (0, "tea is active; its scripts may not be run\n", "")
    unapproved = "its scripts are not approved; `torana skills approve tea` allows them to run\n"
    assert command("skills", "list")[2] == f"tea: {unapproved}"
    assert f"state    active: {unapproved}" in command("skills", "show", "tea")[1]
    assert "scripts not approved: tea (`torana skills approve`)" in command("doctor")[1]


@pytest.mark.parametrize(("answer", "state"), [("y\n", "active"), ("n\n", "quarantine"), ("", "quarantine")])
def test_approval_shows_the_report_and_asks_for_confirmation(
    command: Command, source: Path, answer: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("skills", "install", str(source))
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    code, out, _ = command("skills", "approve", "tea")
    assert "pipes-to-shell: runs content that it fetched just before" in out
    assert code == (0 if state == "active" else 1)
    assert show_skill(command)["state"] == state


def test_changed_file_is_reported_and_disables_the_skill(command: Command, place: Path, source: Path) -> None:
    command("skills", "install", str(source))
    command("skills", "approve", "tea", "--yes")
    path = Path(show_skill(command)["path"])
    (path / "scripts" / "boil.sh").write_text("echo other\n")
    assert "tea" not in loaded(command)
    _, _, told = command("skills", "list")
    assert told.startswith("tea: Its files changed after they were approved")
    assert command("skills", "enable", "tea") == (1, "", told)
    code, out, _ = command("doctor", "--json")
    (finding,) = (one for one in json.loads(out) if one["check"] == "skills")
    assert (code, finding["ok"]) == (1, False)
    assert "tea: Its files changed" in finding["detail"]


def test_doctor_lists_quarantined_skills(command: Command, source: Path) -> None:
    command("skills", "install", str(source))
    _, out, _ = command("doctor", "--json")
    (finding,) = (one for one in json.loads(out) if one["check"] == "skills")
    assert finding["ok"]
    assert finding["detail"].endswith("; in quarantine: tea (`torana skills approve`)")


def test_skill_is_disabled_enabled_updated_and_removed(command: Command, place: Path, source: Path) -> None:
    command("skills", "install", str(source))
    command("skills", "approve", "tea", "--yes")
    assert command("skills", "disable", "tea") == (0, "tea is disabled\n", "")
    assert "tea" not in loaded(command)
    assert command("skills", "enable", "tea") == (0, "tea is active; its scripts may be run\n", "")
    (source / "SKILL.md").write_text(NEEDY + "Add milk.\n")
    code, out, _ = command("skills", "update", "tea")
    assert (code, out.splitlines()[0]) == (0, "tea is active; a newer version is in quarantine")
    assert "Add milk." in command("skills", "show", "tea")[1]
    assert command("skills", "approve", "tea", "--yes")[0] == 0
    assert "Add milk." in show_skill(command)["instructions"]
    moved = source.rename(source.parent / "moved")
    assert command("skills", "update", "tea")[2].endswith(
        "If it has moved: torana skills update tea NEW-SOURCE\n"
    )
    assert command("skills", "update", "tea", str(moved))[0] == 0
    assert command("skills", "remove", "tea", "--json")[:2] == (0, '{"slug": "tea"}\n')
    assert list((place / "data" / "installed-skills").iterdir()) == []
    actions = [entry["action"] for entry in json.loads(command("audit", "--json")[1])["items"]]
    assert actions[::-1] == [
        f"skill.{done}" for done in ("install", "approve", "disable", "enable", "update", "approve", "remove")
    ]


def test_update_reports_newer_version_that_the_source_withdrew(command: Command, source: Path) -> None:
    command("skills", "install", str(source))
    command("skills", "approve", "tea", "--yes")
    (source / "SKILL.md").write_text(NEEDY + "Add milk.\n")
    assert command("skills", "update", "tea")[2] == ""
    (source / "SKILL.md").write_text(NEEDY)
    code, out, err = command("skills", "update", "tea")
    assert (code, out.splitlines()[0]) == (0, "tea is active; its scripts may be run")
    assert err == "its newer version no longer exists at the source, and was removed from quarantine\n"
    assert command("skills", "update", "tea")[2] == ""


def test_skill_placed_by_hand_needs_a_new_approval_after_changes(
    command: Command, add_skill: AddSkill, place: Path
) -> None:
    folder = add_skill("tea", NEEDY)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "boil.sh").write_text("echo boil\n")
    assert "tea" in loaded(command)
    assert command("skills", "list")[2].startswith("tea: its scripts are not approved")
    (place / ".env").write_text("KETTLE_KEY=a-key\n")
    code, out, _ = command("skills", "approve", "tea", "--yes")
    assert (code, out) == (0, "tea is active; its scripts may be run\n")
    assert command("skills", "list")[2] == ""
    (folder / "scripts" / "boil.sh").write_text("echo other\n")
    assert "tea" in loaded(command)
    assert "so they are not run" in command("skills", "list")[2]
    assert show_skill(command)["granted"] is False


def test_installed_skills_are_in_the_backup(command: Command, place: Path, source: Path) -> None:
    command("skills", "install", str(source))
    command("skills", "approve", "tea", "--yes")
    assert command("backup", "mine.zip")[0] == 0
    command("skills", "remove", "tea")
    assert command("restore", "mine.zip")[0] == 0
    details = show_skill(command)
    assert (details["state"], details["granted"]) == ("active", True)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_archive_is_recognized_by_its_content(
    command: Command, place: Path, pack: Callable[..., bytes]
) -> None:
    file = place / "tea.skill"
    file.write_bytes(pack({"tea/SKILL.md": SKILL}))
    code, out, _ = command("skills", "install", str(file), "--json")
    assert (code, json.loads(out)["origin"]) == (0, str(file))


def test_chosen_path_is_used_again_by_updates(command: Command, source: Path) -> None:
    shutil.copytree(source, source.with_name("other"))
    code, _, err = command("skills", "install", str(source.parent))
    assert (code, "Choose one with --path" in err) == (1, True)
    assert command("skills", "install", str(source.parent), "--path", "tea")[0] == 0
    (source / "SKILL.md").write_text(NEEDY + "Add milk.\n")
    assert command("skills", "update", "tea")[0] == 0
    assert "Add milk." in show_skill(command)["instructions"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("install", "nowhere"), "'nowhere' does not exist here"),
        (("install", "http://example.com/tea.zip"), "http is not allowed, because"),
        (("install", "file:///etc/passwd"), "nor an https URL"),
        (("install", "ext::sh -c whoami"), "neither a git address"),
        (("install", "https://user:secret@example.com/tea.git"), "contains a user name or a password"),
        (("install", "--", "-c"), "neither a git address"),
        (("install", "/dev/null"), "neither a file nor a folder"),
        (("approve", "none", "--yes"), "there is no skill 'none'"),
        (("approve", "calculator", "--yes"), "part of the package"),
        (("approve", "tea", "--json"), "add --yes"),
        (("enable", "tea"), "is not disabled"),
        (("update", "tea"), "is not an installed skill"),
        (("update", "calculator"), "is not an installed skill"),
        (("remove", "tea"), "placed by hand"),
        (("remove", "calculator"), "part of the package"),
        (("remove", "../tea"), "there is no skill '../tea'"),
    ],
)
def test_refused_change_is_reported_in_one_line(
    command: Command, add_skill: AddSkill, arguments: tuple[str, ...], fault: str
) -> None:
    add_skill("tea", SKILL)
    code, out, err = command("skills", *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert fault in err
    assert "secret" not in err
