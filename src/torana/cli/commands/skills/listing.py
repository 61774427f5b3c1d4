"""``torana skills list`` and ``torana skills show``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torana.cli.flags import CommonOptions
from torana.cli.tables import shorten
from torana.cli.terminal import on_one_line, printable
from torana.errors import OperatorError

if TYPE_CHECKING:
    from torana.skills import Catalogue, Skill, Skills
    from torana.skills.status import Look, SkillDetails, SkillStatus

#: Maximum width of a line in the list.
_WIDTH = 80

Slug = Annotated[str, typer.Argument(help="The skill's short name.")]


def list_(options: CommonOptions) -> None:
    """List the loaded skills, then the other skills: in quarantine, disabled, changed or broken."""
    from torana.api.schemas.skills import SkillStandingBody
    from torana.cli.commands.skills.reading import SkillsHere

    here = SkillsHere(options.loaded)
    catalogue = here.skills.catalogue()
    waiting = [one for one in here.statuses.list_statuses() if one.state in ("quarantine", "disabled")]
    active = [one for one in here.statuses.list_statuses() if one.state == "active"]
    if options.as_json:
        records = [
            _record(here.skills, skill) | {"warnings": list(skill.warnings)} for skill in catalogue.loaded
        ]
        broken = [
            {"slug": item.slug, "source": item.source, "path": str(item.path), "fault": item.fault}
            for item in catalogue.broken
        ]
        inactive = [SkillStandingBody.model_validate(one).model_dump(mode="json") for one in waiting]
        typer.echo(json.dumps({"items": records, "inactive": inactive, "broken": broken}, indent=2))
        return
    _print_table(here.skills, catalogue)
    for one in waiting:
        cure = "approve" if one.state == "quarantine" else "enable"
        why = one.fault or f"{one.state}; `torana skills {cure} {one.slug}` loads it"
        typer.echo(on_one_line(f"{one.slug}: {why}"), err=True)
    for one in active:
        for why in filter(None, (one.fault or _news(one), *one.warnings)):
            typer.echo(on_one_line(f"{one.slug}: {why}"), err=True)
    for item in catalogue.broken:
        typer.echo(on_one_line(f"{item.slug}: {item.fault}"), err=True)


def show(
    options: CommonOptions,
    slug: Slug,
) -> None:
    """Show a skill: its location, requirements, suspicious lines, files and instructions."""
    from torana.cli.commands.skills.reading import SkillsHere

    here = SkillsHere(options.loaded)
    shown = here.get(slug)
    look = shown.newer or shown.current
    if look is None:
        raise OperatorError(f"{slug} could not be loaded: {shown.status.fault}")
    if options.as_json:
        typer.echo(json.dumps(_details(here.skills, shown), indent=2))
    else:
        _print(shown, look)


def _details(skills: Skills, shown: SkillDetails) -> dict[str, Any]:
    from torana.api.schemas.skills import SkillDetailBody

    look, body = shown.current or shown.newer, SkillDetailBody.from_details(shown).model_dump(mode="json")
    if look is None:
        return body
    files = list(look.report.files)
    own = {"path": str(look.skill.path), "files": files, "instructions": look.skill.instructions}
    return _record(skills, look.skill) | body | own


def _record(skills: Skills, skill: Skill) -> dict[str, Any]:
    from torana.api.schemas.contract import SkillBody

    return SkillBody.from_skill(skill, skills.missing(skill)).model_dump(mode="json")


def _news(status: SkillStatus) -> str:
    """Return a note if an active skill has a newer version or scripts without approval."""
    approve = f"`torana skills approve {status.slug}`"
    if status.newer:
        return f"a newer version is in quarantine; {approve} activates it"
    return (
        f"its scripts are not approved; {approve} allows them to run" if status.has_unapproved_scripts else ""
    )


def _print_table(skills: Skills, catalogue: Catalogue) -> None:
    """Print one line for each skill: its name, its source, and the beginning of its description."""
    width = max((len(skill.slug) for skill in catalogue.loaded), default=0)
    typer.echo(f"{'skill':{width}}  source  description")
    for skill in catalogue.loaded:
        missing = skills.missing(skill)
        lacking = ", ".join([*missing["env"], *missing["bins"]])
        summary = f"(missing: {lacking}) {skill.description}" if lacking else skill.description
        typer.echo(shorten(on_one_line(f"{skill.slug:{width}}  {skill.source:6}  {summary}"), _WIDTH))


def _print(shown: SkillDetails, look: Look) -> None:
    from torana.api.schemas.skills import SkillVersionBody
    from torana.cli.commands.skills.printing import report_lines

    skill, status = look.skill, shown.status
    is_newer = look is shown.newer
    state = "a newer version, in quarantine" if is_newer else status.state
    why = status.fault or ("" if is_newer else _news(status))
    details = {
        "state": f"{state}: {why}" if why else state,
        "origin": status.origin,
        "path": skill.path,
        "version": skill.version,
        "license": skill.license,
        "digest": skill.digest,
        "files": ", ".join(look.report.files),
    }
    lines = [
        f"{skill.title} ({skill.slug}, {skill.source})",
        skill.description,
        "",
        *(f"{name:8} {detail or '-'}" for name, detail in details.items()),
        "",
    ]
    if skill.source != "core":
        lines += [*report_lines(SkillVersionBody.model_validate(look)), ""][2:]
    typer.echo("\n".join([*map(on_one_line, lines), printable(skill.instructions.strip())]))
