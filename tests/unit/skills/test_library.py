"""The catalogue while skill folders are added, changed and removed."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from torana.api.schemas.contract import SkillBody
from torana.skills import Catalogue, Skill, SkillFileError, Skills
from torana.skills.library import in_background

WriteSkill = Callable[..., Path]

COFFEE = "---\nname: coffee\ndescription: Brews coffee.\n---\n# Coffee\n"
BROKEN = "---\nname: coffee\n---\n"


class Clock:
    """A clock that only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def at_once(work: Callable[[], object]) -> None:
    """A background runner that runs the work before it returns."""
    work()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def core_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "core" / "coffee"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(COFFEE)
    return folder.parent


@pytest.fixture
def environ() -> dict[str, str]:
    return {}


@pytest.fixture
def programs() -> set[str]:
    return set()


@pytest.fixture
def skills(
    core_dir: Path, skills_dir: Path, clock: Clock, environ: dict[str, str], programs: set[str]
) -> Skills:
    def which(name: str) -> str | None:
        return name if name in programs else None

    return Skills(
        core_dir=core_dir,
        user_dir=skills_dir,
        environ=environ,
        which=which,
        monotonic=clock,
        background=at_once,
    )


def slugs(catalogue: Catalogue) -> list[tuple[str, str]]:
    return [(skill.source, skill.slug) for skill in catalogue.loaded]


def test_core_comes_before_user_and_each_is_sorted(skills: Skills, write_skill: WriteSkill) -> None:
    for slug in ("water", "ale"):
        write_skill(slug)

    catalogue = skills.catalogue()

    assert slugs(catalogue) == [("core", "coffee"), ("user", "ale"), ("user", "water")]
    assert catalogue.counts() == {"core": 1, "user": 2}
    found = catalogue.get("ale")
    assert found is not None
    assert (found.slug, found.source) == ("ale", "user")
    assert catalogue.get("nothing") is None


def test_user_skill_replaces_the_core_skill(skills: Skills, write_skill: WriteSkill) -> None:
    write_skill("coffee", COFFEE.replace("Brews", "Roasts"))

    catalogue = skills.catalogue()

    assert slugs(catalogue) == [("user", "coffee")]
    assert catalogue.counts() == {"core": 0, "user": 1}
    assert catalogue.loaded[0].description == "Roasts coffee."


def test_broken_user_skill_keeps_the_core_skill_and_other_skills(
    skills: Skills, write_skill: WriteSkill
) -> None:
    folder = write_skill("coffee", BROKEN)
    write_skill("tea")

    catalogue = skills.catalogue()

    assert slugs(catalogue) == [("core", "coffee"), ("user", "tea")]
    assert [(item.source, item.slug, item.path) for item in catalogue.broken] == [("user", "coffee", folder)]
    assert catalogue.broken[0].fault.startswith("SKILL.md has no description;")


def test_unlistable_folders_do_not_affect_other_skills(skills: Skills, write_skill: WriteSkill) -> None:
    write_skill("tea")
    (write_skill("linked") / "notes.md").symlink_to("nowhere")
    write_skill(os.fsdecode(b"th\xe9"))

    catalogue = skills.catalogue()

    assert slugs(catalogue) == [("core", "coffee"), ("user", "tea")]
    assert [item.slug for item in catalogue.broken] == ["linked", "th\\udce9"]


@pytest.mark.parametrize("user_dir", [None, "not-there"])
def test_missing_user_directory_is_empty(core_dir: Path, user_dir: str | None) -> None:
    directory = core_dir / user_dir if user_dir else None

    catalogue = Skills(core_dir=core_dir, user_dir=directory, environ={}).catalogue()

    assert (catalogue.counts(), catalogue.broken) == ({"core": 1, "user": 0}, ())


