"""``torana doctor``: check the installation, and suggest cures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.remote import running_gateway
from torana.cli.terminal import indented
from torana.errors import DatabaseUnusable, DataDirUnusable, GatewayError, OperatorError

if TYPE_CHECKING:
    from torana.config import Loaded

app = new_app()


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check; ``detail`` gives the state, or the problem and its cure."""

    check: str
    ok: bool
    detail: str


@app.command()
def doctor(options: CommonOptions) -> None:
    """Check the settings, the data, the skills, your tools, the connectors, the MCP servers and the model.

    The checks use the settings that the current directory has. The line `gateway` describes the running
    gateway, and lists its settings that differ. The command makes one real model call. It does not contact
    chat platforms.
    """
    loaded = options.loaded
    findings = [
        DoctorFinding("settings", True, "valid"),
        *(
            _run_check(name, check, loaded)
            for name, check in _CHECKS
            if check is not _redis or loaded.settings.redis_url is not None
        ),
    ]
    if options.as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            typer.echo(
                f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check:11} {indented(finding.detail, by=18)}"
            )
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _run_check(name: str, check: Callable[[Loaded], str], loaded: Loaded) -> DoctorFinding:
    try:
        return DoctorFinding(name, True, check(loaded))
    except GatewayError as error:
        return DoctorFinding(name, False, error.detail)
    except OSError as error:
        cure = "fix its permissions, or choose another with --data-dir"
        return DoctorFinding(name, False, f"{error.filename}: {error.strerror}; {cure}")


def _data(loaded: Loaded) -> str:
    from torana.app.checks import check_data_dir

    check_data_dir(loaded)
    directory = loaded.settings.data_dir
    return str(directory) if directory.exists() else f"{directory} will be created at the first start"


def _disk(loaded: Loaded) -> str:
    from rich.filesize import decimal

    from torana.store.backup.archive import DATABASE_NAME
    from torana.store.engine.disk_usage import measure_disk

    directory = loaded.settings.data_dir
    if not directory.is_dir():
        return "nothing is stored yet"
    usage = measure_disk(directory, DATABASE_NAME)
    found = f"{decimal(usage.free)} free"
    if loaded.settings.database_url is None:
        found += f"; the database has {decimal(usage.database)}"
    if usage.remains:
        names = ", ".join(path.name for path in usage.remains)
        found += f"; delete these remains of restores and upgrades if you do not need them: {names}"
    if usage.is_low:
        raise OperatorError(f"{found}; free disk space: a backup or an upgrade needs room for a copy")
    return found


def _gateway(loaded: Loaded) -> str:
    from torana.cli.gateway_report import describe_gateway

    return describe_gateway(loaded)


def _database(loaded: Loaded) -> str:
    from torana.store.backup.archive import DATABASE_NAME
    from torana.store.engine.database_file import database_exists
    from torana.store.engine.integrity import check_database, foreign_objects
    from torana.store.engine.migrate import HEAD

    if (url := loaded.settings.database_url) is not None:
        return _postgres(url.get_secret_value())
    path = loaded.settings.data_dir / DATABASE_NAME
    if not database_exists(path):
        return "will be created at the first start"
    at = check_database(path)
    found = (
        f"intact, at revision {at}"
        if at == HEAD
        else (f"intact; the next start upgrades it to revision {HEAD}")
    )
    foreign = foreign_objects(path)
    return (
        f"{found}; warning: `torana restore` would refuse a backup of this database: {', '.join(foreign)}"
        if foreign
        else found
    )


def _postgres(url: str) -> str:
    from torana.messages import utc_now
    from torana.store.engine.postgres.connection import PostgresUrl
    from torana.store.engine.postgres.server import describe_server

    return describe_server(PostgresUrl(url), now=utc_now)


def _redis(loaded: Loaded) -> str:
    import asyncio

    from torana.config.redis import redis_server

    server = redis_server(loaded.settings)
    return asyncio.run(server.describe()) if server is not None else ""


