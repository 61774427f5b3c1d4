"""Parsing a skill folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torana.skills import Skill, parse_skill

WriteSkill = Callable[..., Path]

WILD = """\
---
name: todo-sync
description: Syncs to-do lists with the Todoist API: add, complete, list. Use it for tasks.
version: 2.10
license: MIT
homepage: https://example.com/todo-sync
user-invocable: true
allowed-tools: Bash(curl:*), Read
metadata:
  {
    "openclaw":
      {
        "emoji": "\\ud83e\\udd9e",
        "primaryEnv": "TODOIST_API_KEY",
        "requires": { "env": ["TODOIST_API_KEY"], "bins": ["curl", "jq"], "anyBins": ["rg", "grep"] },
        "install": [{ "id": "brew", "kind": "brew", "formula": "jq", "bins": ["jq"] }],
      },
  }
---

# Todo Sync

See [the API](references/api/endpoints.md). Run:

```bash
# not a heading
curl https://example.com
```
"""


def parsed(folder: Path) -> Skill:
    return parse_skill(folder, source="user")


def with_front(*lines: str, body: str = "Boil water.") -> str:
    return "\n".join(["---", "name: tea", "description: Brews tea.", *lines, "---", body])


def test_skill_written_for_another_agent_loads_unchanged(write_skill: WriteSkill) -> None:
    folder = write_skill(
        "todo-sync",
        WILD,
        {
            "references/api/endpoints.md": "GET /tasks",
            "scripts/sync.sh": "exit 1",
            "assets/a.svg": "<svg/>",
        },
    )

    skill = parsed(folder)

    assert skill.slug == "todo-sync"
    assert skill.title == "Todo Sync"
    assert skill.description.startswith("Syncs to-do lists with the Todoist API: add, complete, list.")
    assert (skill.version, skill.license) == ("2.10", "MIT")
    assert skill.tools == ("Bash(curl:*)", "Read")
    assert skill.requires_env == ("TODOIST_API_KEY",)
    assert skill.requires_bins == ("curl", "jq")
    assert skill.requires_any_bins == ("rg", "grep")
    assert skill.requires_auth
    assert skill.instructions.startswith("# Todo Sync")
    assert skill.path == folder


def test_minimal_skill_has_sensible_defaults(write_skill: WriteSkill) -> None:
    skill = parsed(write_skill("green-tea", with_front(body="")))

    assert (skill.title, skill.instructions) == ("Green tea", "")
    assert (skill.version, skill.license, skill.primary_env) == (None, None, None)
    assert skill.tags == skill.tools == skill.examples == skill.requires_env == skill.requires_bins == ()
    assert not skill.requires_auth


def test_slug_is_the_folder_when_the_name_differs(write_skill: WriteSkill) -> None:
    skill = parsed(write_skill("tea", "---\nname: Tea Time!\ndescription: Brews tea.\n---\n"))

    assert skill.slug == "tea"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            b"\xef\xbb\xbf---\nname: tea\ndescription: Brews tea.\n---\nBoil\nwater.", id="byte order mark"
        ),
        pytest.param(b"---\r\nname: tea\r\ndescription: Brews tea.\r\n---\r\nBoil\r\nwater.\r\n", id="CRLF"),
        pytest.param(b"---\rname: tea\rdescription: Brews tea.\r---\rBoil\rwater.\r", id="CR"),
        pytest.param(b"---  \nname: tea\ndescription: >-\n  Brews\n  tea.\n---\t\n\nBoil\nwater.", id="folded"),
    ],
)
def test_byte_order_marks_and_line_endings_are_accepted(write_skill: WriteSkill, text: bytes) -> None:
    skill = parsed(write_skill("tea", text))

    assert (skill.description, skill.instructions) == ("Brews tea.", "Boil\nwater.")


def test_lower_case_file_name_is_accepted(write_skill: WriteSkill) -> None:
    folder = write_skill("tea")
    (folder / "SKILL.md").rename(folder / "skill.md")

    assert parsed(folder).title == "Tea"


@pytest.mark.parametrize(
    ("line", "tools"),
    [
        ("allowed-tools: calculate remember", ("calculate", "remember")),
        ("allowed-tools: calculate, remember,calculate", ("calculate", "remember")),
        ("allowed-tools: [calculate, remember]", ("calculate", "remember")),
        ("allowed-tools:\n  - Bash(git add:*)\n  - Read", ("Bash(git add:*)", "Read")),
        ("allowed-tools: Bash(git add:*) Read", ("Bash(git add:*)", "Read")),
        ("allowed-tools:", ()),
        ("allowed-tools: {a: b}", ()),
        (f"allowed-tools: {'x' * 129}", ()),
    ],
)
def test_allowed_tools_are_read_in_every_form(
    write_skill: WriteSkill, line: str, tools: tuple[str, ...]
) -> None:
    assert parsed(write_skill("tea", with_front(line))).tools == tools


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param('metadata: {"openclaw": {"requires": {"env": ["KEY"], "bins": ["jq"]}}}', id="flow"),
        pytest.param(
            'metadata: \'{"openclaw": {"requires": {"env": ["KEY"], "bins": ["jq"]}}}\'', id="all as JSON"
        ),
        pytest.param(
            'metadata:\n  openclaw: \'{"requires": {"env": ["KEY"], "bins": ["jq"]}}\'', id="block as JSON"
        ),
        pytest.param(
            "metadata:\n  clawdbot:\n    requires:\n      env: [KEY]\n      bins: jq", id="older name"
        ),
        pytest.param("metadata:\n  requires:\n    env: KEY\n    bins: jq", id="no block"),
        pytest.param(
            "metadata:\n  openclaw:\n    envVars:\n      - name: KEY\n      - {name: OTHER, required: false}\n"
            "    requires: {bins: [jq, jq]}",
            id="described variables",
        ),
    ],
)
def test_requirements_are_read_from_every_vendors_block(write_skill: WriteSkill, metadata: str) -> None:
    skill = parsed(write_skill("tea", with_front(metadata)))

    assert (skill.requires_env, skill.requires_bins) == (("KEY",), ("jq",))


def test_skill_with_only_a_primary_credential_requires_auth(write_skill: WriteSkill) -> None:
    skill = parsed(write_skill("tea", with_front("metadata: {openclaw: {primaryEnv: TEA_KEY}}")))

    assert (skill.primary_env, skill.requires_env, skill.requires_auth) == ("TEA_KEY", (), True)


def test_metadata_that_only_looks_like_json_is_ignored(write_skill: WriteSkill) -> None:
    skill = parsed(write_skill("tea", with_front("metadata:\n  note: '{not json'\n  version: 3")))

    assert (skill.version, skill.requires_env) == ("3", ())


@pytest.mark.parametrize(
    ("front", "body", "title"),
    [
        ("metadata: {title: Afternoon tea}", "# Tea", "Afternoon tea"),
        ("metadata: {title: null}", "## Steps\n\n# The art  of tea\n", "The art of tea"),
        ("metadata: {title: [a, list]}", "```sh\n# comment\n```\n# Tea", "Tea"),
        ("metadata: none", "~~~~\n# comment\n~~~\n# still code\n~~~~\n", "Black tea"),
        ("license: x", "#hashtag\n# \n", "Black tea"),
        ("license: x", f"# {'T' * 101}", f"{'T' * 99}…"),
    ],
)
def test_title_comes_from_metadata_heading_or_slug(
    write_skill: WriteSkill, front: str, body: str, title: str
) -> None:
    assert parsed(write_skill("black-tea", with_front(front, body=body))).title == title


def test_examples_are_the_items_under_their_heading(write_skill: WriteSkill) -> None:
    body = """\
