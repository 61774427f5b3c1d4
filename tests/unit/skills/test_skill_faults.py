"""Invalid skills are refused with the problem, its place and the cure; no other error is raised."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.skills import Skill, SkillFileError, SkillInvalid, parse_skill
from torana.skills.folder import SkillFile, digest, read_text

WriteSkill = Callable[..., Path]


def fault_of(folder: Path) -> str:
    with pytest.raises(SkillInvalid) as caught:
        parse_skill(folder, source="user")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param(
            "# Tea",
            "SKILL.md has no front matter; start it with a line '---', then `name: …` and `description: …`, "
            "then a line '---'.",
            id="no front matter",
        ),
        pytest.param("", "SKILL.md has no front matter; start it", id="empty"),
        pytest.param("---\nname: tea\ndescription: x\n", "SKILL.md has no front matter;", id="not closed"),
        pytest.param(
            "---\n- name\n---\n",
            "The front matter of SKILL.md is not a mapping; write lines such as `name: my-skill`.",
            id="a list",
        ),
        pytest.param("---\n---\n", "The front matter of SKILL.md is not a mapping;", id="nothing in it"),
        pytest.param(
            "---\nname: tea\nlicense: 'MIT\n---\n",
            "SKILL.md, line 4: found unexpected end of stream; put values with special characters in quotes.",
            id="no YAML",
        ),
        pytest.param(
            "---\nname: tea\ndescription: x: y\n  z: [\n---\n",
            "SKILL.md, line 3: mapping values are not allowed here;",
            id="no YAML, and the colon is not all",
        ),
        pytest.param("---\nname: \x07\n---\n", "SKILL.md, front matter: unacceptable character", id="bell"),
        pytest.param(
            "---\nname: &a [tea]\ndescription: *a\n---\n",
            "SKILL.md, line 2: anchors such as &this are not allowed;",
            id="anchor",
        ),
        pytest.param("---\nname: *a\n---\n", "SKILL.md, line 2: found undefined alias 'a';", id="alias"),
        pytest.param(
            f"---\nname: {'[' * 99}\n---\n",
            "SKILL.md, line 2: this is nested more than 20 deep;",
            id="deep",
        ),
        pytest.param('---\nname: "\\UFFFFFFFF"\n---\n', "SKILL.md, front matter: ", id="no such character"),
        pytest.param(
            f"---\nname: tea\nnote: {'x' * 33_000}\n---\n",
            "The front matter of SKILL.md has more than 32,768 characters; move text below its closing '---'.",
            id="long front matter",
        ),
        pytest.param(
            "---\ndescription: x\n---\n",
            "SKILL.md has no name; add `name: tea` to its front matter.",
            id="no name",
        ),
        pytest.param("---\nname: ' '\ndescription: x\n---\n", "SKILL.md has no name;", id="blank name"),
        pytest.param("---\nname: [a]\ndescription: x\n---\n", "SKILL.md has no name;", id="a list as name"),
        pytest.param(
            "---\nname: tea\n---\n",
            "SKILL.md has no description; add `description: …` to its front matter: what the skill does and "
            "when to use it.",
            id="no description",
        ),
        pytest.param("---\nname: tea\ndescription: ~\n---\n", "SKILL.md has no description;", id="null"),
        pytest.param(
            b"---\nname: t\xe9a\n---\n",
            "SKILL.md is not text in UTF-8 (byte 12); save it as UTF-8.",
            id="Latin-1",
        ),
        pytest.param("---\nname: tea\n---\n".encode("utf-16"), "SKILL.md is not text in UTF-8", id="UTF-16"),
        pytest.param(
            "---\nname: tea\ndescription: x\n---\n\0",
            "SKILL.md is not text: it holds U+0000; save it as plain text.",
            id="U+0000",
        ),
        pytest.param(
            "x" * (256 * 1024 + 1),
            "SKILL.md has more than 262,144 bytes; split it into smaller files.",
            id="too long",
        ),
    ],
)
def test_invalid_file_is_refused_with_a_cure(write_skill: WriteSkill, text: str | bytes, fault: str) -> None:
    assert fault_of(write_skill("tea", text)).startswith(fault)


@pytest.mark.parametrize(
    ("folder", "suggestion"),
    [
        ("Green Tea", "green-tea"),
        ("green_tea", "green-tea"),
        ("green--tea", "green-tea"),
        ("tea-", "tea"),
        ("茶", "my-skill"),
        ("t" * 65, "t" * 64),
    ],
)
def test_invalid_folder_name_is_refused_with_a_suggestion(
    write_skill: WriteSkill, folder: str, suggestion: str
) -> None:
    assert fault_of(write_skill(folder)) == (
        f"The folder's name {folder!r} cannot be a skill's; rename it to at most 64 lowercase letters, "
        f"digits and single hyphens, such as {suggestion!r}."
    )


def test_folder_without_skill_file_is_refused(skills_dir: Path) -> None:
    (skills_dir / "tea").mkdir()

    assert fault_of(skills_dir / "tea").startswith("There is no SKILL.md in the folder; add one")


def test_missing_folder_is_refused(skills_dir: Path) -> None:
    fault = fault_of(skills_dir / "tea")

    assert fault == "The folder cannot be read (No such file or directory); repair or remove it."


@pytest.mark.parametrize("name", ["SKILL.md", "references", "references/notes.md"])
def test_link_out_of_the_skills_directory_is_refused(
    tmp_path: Path, write_skill: WriteSkill, name: str
) -> None:
    folder = write_skill("tea", files={"references/other.md": "x"})
    outside = tmp_path / "secret"
    outside.write_text("secret")
    path = folder / name
    if path.is_dir():
        path = path / "linked"
    path.unlink(missing_ok=True)
    path.symlink_to(outside)

    assert fault_of(folder) == (
        f"{path.relative_to(folder).as_posix()!r} is a link that leads out of the skills directory; "
        "copy what it points to."
    )


def test_folder_that_is_a_link_out_is_refused(tmp_path: Path, skills_dir: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (skills_dir / "tea").symlink_to(tmp_path / "elsewhere")

    assert fault_of(skills_dir / "tea").startswith("'tea' is a link that leads out of the skills directory")


def test_circular_link_is_refused(write_skill: WriteSkill) -> None:
    folder = write_skill("tea")
    (folder / "again").symlink_to(folder)

    assert fault_of(folder) == (
        "'again' is nested more than 8 folders deep; flatten it, or remove a link that leads back."
    )


def test_dangling_link_is_refused(write_skill: WriteSkill) -> None:
    folder = write_skill("tea")
    (folder / "notes.md").symlink_to("nowhere.md")

    fault = fault_of(folder)

    assert fault == "'notes.md' cannot be read (No such file or directory); repair or remove it."


def test_pipe_is_refused_without_waiting_for_its_writer(write_skill: WriteSkill) -> None:
    folder = write_skill("tea")
    os.mkfifo(folder / "pipe")

    assert fault_of(folder) == "'pipe' is neither a file nor a folder; remove it."


def test_file_name_that_is_not_utf8_is_refused(write_skill: WriteSkill) -> None:
    folder = write_skill("tea")
    (folder / os.fsdecode(b"th\xe9.md")).touch()

    assert fault_of(folder) == "The file name 'th\\udce9.md' is not UTF-8; rename the file."


def test_folder_with_too_many_entries_is_refused(write_skill: WriteSkill) -> None:
    folder = write_skill("tea")
    for number in range(2_000):
        (folder / f"{number}.md").touch()

    assert fault_of(folder).startswith("The folder has more than 2,000 entries;")


def test_folder_with_too_many_bytes_is_refused(write_skill: WriteSkill) -> None:
    folder = write_skill("tea")
    with (folder / "video.mp4").open("wb") as sparse:
        sparse.truncate(50 * 1024 * 1024)

    assert fault_of(folder).startswith("The folder holds more than 50 MiB;")


def test_file_that_disappears_while_being_read_is_refused(skills_dir: Path) -> None:
    file = SkillFile("notes.md", str(skills_dir / "notes.md"), 1, (0, 0))
    gone = "notes.md cannot be read (No such file or directory); repair or remove it."

    with pytest.raises(SkillFileError, match=re.escape(gone)):
        read_text(file, limit=10)
    with pytest.raises(SkillInvalid, match=re.escape(gone)):
        digest([file])


def read_or_refuse(folder: Path, data: bytes) -> Skill | None:
    (folder / "SKILL.md").write_bytes(data)
    try:
        return parse_skill(folder, source="user")
    except SkillInvalid:
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("skills") / "tea"
    path.mkdir()
    return path


@given(data=st.binary(max_size=2_000))
def test_random_bytes_are_refused_and_never_crash(folder: Path, data: bytes) -> None:
    read_or_refuse(folder, data)
    read_or_refuse(folder, b"---\nname: tea\ndescription: x\n" + data + b"\n---\n" + data)


YAML_PIECES = st.sampled_from(
    [*"[]{}:-?&*!|>'\"#%@`,~ \t\n\\", ": ", "- ", "---\n", "<<: ", "\\u", "a", "0", "é", "🍵"]
)
VALUES = st.recursive(
    st.text() | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KNOWN = ["name", "description", "license", "version", "tags", "allowed-tools", "metadata"]


@given(pieces=st.lists(YAML_PIECES, max_size=60))
def test_pieces_of_yaml_are_read_or_refused(folder: Path, pieces: list[str]) -> None:
    read_or_refuse(folder, f"---\nname: tea\ndescription: x\nother: {''.join(pieces)}\n---\n".encode())


@given(fields=st.dictionaries(st.sampled_from(KNOWN), VALUES), body=st.text())
def test_any_field_of_any_type_is_read_or_refused(folder: Path, fields: dict[str, object], body: str) -> None:
    front = json.dumps({"name": "tea", "description": "x", **fields})
    data = f"---\n{front}\n---\n{body}".encode("utf-8", "replace")

    skill = read_or_refuse(folder, data)

    if skill is not None:
        assert 1 <= len(skill.description) <= 1024
        assert 1 <= len(skill.title) <= 100
        lines = [
            skill.title,
            skill.description,
            skill.version or "",
            *skill.tags,
            *skill.tools,
            *skill.examples,
        ]
        assert not any(len(line.splitlines()) > 1 or "\0" in line for line in [*lines, *skill.examples])
        assert json.dumps(lines, ensure_ascii=False).encode()