def _skills(loaded: Loaded) -> str:
    from torana.cli.commands.skills.reading import SkillsHere

    try:
        here = SkillsHere(loaded)
    except (DataDirUnusable, DatabaseUnusable):
        return "unknown, because the database cannot be read"
    counts = here.skills.catalogue().counts()
    statuses = here.statuses.list_statuses()
    if faults := [f"{one.slug}: {one.fault}" for one in statuses if one.fault]:
        raise OperatorError("; ".join(faults))
    waiting = [one.slug for one in statuses if one.state == "quarantine" or one.newer]
    unapproved = [one.slug for one in statuses if one.has_unapproved_scripts]
    notes = f"; in quarantine: {', '.join(waiting)} (`torana skills approve`)" if waiting else ""
    notes += f"; scripts not approved: {', '.join(unapproved)} (`torana skills approve`)" if unapproved else ""
    too_long = [one.slug for one in statuses if one.warnings]
    notes += (
        f"; too long, so that only a part is used: {', '.join(too_long)} (`torana skills list`)"
        if too_long
        else ""
    )
    return f"{counts['core']} core, {counts['user']} of your own in {loaded.settings.skills_dir}{notes}"


def _sandbox(loaded: Loaded) -> str:
    from torana.app.tooling import open_bubblewrap, open_skills

    fault = open_bubblewrap(loaded.settings).fault()
    if fault is None:
        return "scripts of skills can run"
    catalogue = open_skills(loaded).catalogue()
    with_scripts = [skill.slug for skill in catalogue.loaded if skill.needs.scripts]
    if with_scripts:
        raise OperatorError(f"the scripts of {', '.join(with_scripts)} cannot run. {fault}")
    return f"not needed: no skill has scripts. {fault}"


def _tools(loaded: Loaded) -> str:
    from torana.app.checks import check_search, check_tools

    names = check_tools(loaded)
    check_search(loaded)
    return ", ".join(names) or "no tools of your own"


def _permissions(loaded: Loaded) -> str:
    count = len(loaded.settings.permissions)
    summary = f"{count} rules" if count else "no rules: each tool's default applies"
    gateway = running_gateway(loaded.settings)
    if gateway is None:
        return f"{summary}; a running gateway is needed to check their tool names" if count else summary
    try:
        unknown: list[str] = gateway.ask("GET", "/v1/tools", read=lambda document: list(document["unknown"]))
    except OperatorError:  # the check of the gateway reports this
        return summary
    return f"{summary}; warning: there is no tool {', '.join(unknown)}" if unknown else summary


def _connectors(loaded: Loaded) -> str:
    from torana.app.checks import check_connectors

    accounts = check_connectors(loaded)
    return (
        ", ".join(one.name if one.name == one.kind else f"{one.name} ({one.kind})" for one in accounts)
        or "none"
    )


def _mcp(loaded: Loaded) -> str:
    from torana.app.checks import check_mcp

    servers = check_mcp(loaded)
    gateway = running_gateway(loaded.settings)
    if gateway is None or not servers:
        return ", ".join(server.name for server in servers) or "none"
    records = gateway.ask("GET", "/v1/mcp", read=lambda document: list(document["items"]))
    faulty = [f"{one['server']}: {one['reason']}" for one in records if one["reason"]]
    faulty += [
        f"{one['server']}: tools wait for review with `torana mcp approve`" for one in records if one["held"]
    ]
    if faulty:
        raise OperatorError("; ".join(faulty))
    return ", ".join(f"{one['server']} ({one['tools']} tools)" for one in records)


def _model(loaded: Loaded) -> str:
    import asyncio

    from torana.app.checks import check_models
    from torana.models.providers import probe

    result = asyncio.run(probe(check_models(loaded)))
    return f"{result.model} answered in {result.latency_ms:.0f} ms"


_CHECKS: tuple[tuple[str, Callable[[Loaded], str]], ...] = (
    ("data", _data),
    ("disk", _disk),
    ("gateway", _gateway),
    ("database", _database),
    ("redis", _redis),
    ("skills", _skills),
    ("sandbox", _sandbox),
    ("tools", _tools),
    ("permissions", _permissions),
    ("connectors", _connectors),
    ("mcp", _mcp),
    ("model", _model),
)
