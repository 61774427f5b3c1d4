"""``torana skills install``, ``approve``, ``enable``, ``disable``, ``update`` and ``remove``."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer
from rich.console import Console
from rich.text import Text

from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import RunningGateway, act_by_hand, own_database, running_gateway
from torana.cli.skills.listing import Slug
from torana.cli.skills.printing import report_lines
from torana.cli.skills.reading import SkillsHere
from torana.cli.terminal import on_one_line
from torana.config import Loaded
from torana.errors import GatewayError, OperatorError
from torana.skills.changes import UPLOAD, SkillChanges
from torana.skills.faults import SkillInvalid
from torana.skills.fetching import Fetcher, open_fetcher
from torana.skills.sources import read_source
from torana.web import Guard

#: Seconds in which the gateway has unpacked what it is sent.
_PATIENCE = 180.0

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One change, in the two ways it can be made: by a running gateway's HTTP, or here."""

    method: str
    path: str
    by_hand: Callable[[SkillChanges], Coroutine[Any, Any, object]]
    #: What is sent: JSON, or an archive.
    body: Mapping[str, Any] | bytes | None = None


def install(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder, a zip or .tar.gz file, a git address with #revision or without, or a URL."
        ),
    ],
    path: Annotated[str | None, typer.Option(help="The skill's folder, where there are several.")] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Fetch a skill and put it in quarantine: it is loaded only when you approve it."""
    loaded = settings_from(config=config, data_dir=data_dir)
    archive, origin = _fetched(loaded, source, path)

    async def by_hand(changes: SkillChanges) -> str:
        made = await changes.take_in(archive, origin=origin, path=path, act=act_by_hand())
        return made.slug

    query = urlencode({"origin": origin, **({"path": path} if path else {})})
    change = _Change(method="POST", path=f"/v1/skills?{query}", body=archive, by_hand=by_hand)
    slug = _made(loaded, change)
    _tell_report(loaded, slug, as_json=as_json)


def approve(
    slug: Slug,
    instructions_only: Annotated[
        bool, typer.Option("--instructions-only", help="Grant its scripts nothing, and do not let them be run.")
    ] = False,
    yes: Yes = False,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a skill wants and what looks wrong in it, and ask whether it may.

    Then it is loaded, and its scripts may be run with what it wants, until one of its files changes.
    """
    loaded = settings_from(config=config, data_dir=data_dir)
    body = SkillsHere(loaded).body(slug)
    version = body["newer"] or body["current"]
    if version is None:
        raise OperatorError(f"{slug} cannot be loaded: {body['fault']}")
    if not yes:
        if as_json:
            raise OperatorError("with --json nobody is asked; add --yes")
        lines = [f"{slug}: {version['description']}", *report_lines(version)]
        typer.echo("\n".join(map(on_one_line, lines)))
        what = "Have it loaded as instructions" if instructions_only else "Approve it, with all that it wants"
        typer.confirm(f"{what}?", abort=True)
    digest, scripts = version["digest"], not instructions_only

    async def by_hand(changes: SkillChanges) -> None:
        await changes.approve(slug, digest=digest, grant=scripts, act=act_by_hand())

    asked = {"digest": digest, "scripts": scripts}
    _change(loaded, slug, "POST", "/approve", by_hand, body=asked, as_json=as_json)
    if scripts:
        _warn_of_secrets(loaded, slug, version["needs"]["secrets"])


