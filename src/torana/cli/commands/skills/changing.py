"""``torana skills install``, ``approve``, ``enable``, ``disable``, ``update`` and ``remove``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

import typer

from torana.cli.commands.skills.listing import Slug
from torana.cli.flags import CommonOptions
from torana.cli.remote import act_by_hand, run_by_hand, running_gateway
from torana.cli.terminal import on_one_line
from torana.errors import OperatorError

if TYPE_CHECKING:
    from torana.api.schemas.skills import SkillDetailBody
    from torana.config import Loaded
    from torana.skills.installation.fetching import Fetcher
    from torana.skills.installation.installer import SkillInstaller
    from torana.store.engine.database import Database
    from torana.store.rows.extensions.skills import SkillDecision

#: Seconds for the gateway to unpack and scan an archive.
_INSTALL_TIMEOUT = 180.0

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


#: Makes a change without a gateway, and returns the skill.
_ByHand = Callable[["SkillInstaller"], Coroutine[Any, Any, "SkillDecision | None"]]


def install(
    options: CommonOptions,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A folder, a zip or .tar.gz file, a git address with an optional #revision, or a URL.",
            show_default=False,
        ),
    ],
    path: Annotated[
        str | None, typer.Option(help=("The skill's folder, if the source contains several."))
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Install every skill of each source.")] = False,
) -> None:
    """Fetch skills into quarantine. A skill is loaded only after you approve it."""
    if path is not None and (every or len(sources) > 1):
        raise OperatorError("--path chooses one skill of one source; leave it out")
    loaded = options.loaded
    if len(sources) == 1 and not every:
        archive, origin = _fetch_archive(loaded, sources[0], path)
        _tell_report(loaded, _install(loaded, archive, origin, path), as_json=options.as_json)
        return
    bodies, failed = _install_several(loaded, sources, every=every)
    if options.as_json:
        items = [body.model_dump(mode="json") for body in bodies]
        typer.echo(json.dumps({"items": items}, indent=2))
    elif bodies:
        _tell_installed(bodies)
    if failed:
        raise typer.Exit(1)


def _install(loaded: Loaded, archive: bytes, origin: str, path: str | None) -> str:
    """Put a skill of an archive in quarantine and return its slug. Raises ``OperatorError``."""
    query = urlencode({"origin": origin, **({"path": path} if path else {})})
    return _apply_change(
        loaded,
        "POST",
        f"/v1/skills?{query}",
        lambda changes: changes.install_archive(archive, origin=origin, path=path, act=act_by_hand()),
        body=archive,
    )


def _install_several(
    loaded: Loaded, sources: Sequence[str], *, every: bool
) -> tuple[list[SkillDetailBody], int]:
    """Install skills one by one and report failures; return the installed skills and the number of failures."""
    from torana.cli.commands.skills.reading import SkillsHere

    slugs: list[str] = []
    failed = 0
    for source in sources:
        try:
            archive, origin = _fetch_archive(loaded, source, None)
            paths: Sequence[str | None] = _skill_paths(archive) if every else [None]
        except OperatorError as error:
            failed += 1
            typer.echo(on_one_line(f"{source}: {error.detail}"), err=True)
            continue
        for path in paths:
            try:
                slugs.append(_install(loaded, archive, origin, path))
            except OperatorError as error:
                failed += 1
                typer.echo(on_one_line(f"{path or source}: {error.detail}"), err=True)
    here = SkillsHere(loaded)
    return [here.body(slug) for slug in slugs], failed


def _skill_paths(archive: bytes) -> list[str]:
    from torana.skills.errors import SkillInvalid
    from torana.skills.installation.staging import skill_paths

    try:
        return skill_paths(archive)
    except SkillInvalid as error:
        raise OperatorError(str(error)) from error


def _tell_installed(bodies: Sequence[SkillDetailBody]) -> None:
    """Print a line for each installed skill, and its warnings."""
    for body in bodies:
        version = body.newer or body.current
        findings = len(version.findings) + version.more_findings if version else 0
        places = f", {findings:,} places to look at" if findings else ""
        typer.echo(on_one_line(f"{_state_line(body)}{places}"))
        for warning in body.warnings:
            typer.echo(on_one_line(f"  Warning: {warning}"))
    typer.echo("`torana skills show NAME` shows a skill and its report, `torana skills approve NAME` loads it.")


def approve(
    options: CommonOptions,
    slug: Slug,
    instructions_only: Annotated[
        bool,
        typer.Option(
            "--instructions-only",
            help="Load only the instructions. The scripts may not run.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Show a skill's requirements and suspicious lines, and ask whether to approve it.

    After approval, the skill is loaded, and its scripts may run with the requirements that the command showed.
    The approval ends when one of the skill's files changes.
    """
    from torana.cli.commands.skills.printing import report_lines
    from torana.cli.commands.skills.reading import SkillsHere

    loaded = options.loaded
    body = SkillsHere(loaded).body(slug)
    version = body.newer or body.current
    if version is None:
        raise OperatorError(f"{slug} cannot be loaded: {body.fault}")
    if not yes:
        if options.as_json:
            raise OperatorError("--json cannot ask for confirmation; add --yes")
        lines = [f"{slug}: {version.description}", *report_lines(version)]
        typer.echo("\n".join(map(on_one_line, lines)))
        what = "Load it as instructions only" if instructions_only else ("Approve it with all of its needs")
        typer.confirm(f"{what}?", abort=True)
    digest, scripts = version.digest, not instructions_only
    _change(
        options,
        slug,
        "/approve",
        lambda changes: changes.approve(slug, digest=digest, grant=scripts, act=act_by_hand()),
        body={"digest": digest, "scripts": scripts},
    )
    if scripts:
        _warn_of_secrets(loaded, slug, version.needs.secrets)


