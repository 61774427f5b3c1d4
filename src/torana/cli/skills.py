"""``torana skills``: what the agent can do, and what of it is broken."""

from __future__ import annotations

import json
import sys
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.terminal import printable
from torana.config import Loaded
from torana.skills import CORE_DIR, BrokenSkill, Catalogue, Skill, Skills

app = typer.Typer(help="List and show the skills.", no_args_is_help=True)


@app.command("list")
def list_(config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False) -> None:
    """List the loaded skills, then those that could not be loaded, each with its fault."""
    skills = _skills(settings_from(config=config, data_dir=data_dir))
    catalogue = skills.catalogue()
    if as_json:
        records = [skills.record(skill) for skill in catalogue.loaded]
        broken = [_fault(item) for item in catalogue.broken]
        typer.echo(json.dumps({"items": records, "broken": broken}, indent=2))
        return
    _print_table(skills, catalogue)
    for item in catalogue.broken:
        typer.echo(printable(f"{item.slug}: {item.fault}"), err=True)


@app.command()
def show(
    slug: Annotated[str, typer.Argument(help="The skill's short name.")],
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one skill: where it is, its files and its instructions."""
    skills = _skills(settings_from(config=config, data_dir=data_dir))
    catalogue = skills.catalogue()
    skill = catalogue.get(slug)
    if skill is None:
        typer.echo(printable(_why_not(slug, catalogue)), err=True)
        raise typer.Exit(1)
    details = skills.record(skill) | {"path": str(skill.path), "files": list(skills.files(skill))}
    if as_json:
        typer.echo(json.dumps(details | {"instructions": skill.instructions}, indent=2))
    else:
        _print(skill, details)


def _skills(loaded: Loaded) -> Skills:
    return Skills(core_dir=CORE_DIR, user_dir=loaded.settings.skills_dir, environ=loaded.provider_environ)


def _fault(item: BrokenSkill) -> dict[str, str]:
    return {"slug": item.slug, "source": item.source, "path": str(item.path), "fault": item.fault}


def _why_not(slug: str, catalogue: Catalogue) -> str:
    fault = next((item.fault for item in catalogue.broken if item.slug == slug), None)
    if fault is not None:
        return f"{slug} could not be loaded: {fault}"
    near = get_close_matches(slug, [skill.slug for skill in catalogue.loaded], n=1)
    hint = f"did you mean {near[0]}?" if near else "`torana skills list` names those there are"
    return f"there is no skill {slug!r}; {hint}"


def _print_table(skills: Skills, catalogue: Catalogue) -> None:
    table = Table("skill", "source", "missing", "what it does", box=None, pad_edge=False)
    for skill in catalogue.loaded:
        missing = skills.missing(skill)
        lacking = ", ".join([*missing["env"], *missing["bins"]])
        table.add_row(skill.slug, skill.source, *map(printable, (lacking, skill.description)))
    # Without a terminal nothing is folded, so that each skill stays on a line of its own.
    width = None if sys.stdout.isatty() else 10_000
    Console(markup=False, highlight=False, emoji=False, width=width).print(table)


def _print(skill: Skill, details: dict[str, Any]) -> None:
    lines = [
        f"{skill.title} ({skill.slug}, {skill.source})",
        skill.description,
        "",
        *(f"{name:8} {details[name] or '-'}" for name in ("path", "version", "license", "digest")),
        f"{'files':8} {', '.join(details['files'])}",
        "",
        skill.instructions.strip(),
    ]
    typer.echo(printable("\n".join(lines)))
