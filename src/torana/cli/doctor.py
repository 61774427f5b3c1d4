"""``torana doctor``: is everything right, and if not, what would mend it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import httpx
import typer

from torana.app.acting import open_bubblewrap, open_skills
from torana.app.checks import (
    check_connectors,
    check_data_dir,
    check_mcp,
    check_models,
    check_search,
    check_tools,
)
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.gateway import listen
from torana.cli.remote import running_gateway
from torana.cli.skills.reading import SkillsHere
from torana.cli.terminal import indented
from torana.config import Loaded
from torana.connectors.registry import Account
from torana.errors import DataDirUnusable, GatewayError, OperatorError
from torana.models.providers import probe
from torana.store.backup import DATABASE_NAME
from torana.store.check import check_database, foreign_objects
from torana.store.database_file import database_exists
from torana.store.migrate import HEAD

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: in ``detail`` how it is, or what is wrong and the cure."""

    check: str
    ok: bool
    detail: str


@app.command()
def doctor(config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False) -> None:
    """Check the settings, the data, the skills, your tools, the connectors, the MCP servers and the model.

    The model gets one real call. No chat platform is asked: `torana connectors list` tells how the running
    gateway gets on with them.
    """
    loaded = settings_from(config=config, data_dir=data_dir)
    findings = [
        Finding("settings", True, "could be read"),
        *(_found(name, check, loaded) for name, check in _CHECKS),
    ]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            typer.echo(
                f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check:10} {indented(finding.detail, by=17)}"
            )
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _found(name: str, check: Callable[[Loaded], str], loaded: Loaded) -> Finding:
    try:
        return Finding(name, True, check(loaded))
    except GatewayError as error:
        return Finding(name, False, error.detail)
    except OSError as error:
        cure = "mend its permissions, or choose another with --data-dir"
        return Finding(name, False, f"{error.filename}: {error.strerror}; {cure}")


def _data(loaded: Loaded) -> str:
    check_data_dir(loaded)
    directory = loaded.settings.data_dir
    return str(directory) if directory.exists() else f"{directory} is made at the first start"


def _gateway(loaded: Loaded) -> str:
    settings = loaded.settings
    gateway = running_gateway(settings)
    if gateway is None:
        with listen(settings.host, settings.port):
            return f"not running; {settings.host}:{settings.port} is free"
    address = gateway.address
    try:
        health = httpx.get(f"{address}/health", timeout=10, trust_env=False).json()
    except (httpx.HTTPError, ValueError) as error:
        raise OperatorError(
            f"{address} holds the data directory but does not answer ({error}); stop it"
        ) from None
    if health["status"] in ("degraded", "draining"):
        raise OperatorError(f"running at {address}, but {health['status']}; its log tells why")
    return f"running at {address}"


def _database(loaded: Loaded) -> str:
    path = loaded.settings.data_dir / DATABASE_NAME
    if not database_exists(path):
        return "made at the first start"
    at = check_database(path)
    found = f"whole, at revision {at}" if at == HEAD else f"whole; the next start brings it to revision {HEAD}"
    foreign = foreign_objects(path)
    return (
        f"{found}; warning: `torana restore` refuses a backup of it: {', '.join(foreign)}" if foreign else found
    )


def _skills(loaded: Loaded) -> str:
    try:
        here = SkillsHere(loaded)
    except DataDirUnusable:
        return "not told, as the database cannot be read"
    counts = here.skills.catalogue().counts()
    standings = here.standings.listed()
    if faults := [f"{one.slug}: {one.fault}" for one in standings if one.fault]:
        raise OperatorError("; ".join(faults))
    waiting = [one.slug for one in standings if one.state == "quarantine" or one.newer]
    unapproved = [one.slug for one in standings if one.unapproved]
    told = f"; in quarantine: {', '.join(waiting)} (`torana skills approve`)" if waiting else ""
    told += f"; scripts not approved: {', '.join(unapproved)} (`torana skills approve`)" if unapproved else ""
    return f"{counts['core']} core, {counts['user']} of your own in {loaded.settings.skills_dir}{told}"


def _sandbox(loaded: Loaded) -> str:
    fault = open_bubblewrap(loaded.settings).fault()
    if fault is None:
        return "skills' scripts can be run"
    catalogue = open_skills(loaded).catalogue()
    with_scripts = [skill.slug for skill in catalogue.loaded if skill.needs.scripts]
    if with_scripts:
        raise OperatorError(f"the scripts of {', '.join(with_scripts)} are refused. {fault}")
    return f"not needed: no skill has scripts. {fault}"


def _tools(loaded: Loaded) -> str:
    names = check_tools(loaded)
    check_search(loaded)
    return ", ".join(names) or "none of your own"


def _permissions(loaded: Loaded) -> str:
    count = len(loaded.settings.permissions)
    told = f"{count} rules" if count else "no rules: each tool's own word holds"
    gateway = running_gateway(loaded.settings)
    if gateway is None:
        return f"{told}; while the gateway runs the names in them are checked" if count else told
    try:
        unknown: list[str] = gateway.ask("GET", "/v1/tools", read=lambda document: list(document["unknown"]))
    except OperatorError:  # what is wrong with the gateway another check tells
        return told
    return f"{told}; warning: no tool is called {', '.join(unknown)}" if unknown else told


def _connectors(loaded: Loaded) -> str:
    return ", ".join(_named(account) for account in check_connectors(loaded)) or "none"


def _mcp(loaded: Loaded) -> str:
    servers = check_mcp(loaded)
    gateway = running_gateway(loaded.settings)
    if gateway is None or not servers:
        return ", ".join(server.name for server in servers) or "none"
    records = gateway.ask("GET", "/v1/mcp", read=lambda document: list(document["items"]))
    faulty = [f"{one['server']}: {one['reason']}" for one in records if one["reason"]]
    faulty += [f"{one['server']}: tools wait for `torana mcp approve`" for one in records if one["held"]]
    if faulty:
        raise OperatorError("; ".join(faulty))
    return ", ".join(f"{one['server']} ({one['tools']} tools)" for one in records)


def _named(account: Account) -> str:
    return account.name if account.name == account.kind else f"{account.name} ({account.kind})"


def _model(loaded: Loaded) -> str:
    result = asyncio.run(probe(check_models(loaded)))
    return f"{result.model} answered in {result.latency_ms:.0f} ms"


_CHECKS: tuple[tuple[str, Callable[[Loaded], str]], ...] = (
    ("data", _data),
    ("gateway", _gateway),
    ("database", _database),
    ("skills", _skills),
    ("sandbox", _sandbox),
    ("tools", _tools),
    ("permissions", _permissions),
    ("connectors", _connectors),
    ("mcp", _mcp),
    ("model", _model),
)