def enable(
    slug: Slug, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Load a skill again that was disabled, as it was approved."""

    async def by_hand(changes: SkillChanges) -> None:
        await changes.enable(slug, act=act_by_hand())

    loaded = settings_from(config=config, data_dir=data_dir)
    _change(loaded, slug, "POST", "/enable", by_hand, as_json=as_json)


def disable(
    slug: Slug, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Load a skill no more, until it is enabled."""

    async def by_hand(changes: SkillChanges) -> None:
        await changes.disable(slug, act=act_by_hand())

    loaded = settings_from(config=config, data_dir=data_dir)
    _change(loaded, slug, "POST", "/disable", by_hand, as_json=as_json)


def update(
    slug: Slug,
    source: Annotated[str | None, typer.Argument(help="Where it is by now, if not where it came from.")] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Fetch an installed skill again. What changed waits in quarantine; the approved version goes on."""
    loaded = settings_from(config=config, data_dir=data_dir)
    decision = SkillsHere(loaded).installed.decision(slug)
    origin = source or (decision and decision.origin)
    if decision is None or decision.folder is None:
        raise OperatorError(f"{slug} is not installed, so there is nowhere to fetch it from")
    if origin is None or origin == UPLOAD:
        raise OperatorError(f"{slug} was uploaded; say where it is by now: torana skills update {slug} SOURCE")
    try:
        archive, _ = _fetched(loaded, origin, decision.subfolder)
    except OperatorError as error:
        hint = "" if source else f" If it is elsewhere by now: torana skills update {slug} NEW-SOURCE"
        raise OperatorError(f"{error.detail}{hint}") from error

    async def by_hand(changes: SkillChanges) -> None:
        await changes.renew(slug, archive, act=act_by_hand())

    _made(loaded, _Change(method="POST", path=_path(slug, "/update"), body=archive, by_hand=by_hand))
    body = _tell_report(loaded, slug, as_json=as_json)
    if decision.next_digest is not None and body["newer"] is None:
        typer.echo("its newer version is gone from where it came, and waits no more", err=True)


def remove(
    slug: Slug, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Delete an installed skill."""

    async def by_hand(changes: SkillChanges) -> None:
        await changes.remove(slug, act=act_by_hand())

    loaded = settings_from(config=config, data_dir=data_dir)
    _made(loaded, _Change(method="DELETE", path=_path(slug), by_hand=by_hand))
    typer.echo(json.dumps({"slug": slug}) if as_json else f"{slug} is removed")


def _warn_of_secrets(loaded: Loaded, slug: str, granted: Collection[str]) -> None:
    """Say which secrets are not set that were granted: in the running gateway, which read .env at its start."""
    gateway = running_gateway(loaded.settings)
    if gateway is not None:
        records = gateway.ask("GET", "/skills", read=list[Mapping[str, Any]])
    else:
        here = SkillsHere(loaded).skills
        records = [here.record(skill) for skill in here.catalogue().loaded]
    then = " and restart the gateway" if gateway else ""
    for name in next((one["missing"]["env"] for one in records if one["slug"] == slug), ()):
        if name in granted:
            typer.echo(f"warning: the secret {name} is not set; put it into .env{then}", err=True)


def _change(
    loaded: Loaded,
    slug: str,
    method: str,
    end: str,
    by_hand: Callable[[SkillChanges], Coroutine[Any, Any, object]],
    *,
    body: Mapping[str, Any] | None = None,
    as_json: bool,
) -> None:
    """Make a change and tell how the skill stands behind it."""
    _made(loaded, _Change(method=method, path=_path(slug, end), body=body, by_hand=by_hand))
    told = SkillsHere(loaded).body(slug)
    typer.echo(json.dumps(told, indent=2) if as_json else on_one_line(_state_line(told)))


def _made(loaded: Loaded, change: _Change) -> str:
    """Make a change: the slug of its skill. Raises ``OperatorError`` where it is refused."""
    gateway = running_gateway(loaded.settings)
    with _waiting("the skill is unpacked and looked through"):
        if gateway is not None:
            return _asked(gateway, change)
        with own_database(loaded.settings, making=True) as database:
            here = SkillsHere(loaded)
            changes = SkillChanges(
                database=database, skills=here.skills, installed=here.installed, fetcher=_fetcher(loaded)
            )
            return str(_run(change.by_hand(changes)))


def _asked(gateway: RunningGateway, change: _Change) -> str:
    if isinstance(change.body, bytes):
        return gateway.send(change.method, change.path, read=_slug_of, archive=change.body, timeout=_PATIENCE)
    return gateway.ask(change.method, change.path, read=_slug_of, body=change.body)


def _slug_of(document: Any) -> str:
    return str(document["slug"])


def _fetched(loaded: Loaded, source: str, path: str | None) -> tuple[bytes, str]:
    """An archive of what is here or elsewhere, fetched by whoever runs the command and with their rights."""
    fetcher = _fetcher(loaded)
    try:
        found = read_source(source, local=True)
        with _waiting(f"fetching {found}"):
            return asyncio.run(fetcher.fetch(found, path=path)), str(found)
    except SkillInvalid as error:
        raise OperatorError(str(error)) from error


def _fetcher(loaded: Loaded) -> Fetcher:
    guard = Guard(allow=loaded.settings.web_allow, deny=loaded.settings.web_deny)
    return open_fetcher(guard=guard, environ=os.environ, local=True)


def _run(work: Coroutine[Any, Any, object]) -> object:
    try:
        return asyncio.run(work)
    except GatewayError as error:
        raise OperatorError(error.detail) from error


def _waiting(label: str) -> Any:
    """Say what is waited for, on a terminal and nowhere else."""
    console = Console(stderr=True)
    return console.status(Text(on_one_line(label)))


def _tell_report(loaded: Loaded, slug: str, *, as_json: bool) -> Mapping[str, Any]:
    """Tell of a skill all that is to be read; what was told."""
    body = SkillsHere(loaded).body(slug)
    if as_json:
        typer.echo(json.dumps(body, indent=2))
        return body
    version = body["newer"] or body["current"]
    lines = [_state_line(body), *(report_lines(version) if version else ())]
    if body["newer"] or body["state"] == "quarantine":
        lines.append(
            f"`torana skills show {slug}` shows its text, `torana skills approve {slug}` has it loaded."
        )
    typer.echo("\n".join(map(on_one_line, lines)))
    return body


def _state_line(body: Mapping[str, Any]) -> str:
    slug, state = body["slug"], body["state"]
    if state == "quarantine":
        return f"{slug} is in quarantine"
    if body["newer"]:
        return f"{slug} is {state}; a newer version is in quarantine"
    scripts = body["current"] and body["current"]["needs"]["scripts"]
    may = "may" if body["granted"] else "may not"
    return f"{slug} is {state}" + (f"; its scripts {may} be run" if state == "active" and scripts else "")


def _path(slug: str, end: str = "") -> str:
    return f"/v1/skills/{quote(slug, safe='')}{end}"
