"""The needs that a skill's front matter declares for its scripts, and the declarations that make it invalid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torana.skills import Needs, Skill, SkillInvalid, parse_skill

WriteSkill = Callable[..., Path]

SCRIPT = {"scripts/forecast.py": "print('rain')", "scripts/deep/er.sh": "echo", "assets/data.txt": ""}


def with_block(*lines: str) -> str:
    block = ["metadata:", "  torana:", *(f"    {line}" for line in lines)] if lines else []
    return "\n".join(["---", "name: tea", "description: Brews tea.", *block, "---", "Boil water."])


def parsed(folder: Path) -> Skill:
    return parse_skill(folder, source="user")


def test_every_kind_of_need_is_parsed(write_skill: WriteSkill) -> None:
    text = with_block(
        "bins: [git, jq, git]",
        "hosts: [API.example.com, 'example.com:8443', '127.0.0.1:8080', '[::1]:80']",
        "secrets: WEATHER_KEY",
        "directories: [/srv/data]",
        "writable: [/srv/out]",
        "scripts: [scripts/forecast.py]",
    )
    skill = parsed(write_skill("tea", text, SCRIPT))

    assert skill.needs == Needs(
        bins=("git", "jq"),
        hosts=("api.example.com", "example.com:8443", "127.0.0.1:8080", "[::1]:80"),
        secrets=("WEATHER_KEY",),
        directories=("/srv/data",),
        writable=("/srv/out",),
        scripts=("scripts/forecast.py",),
    )
    assert (skill.requires_bins, skill.requires_env) == (("git", "jq"), ("WEATHER_KEY",))


def test_block_in_json_is_parsed(write_skill: WriteSkill) -> None:
    text = '---\nname: tea\ndescription: x\nmetadata:\n  torana: \'{"hosts": ["example.com"]}\'\n---\n'

    assert parsed(write_skill("tea", text)).needs == Needs(hosts=("example.com",))


def test_skill_without_a_block_needs_only_its_scripts(write_skill: WriteSkill) -> None:
    skill = parsed(write_skill("tea", with_block(), SCRIPT))

    assert skill.needs == Needs(scripts=("scripts/deep/er.sh", "scripts/forecast.py"))


def test_other_agents_requirements_become_needs_except_forbidden_ones(
    write_skill: WriteSkill,
) -> None:
    block = (
        "metadata: {openclaw: {primaryEnv: TEA_KEY, "
        "requires: {env: [TEA_TOKEN, TORANA_GATEWAY_TOKEN, LD_PRELOAD], bins: [curl], anyBins: [rg, grep]}}}"
    )
    skill = parsed(write_skill("tea", f"---\nname: tea\ndescription: x\n{block}\n---\n"))

    assert skill.needs == Needs(bins=("curl", "rg", "grep"), secrets=("TEA_TOKEN", "TEA_KEY"))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("host: [example.com]", "metadata.torana has no field 'host'; did you mean 'hosts'?"),
        ("colour: red", "metadata.torana has no field 'colour'; it has bins, hosts, "),
        ("hosts: {a: b}", "metadata.torana.hosts is not a list; write `hosts: [one, another]`."),
        ("hosts: [[a]]", "metadata.torana.hosts has an entry that is not a text of at most 256 characters;"),
        ("hosts: ['https://example.com/']", "'https://example.com/' is no host; write a name such as api."),
        ("hosts: ['*.example.com']", "'*.example.com' is no host;"),
        ("hosts: ['example.com:99999']", "'example.com:99999' is no host;"),
        ("hosts: ['2130706433']", "'2130706433' is no host;"),
        ("hosts: ['127.1']", "'127.1' is no host;"),
        ("hosts: ['0x7f.0.0.0x1']", "'0x7f.0.0.0x1' is no host;"),
        ("hosts: ['::1']", "'::1' is no host;"),
        ("bins: [/usr/bin/git]", "'/usr/bin/git' is not the name of a program; write it without its path."),
        ("secrets: [TORANA_GATEWAY_TOKEN]", "'TORANA_GATEWAY_TOKEN' cannot be passed to a script;"),
        ("secrets: [LD_PRELOAD]", "'LD_PRELOAD' cannot be passed to a script;"),
        ("secrets: [https_proxy]", "'https_proxy' cannot be passed to a script;"),
        ("secrets: [A=B]", "'A=B' cannot be passed to a script;"),
        ("directories: [data]", "'data' cannot be shown to a script; write a directory's whole path"),
        ("directories: [/srv/../etc]", "'/srv/../etc' cannot be shown"),
        ("directories: [//srv]", "'//srv' cannot be shown"),
        ("directories: [/]", "'/' cannot be shown"),
        ("directories: [/proc/1]", "'/proc/1' cannot be shown"),
        ("writable: [/tmp]", "'/tmp' cannot be shown"),
        ("scripts: [scripts/none.py]", "metadata.torana.scripts: the folder has no file 'scripts/none.py';"),
        ("scripts: [../../bin/sh]", "the folder has no file '../../bin/sh';"),
        (
            f"bins: [{', '.join('abcdefgh'[i % 8] + str(i) for i in range(65))}]",
            "bins has 65 entries; at most 64",
        ),
    ],
)
def test_unknown_or_invalid_need_makes_the_skill_invalid(
    write_skill: WriteSkill, line: str, fault: str
) -> None:
    folder = write_skill("tea", with_block(line), SCRIPT)

    with pytest.raises(SkillInvalid) as caught:
        parsed(folder)

    assert fault in str(caught.value)


def test_block_that_is_not_a_mapping_makes_the_skill_invalid(write_skill: WriteSkill) -> None:
    folder = write_skill("tea", "---\nname: tea\ndescription: x\nmetadata: {torana: [git]}\n---\n")

    with pytest.raises(SkillInvalid, match=r"metadata\.torana is not a mapping"):
        parsed(folder)


def test_empty_block_declares_no_needs(write_skill: WriteSkill) -> None:
    assert parsed(write_skill("tea", with_block("bins: []", "hosts:"))).needs == Needs()


def test_triggers_declare_phrase_script_and_arguments(write_skill: WriteSkill) -> None:
    text = with_block(
        "triggers:",
        '  - {say: "forecast for {place}", run: scripts/forecast.py}',
        '  - {say: "{what} for {place}", run: scripts/deep/er.sh, arguments: [--place, "{place}!"]}',
    )
    skill = parsed(write_skill("tea", text, SCRIPT))

    assert [(one.phrase, one.script, one.arguments) for one in skill.triggers] == [
        ("forecast for {place}", "scripts/forecast.py", ("{place}",)),
        ("{what} for {place}", "scripts/deep/er.sh", ("--place", "{place}!")),
    ]


def test_trigger_with_only_a_phrase_runs_the_only_script(write_skill: WriteSkill) -> None:
    text = with_block("scripts: [scripts/forecast.py]", 'triggers: ["forecast for {place} at {time}"]')
    (trigger,) = parsed(write_skill("tea", text, SCRIPT)).triggers

    assert (trigger.script, trigger.arguments) == ("scripts/forecast.py", ("{place}", "{time}"))


@pytest.mark.parametrize(
    ("trigger", "fault"),
    [
        ("'brew tea'", "'brew tea' has no `run`; write it as `{say: "),
        ("{say: brew, run: SKILL.md}", "run one of the skill's scripts (scripts/deep/er.sh, scripts/fore"),
        ("{say: brew, run: scripts/forecast.py, with: x}", "must have only the fields say, run and arguments"),
        ("{say: brew, run: scripts/forecast.py, arguments: ['{x}']}", "'brew' lacks a {name} that its arg"),
        ("{say: '{x}', run: scripts/forecast.py}", "'{x}' is too general; add words"),
        ("{say: 'a {b} {c} {d} {e}', run: scripts/forecast.py}", "and use at most 3 {names}."),
        ("{run: scripts/forecast.py}", "metadata.torana.triggers has an entry that is not a text"),
    ],
)
def test_invalid_trigger_makes_the_skill_invalid(write_skill: WriteSkill, trigger: str, fault: str) -> None:
    folder = write_skill("tea", with_block(f"triggers: [{trigger}]"), SCRIPT)

    with pytest.raises(SkillInvalid) as caught:
        parsed(folder)

    assert fault in str(caught.value)


def test_front_matter_of_the_guide_is_valid(write_skill: WriteSkill) -> None:
    guide = (Path(__file__).parents[3] / "docs/howto/skill-scripts.md").read_text(encoding="utf-8")
    whole, part = (piece.partition("```")[0] for piece in guide.split("```yaml\n")[1:])
    script = {"scripts/forecast.py": ""}
    skill = parsed(write_skill("forecast", whole, script))
    more = parsed(write_skill("more", with_block(*part.splitlines()), script))

    assert (skill.needs.hosts, skill.needs.secrets) == (("api.example.com",), ("WEATHER_KEY",))
    assert [trigger.phrase for trigger in skill.triggers] == ["forecast for {city}"]
    assert [trigger.arguments for trigger in more.triggers] == [("{city}", "--days", "{days}")]
