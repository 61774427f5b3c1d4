"""``torana skills list`` and ``torana skills show``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.skills.printing import report_lines
from torana.cli.skills.reading import SkillsHere
from torana.cli.terminal import on_one_line, print_table, printable
from torana.errors import OperatorError
from torana.skills import BrokenSkill, Catalogue, Skills
from torana.skills.standing import Look, Shown, Standing
from torana.skills.telling import shown_body, standing_body

Slug = Annotated[str, typer.Argument(help="The skill's short name.")]


def list_(config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False) -> None:
    """List the loaded skills, then those that are not: in quarantine, disabled, changed or broken."""
    here = SkillsHere(settings_from(config=config, data_dir=data_dir))
    catalogue = here.skills.catalogue()
    waiting = [one for one in here.standings.listed() if one.state in ("quarantine", "disabled")]
    active = [one for one in here.standings.listed() if one.state == "active"]
    if as_json:
        records = [here.skills.record(skill) for skill in catalogue.loaded]
        broken = [_fault(item) for item in catalogue.broken]
        inactive = [standing_body(one) for one in waiting]
        typer.echo(json.dumps({"items": records, "inactive": inactive, "broken": broken}, indent=2))
        return
    _print_table(here.skills, catalogue)
    for one in waiting:
        cure = "approve" if one.state == "quarantine" else "enable"
        why = one.fault or f"{one.state}; `torana skills {cure} {one.slug}` has it loaded"
        typer.echo(on_one_line(f"{one.slug}: {why}"), err=True)
    for one in active:
        if why := one.fault or _news(one):
            typer.echo(on_one_line(f"{one.slug}: {why}"), err=True)
    for item in catalogue.broken:
        typer.echo(on_one_line(f"{item.slug}: {item.fault}"), err=True)


def show(
    slug: Slug, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Show one skill: where it is, what it wants, what looks wrong in it, its files and its instructions."""
    here = SkillsHere(settings_from(config=config, data_dir=data_dir))
    shown = here.shown(slug)
    look = shown.newer or shown.current
    if look is None:
        raise OperatorError(f"{slug} could not be loaded: {shown.standing.fault}")
    if as_json:
        typer.echo(json.dumps(_details(here.skills, shown), indent=2))
    else:
        _print(shown, look)


def _details(skills: Skills, shown: Shown) -> dict[str, Any]:
    look = shown.current or shown.newer
    if look is None:
        return shown_body(shown)
    files = list(look.report.files)
    own = {"path": str(look.skill.path), "files": files, "instructions": look.skill.instructions}
    return skills.record(look.skill) | shown_body(shown) | own


def _news(standing: Standing) -> str:
    """What an active skill has that waits for approval: a newer version, its scripts, or nothing."""
    approve = f"`torana skills approve {standing.slug}`"
    if standing.newer:
        return f"a newer version is in quarantine; {approve} takes it"
    return f"its scripts are not approved; {approve} lets them be run" if standing.unapproved else ""


def _fault(item: BrokenSkill) -> dict[str, str]:
    return {"slug": item.slug, "source": item.source, "path": str(item.path), "fault": item.fault}


def _print_table(skills: Skills, catalogue: Catalogue) -> None:
    table = Table("skill", "source", "missing", "what it does", box=None, pad_edge=False)
    for skill in catalogue.loaded:
        missing = skills.missing(skill)
        lacking = ", ".join([*missing["env"], *missing["bins"]])
        table.add_row(skill.slug, skill.source, *map(on_one_line, (lacking, skill.description)))
    print_table(table)


def _print(shown: Shown, look: Look) -> None:
    skill, standing = look.skill, shown.standing
    is_newer = look is shown.newer
    state = "a newer version, in quarantine" if is_newer else standing.state
    why = standing.fault or ("" if is_newer else _news(standing))
    details = {
        "state": f"{state}: {why}" if why else state,
        "origin": standing.origin,
        "path": skill.path,
        "version": skill.version,
        "license": skill.license,
        "digest": skill.digest,
        "files": ", ".join(look.report.files),
    }
    body = shown_body(shown)["newer" if is_newer else "current"]
    lines = [
        f"{skill.title} ({skill.slug}, {skill.source})",
        skill.description,
        "",
        *(f"{name:8} {detail or '-'}" for name, detail in details.items()),
        "",
        *(() if skill.source == "core" else (*list(report_lines(body))[2:], "")),
    ]
    typer.echo("\n".join([*map(on_one_line, lines), printable(skill.instructions.strip())]))