def enable(
    options: CommonOptions,
    slug: Slug,
) -> None:
    """Enable a disabled skill. It needs no new approval."""
    _change(options, slug, "/enable", lambda changes: changes.enable(slug, act=act_by_hand()))


def disable(
    options: CommonOptions,
    slug: Slug,
) -> None:
    """Disable a skill until it is enabled again."""
    _change(options, slug, "/disable", lambda changes: changes.disable(slug, act=act_by_hand()))


def update(
    options: CommonOptions,
    slug: Slug,
    source: Annotated[str | None, typer.Argument(help="The new source, if the skill has moved.")] = None,
) -> None:
    """Fetch an installed skill again. A new version waits in quarantine; the approved one stays active."""
    from torana.cli.commands.skills.reading import SkillsHere
    from torana.skills.installation.installer import UPLOAD

    loaded = options.loaded
    decision = SkillsHere(loaded).installed.decision(slug)
    origin = source or (decision and decision.origin)
    if decision is None or decision.folder is None:
        raise OperatorError(f"{slug} is not an installed skill, so it has no source to update from")
    if origin is None or origin == UPLOAD:
        raise OperatorError(f"{slug} was uploaded; name its source: torana skills update {slug} SOURCE")
    try:
        archive, _ = _fetch_archive(loaded, origin, decision.subfolder)
    except OperatorError as error:
        hint = "" if source else f" If it has moved: torana skills update {slug} NEW-SOURCE"
        raise OperatorError(f"{error.detail}{hint}") from error
    _apply_change(
        loaded,
        "POST",
        _path(slug, "/update"),
        lambda changes: changes.update_from_archive(slug, archive, act=act_by_hand()),
        body=archive,
    )
    body = _tell_report(loaded, slug, as_json=options.as_json)
    if decision.next_digest is not None and body.newer is None:
        typer.echo(
            "its newer version no longer exists at the source, and was removed from quarantine", err=True
        )


def remove(
    options: CommonOptions,
    slug: Slug,
) -> None:
    """Delete an installed skill."""
    _apply_change(
        options.loaded, "DELETE", _path(slug), lambda changes: changes.remove(slug, act=act_by_hand())
    )
    typer.echo(json.dumps({"slug": slug}) if options.as_json else f"{slug} is removed")


def _warn_of_secrets(loaded: Loaded, slug: str, granted: Collection[str]) -> None:
    """Warn of granted secrets that are not set in the running gateway, which read .env at its start."""
    from torana.cli.commands.skills.reading import SkillsHere

    gateway = running_gateway(loaded.settings)
    if gateway is not None:
        records = gateway.ask("GET", "/skills", read=list[Mapping[str, Any]])
        missing = next((one["missing"]["env"] for one in records if one["slug"] == slug), ())
    else:
        here = SkillsHere(loaded).skills
        skill = here.catalogue().get(slug)
        missing = here.missing(skill)["env"] if skill else ()
    then = " and restart the gateway" if gateway else ""
    for name in missing:
        if name in granted:
            typer.echo(f"warning: the secret {name} is not set; put it into .env{then}", err=True)