def test_user_directory_that_is_a_file_is_an_error(core_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    catalogue = Skills(core_dir=core_dir, user_dir=path, environ={}).catalogue()

    assert catalogue.counts() == {"core": 1, "user": 0}
    assert [(item.path, item.fault) for item in catalogue.broken] == [
        (path, "The skills directory cannot be read (Not a directory); repair or remove it.")
    ]


def test_files_and_hidden_folders_beside_the_skills_are_ignored(skills: Skills, skills_dir: Path) -> None:
    (skills_dir / "README.md").touch()
    (skills_dir / ".git").mkdir()

    assert skills.catalogue().broken == ()


def test_skills_over_the_limit_are_not_read_and_reported(skills: Skills, skills_dir: Path) -> None:
    for number in range(501):
        (skills_dir / f"s{number:03}").mkdir()

    broken = skills.catalogue().broken

    assert len(broken) == 501
    assert [item.fault for item in broken if item.path == skills_dir] == [
        "The directory holds more than 500 skills; those after 's499' are not read. Remove some."
    ]


def test_new_changed_and_removed_skills_are_picked_up_within_a_second(
    skills: Skills, clock: Clock, write_skill: WriteSkill
) -> None:
    first = skills.catalogue()
    folder = write_skill("tea")

    clock.now = 0.9
    assert skills.catalogue() is first
    clock.now = 1.0
    assert slugs(skills.catalogue()) == [("core", "coffee"), ("user", "tea")]

    write_skill("tea", "---\nname: tea\ndescription: Better tea.\n---\n")
    clock.now = 2.0
    changed = skills.catalogue().get("tea")
    assert changed is not None
    assert changed.description == "Better tea."

    shutil.rmtree(folder)
    clock.now = 3.0
    assert skills.catalogue() == first


def test_slow_scan_blocks_no_caller_and_runs_once_at_a_time(
    core_dir: Path, skills_dir: Path, clock: Clock, write_skill: WriteSkill
) -> None:
    looks: list[Callable[[], object]] = []
    skills = Skills(
        core_dir=core_dir, user_dir=skills_dir, environ={}, monotonic=clock, background=looks.append
    )
    first = skills.catalogue()
    write_skill("tea")

    for clock.now in (1.0, 2.0, 3.0):
        assert skills.catalogue() is first
    (look,) = looks
    look()

    assert slugs(skills.catalogue()) == [("core", "coffee"), ("user", "tea")]
    assert len(looks) == 1


def test_catalogue_is_thread_safe(
    core_dir: Path, skills_dir: Path, clock: Clock, write_skill: WriteSkill
) -> None:
    skills = Skills(core_dir=core_dir, user_dir=skills_dir, environ={}, monotonic=clock)
    write_skill("tea")
    together = threading.Barrier(8)

    def ask(_: int) -> list[Catalogue]:
        together.wait()
        return [skills.catalogue() for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        found = [catalogue for asked in pool.map(ask, range(8)) for catalogue in asked]

    assert {id(catalogue) for catalogue in found} == {id(skills.catalogue())}
    assert slugs(skills.catalogue()) == [("core", "coffee"), ("user", "tea")]


def test_slow_background_scan_does_not_block_the_caller() -> None:
    goes_on, looked = threading.Event(), threading.Event()

    def look() -> None:
        goes_on.wait()
        looked.set()

    in_background(look)
    goes_on.set()

    assert looked.wait(timeout=10)


def test_change_of_a_file_beside_the_instructions_changes_digest_and_etag(
    skills: Skills, clock: Clock, write_skill: WriteSkill
) -> None:
    write_skill("tea", files={"references/a.md": "one"})
    before = skills.catalogue()

    write_skill("tea", files={"references/a.md": "three"})
    clock.now = 1.0
    after = skills.catalogue()

    assert before.loaded[1].digest != after.loaded[1].digest
    assert before.etag != after.etag


def test_unchanged_skills_are_not_read_again(skills: Skills, clock: Clock, write_skill: WriteSkill) -> None:
    write_skill("tea")
    before = skills.catalogue().get("tea")

    write_skill("water")
    clock.now = 1.0

    assert skills.catalogue().get("tea") is before


def test_unchanged_catalogue_is_the_same_object(skills: Skills, clock: Clock, write_skill: WriteSkill) -> None:
    write_skill("tea")
    write_skill("milk", BROKEN)
    before = skills.catalogue()
    clock.now = 5.0

    assert skills.catalogue() is before


def test_repaired_skill_is_loaded(skills: Skills, clock: Clock, write_skill: WriteSkill) -> None:
    write_skill("tea", BROKEN)
    assert skills.catalogue().get("tea") is None

    write_skill("tea")
    clock.now = 1.0

    assert skills.catalogue().broken == ()
    assert skills.catalogue().get("tea") is not None


def test_each_new_error_is_logged_once(
    skills: Skills, clock: Clock, write_skill: WriteSkill, caplog: pytest.LogCaptureFixture
) -> None:
    def faults() -> list[object]:
        return [vars(record)["fault"] for record in caplog.records if record.getMessage() == "skill_not_loaded"]

    caplog.set_level(logging.WARNING, logger="torana.skills.library")
    write_skill("tea", BROKEN)
    for clock.now in (0.0, 1.0, 2.0):
        skills.catalogue()
    assert len(faults()) == 1
    assert vars(caplog.records[0])["skill"] == "tea"

    write_skill("tea", "no front matter")
    write_skill("milk")
    for clock.now in (3.0, 4.0):
        skills.catalogue()
    assert [str(fault)[:28] for fault in faults()] == [
        "SKILL.md has no description;",
        "SKILL.md has no front matter",
    ]


NEEDY = """\
---
name: tea
description: Brews tea.
license: MIT
metadata:
  title: Tea
  version: "1.2"
  tags: hot, green tea
  openclaw:
    requires: {env: [TEA_KEY, TEA_URL], bins: [kettle], anyBins: [cup, mug]}
---
"""


def record(skills: Skills, skill: Skill) -> dict[str, Any]:
    return SkillBody.from_skill(skill, skills.missing(skill)).model_dump(mode="json")


def test_record_shows_what_is_missing_until_it_is_there(
    skills: Skills, environ: dict[str, str], programs: set[str], write_skill: WriteSkill
) -> None:
    write_skill("tea", NEEDY)
    skill = skills.catalogue().loaded[1]
    environ.update(TEA_KEY="secret", TEA_URL="")
    programs.add("spoon")

    assert record(skills, skill) == {
        "slug": "tea",
        "title": "Tea",
        "source": "user",
        "description": "Brews tea.",
        "requiresAuth": True,
        "version": "1.2",
        "license": "MIT",
        "eligible": False,
        "missing": {"env": ["TEA_URL"], "bins": ["kettle", "cup | mug"]},
        "tags": ["hot", "green tea"],
        "digest": skill.digest,
    }

    environ["TEA_URL"] = "http://localhost"
    programs.update({"kettle", "mug"})
    assert record(skills, skill)["missing"] == {"env": [], "bins": []}
    assert record(skills, skill)["eligible"]


def test_etag_changes_when_a_missing_program_appears(
    skills: Skills, clock: Clock, programs: set[str], write_skill: WriteSkill
) -> None:
    write_skill("tea", NEEDY)
    before = skills.catalogue().etag

    programs.add("kettle")
    clock.now = 1.0

    assert skills.catalogue().etag != before


def test_files_are_listed_and_read(skills: Skills, write_skill: WriteSkill) -> None:
    write_skill("tea", files={"references/green.md": "grün\r\n", "scripts/brew.sh": "", ".env": "KEY=1"})
    skill = skills.catalogue().loaded[1]

    assert skills.files(skill) == ("SKILL.md", "references/green.md", "scripts/brew.sh")
    assert skills.read_file("tea", "references/green.md") == "grün\n"
    assert skills.read_file("tea", "./references//green.md") == "grün\n"


@pytest.mark.parametrize(
    "path",
    [
        "../coffee/SKILL.md",
        "references/../SKILL.md",
        "../../secret.md",
        "/etc/passwd",
        "references",
        "references/",
        ".env",
        "nothing.md",
        "",
        ".",
        "..",
        "SKILL.md\0",
        "~/secret.md",
        "skill.md",
        "\udce9",
    ],
)
def test_only_listed_files_can_be_read(
    skills: Skills, write_skill: WriteSkill, tmp_path: Path, path: str
) -> None:
    (tmp_path / "secret.md").write_text("secret")
    write_skill("coffee", COFFEE)
    write_skill("tea", files={"references/green.md": "green", ".env": "KEY=1"})

    with pytest.raises(SkillFileError) as caught:
        skills.read_file("tea", path)

    assert str(caught.value) == (f"The skill 'tea' has no file {path!r}; it has SKILL.md, references/green.md.")


def test_link_made_after_loading_opens_nothing_outside(
    skills: Skills, write_skill: WriteSkill, tmp_path: Path
) -> None:
    (tmp_path / "secret.md").write_text("secret")
    folder = write_skill("tea", files={"notes.md": "x"})
    skills.catalogue()
    (folder / "notes.md").unlink()
    (folder / "notes.md").symlink_to(tmp_path / "secret.md")

    with pytest.raises(SkillFileError, match="is a link that leads out of the skills directory"):
        skills.read_file("tea", "notes.md")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"x" * 65_537, "notes.md has more than 65,536 bytes; split it into smaller files."),
        (b"\x89PNG\r\n", "notes.md is not text in UTF-8 (byte 1); save it as UTF-8."),
        (b"a\0b", "notes.md is not text: it holds U+0000; save it as plain text."),
    ],
)
def test_large_or_binary_file_is_refused(
    skills: Skills, write_skill: WriteSkill, data: bytes, fault: str
) -> None:
    (write_skill("tea") / "notes.md").write_bytes(data)

    with pytest.raises(SkillFileError) as caught:
        skills.read_file("tea", "notes.md")

    assert str(caught.value) == fault


@pytest.mark.parametrize(
    ("slug", "fault"),
    [
        ("cofee", "There is no skill 'cofee'. The nearest is 'coffee'."),
        ("zzz", "There is no skill 'zzz'."),
        ("../coffee", "There is no skill '../coffee'. The nearest is 'coffee'."),
    ],
)
def test_unknown_skill_is_refused_with_the_nearest(skills: Skills, slug: str, fault: str) -> None:
    with pytest.raises(SkillFileError) as caught:
        skills.read_file(slug, "SKILL.md")

    assert str(caught.value) == fault


def test_long_listing_is_cut(skills: Skills, write_skill: WriteSkill) -> None:
    write_skill("tea", files={f"{number:02}.md": "" for number in range(24)})

    with pytest.raises(SkillFileError, match=r"it has 00\.md, .*, 19\.md and 5 more\.$"):
        skills.read_file("tea", "nothing.md")