- not this
## Examples
Some of them:

- "Make tea"
* 'Make some "green" tea'
+ “Two cups, please”
- It's tea time
- ""
```
- not this
```
### Late
  - `tea?`
## Notes
- not this
"""
    skill = parsed(write_skill("tea", with_front(body=body)))

    assert skill.examples == (
        "Make tea",
        'Make some "green" tea',
        "Two cups, please",
        "It's tea time",
        "tea?",
    )


def test_examples_are_bounded_in_number_and_length(write_skill: WriteSkill) -> None:
    items = "\n".join([f"- {'x' * 301}", *(f"- message {number}" for number in range(60))])
    skill = parsed(write_skill("tea", with_front(body=f"## Examples\n{items}")))

    assert skill.examples == tuple(f"message {number}" for number in range(50))


@pytest.mark.parametrize(
    ("lines", "tags"),
    [
        (["metadata: {tags: 'green tea, hot'}"], ("green tea", "hot")),
        (["metadata: {tags: [green tea, hot]}"], ("green tea", "hot")),
        (["tags: [hot]"], ("hot",)),
    ],
)
def test_tags_may_hold_spaces(write_skill: WriteSkill, lines: list[str], tags: tuple[str, ...]) -> None:
    assert parsed(write_skill("tea", with_front(*lines))).tags == tags


def test_escapes_become_text_that_json_can_carry(write_skill: WriteSkill) -> None:
    title = '"\\ud83e\\udd9e \\ud800 \\0"'
    skill = parsed(write_skill("tea", with_front(f"metadata: {{title: {title}}}")))

    assert skill.title == "🦞 \N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"
    assert json.dumps(skill.title, ensure_ascii=False).encode()


def test_digest_equals_sha256_of_a_checksum_list(write_skill: WriteSkill) -> None:
    folder = write_skill("tea", with_front(), {"references/b.md": "b", "a.md": "a"})

    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\0"
        for name in ("SKILL.md", "a.md", "references/b.md")
    ]
    assert parsed(folder).digest == f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("references/new.md", True),
        ("scripts/run.sh", True),
        (".git/config", False),
        (".env", False),
        ("scripts/__pycache__/run.pyc", False),
    ],
)
def test_digest_covers_every_file_that_is_not_hidden(write_skill: WriteSkill, name: str, changes: bool) -> None:
    before = parsed(write_skill("tea", with_front())).digest
    after = parsed(write_skill("tea", with_front(), {name: "x"})).digest

    assert (before != after) is changes


def test_links_inside_the_skills_directory_are_followed(skills_dir: Path, write_skill: WriteSkill) -> None:
    shared = skills_dir / "shared"
    shared.mkdir()
    (shared / "notes.md").write_text("notes")
    folder = write_skill("tea", with_front())
    before = parsed(folder).digest
    (folder / "references").symlink_to(shared)

    assert parsed(folder).digest != before