def _change(
    options: CommonOptions,
    slug: str,
    end: str,
    by_hand: _ByHand,
    *,
    body: Mapping[str, Any] | None = None,
) -> None:
    """Make a change, and print the skill's state. Raises ``OperatorError`` if it is refused."""
    from torana.cli.commands.skills.reading import SkillsHere

    _apply_change(options.loaded, "POST", _path(slug, end), by_hand, body=body)
    skill = SkillsHere(options.loaded).body(slug)
    typer.echo(_json(skill) if options.as_json else on_one_line(_state_line(skill)))


def _apply_change(
    loaded: Loaded, method: str, path: str, by_hand: _ByHand, *, body: Mapping[str, Any] | bytes | None = None
) -> str:
    """Make a change and return the skill's slug. Raises ``OperatorError`` if it is refused."""
    from torana.cli.commands.skills.reading import SkillsHere
    from torana.skills.installation.installer import SkillInstaller

    async def change(database: Database) -> str:
        here = SkillsHere(loaded)
        changes = SkillInstaller(
            database=database, skills=here.skills, installed=here.installed, fetcher=_fetcher(loaded)
        )
        changed = await by_hand(changes)
        return changed.slug if changed else ""

    gateway = running_gateway(loaded.settings)
    with _waiting("unpacking and scanning the skill"):
        if gateway is None:
            return run_by_hand(loaded.settings, change, making=True)
        if isinstance(body, bytes):
            return gateway.send(method, path, read=_slug_of, archive=body, timeout=_INSTALL_TIMEOUT)
        return gateway.ask(method, path, read=_slug_of, body=body)


def _slug_of(document: Any) -> str:
    return str(document["slug"])


def _fetch_archive(loaded: Loaded, source: str, path: str | None) -> tuple[bytes, str]:
    """Return an archive of a local or remote source, fetched with the rights of the terminal's user."""
    import asyncio

    from torana.skills.errors import SkillInvalid
    from torana.skills.installation.sources import read_source

    fetcher = _fetcher(loaded)
    try:
        found = read_source(source, local=True)
        with _waiting(f"fetching {found}"):
            return asyncio.run(fetcher.fetch(found, path=path)), str(found)
    except SkillInvalid as error:
        raise OperatorError(str(error)) from error


def _fetcher(loaded: Loaded) -> Fetcher:
    from torana.skills.installation.fetching import open_fetcher
    from torana.web import Guard

    guard = Guard(allow=loaded.settings.web_allow, deny=loaded.settings.web_deny)
    return open_fetcher(guard=guard, environ=os.environ, local=True)


def _waiting(label: str) -> Any:
    """Show the current activity on standard error if it is a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    return console.status(Text(on_one_line(label)))


def _tell_report(loaded: Loaded, slug: str, *, as_json: bool) -> SkillDetailBody:
    from torana.cli.commands.skills.printing import report_lines
    from torana.cli.commands.skills.reading import SkillsHere

    body = SkillsHere(loaded).body(slug)
    if as_json:
        typer.echo(_json(body))
        return body
    version = body.newer or body.current
    lines = [_state_line(body), *(report_lines(version) if version else ())]
    if body.newer or body.state == "quarantine":
        lines.append(f"`torana skills show {slug}` shows its text, `torana skills approve {slug}` loads it.")
    typer.echo("\n".join(map(on_one_line, lines)))
    return body


def _json(body: SkillDetailBody) -> str:
    return json.dumps(body.model_dump(mode="json"), indent=2)


def _state_line(body: SkillDetailBody) -> str:
    if body.state == "quarantine":
        return f"{body.slug} is in quarantine"
    line = f"{body.slug} is {body.state}"
    if body.newer:
        return f"{line}; a newer version is in quarantine"
    scripts = body.current and body.current.needs.scripts
    may = "may" if body.granted else "may not"
    return f"{line}; its scripts {may} be run" if body.state == "active" and scripts else line


def _path(slug: str, end: str = "") -> str:
    return f"/v1/skills/{quote(slug, safe='')}{end}"
