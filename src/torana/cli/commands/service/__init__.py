"""``torana service``: run the gateway as a service of systemd or launchd."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.commands.service.definitions import checked_settings, own_service, system_service
from torana.cli.flags import CommonOptions, JsonFlag
from torana.cli.init_systems.detection import InitSystem, check_permitted, find_init_system
from torana.cli.init_systems.installation import (
    ServiceInstaller,
    collect_lines,
    format_files,
    run_command,
    run_quietly,
)
from torana.cli.init_systems.systemd import SYSTEM_BACKUPS, SYSTEM_DATA, SYSTEM_SETTINGS
from torana.cli.remote import running_gateway
from torana.cli.terminal import print_result, printable
from torana.errors import OperatorError

app = new_app(is_group=True)

SystemFlag = Annotated[
    bool,
    typer.Option(
        "--system",
        help="Use the system's service, which has its own user, instead of your user's service.",
    ),
]


@app.command()
def install(
    options: CommonOptions,
    system: SystemFlag = False,
    backup_to: Annotated[
        Path | None,
        typer.Option(
            "--backup-to",
            help="The directory of the daily backups. Default: torana-backups beside the data directory; with "
            f"--system, {SYSTEM_BACKUPS}.",
        ),
    ] = None,
    keep: Annotated[int, typer.Option("--keep", min=1, help="The number of daily backups to keep.")] = 7,
    backups: Annotated[bool, typer.Option("--backups/--no-backups", help="Write daily backups.")] = True,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the files of the service, and change nothing.")
    ] = False,
) -> None:
    """Install and start the service. An installed service is replaced.

    Your own service uses the settings of the current directory. With --system, the settings are in /etc/torana
    and the data in /var/lib/torana.
    """
    if not only_print:
        check_permitted(system=system, uid=os.geteuid())
    init_system = find_init_system(system=system)
    installer = _installer(init_system, as_json=options.as_json)
    if system:
        if options.config is not None or options.data_dir is not None:
            raise OperatorError(
                f"with --system, the settings are in {SYSTEM_SETTINGS} and the data in {SYSTEM_DATA}; omit "
                "--config and --data-dir"
            )
        service = system_service(backup_to, keep)
    else:
        loaded = checked_settings(options)
        service = own_service(loaded, options.config, backup_to, keep)
        if not only_print and not installer.is_installed() and (gateway := running_gateway(loaded.settings)):
            raise OperatorError(f"a gateway runs already at {gateway.address}; stop it, and run this again")
    if not backups:
        service = replace(service, backups=None)
    if only_print:
        files = init_system.files(service)
        shown = json.dumps({str(path): text for path, text in files.items()}, indent=2)
        typer.echo(shown if options.as_json else format_files(files), nl=options.as_json)
        return
    written = installer.install(service)
    line = "the service is installed and started; `torana service logs` shows its log"
    print_result(line, {"written": list(map(str, written))}, as_json=options.as_json)


@app.command()
def uninstall(system: SystemFlag = False, as_json: JsonFlag = False) -> None:
    """Stop the service and delete its files. The data, the backups and the settings stay."""
    check_permitted(system=system, uid=os.geteuid())
    deleted = _installer(find_init_system(system=system), as_json=as_json).uninstall()
    line = "the service is uninstalled; the data, the backups and the settings stay"
    print_result(line, {"deleted": list(map(str, deleted))}, as_json=as_json)


@app.command()
def status(system: SystemFlag = False, as_json: JsonFlag = False) -> None:
    """Print the state of the service. The exit code is that of the init system's command."""
    init_system = find_init_system(system=system)
    _installer(init_system).check_installed()
    command = init_system.status_command()
    if not as_json:
        raise typer.Exit(run_command(command))
    code, lines = collect_lines(command)
    typer.echo(json.dumps({"running": code == 0, "exitCode": code, "lines": lines}, indent=2))
    raise typer.Exit(code)


@app.command()
def logs(
    system: SystemFlag = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="The number of lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the last lines of the service's log."""
    if follow and as_json:
        raise OperatorError("--json prints one document, so it cannot follow the log; omit --follow")
    init_system = find_init_system(system=system)
    _installer(init_system).check_installed()
    command = init_system.logs_command(lines=lines, follow=follow)
    if not as_json:
        raise typer.Exit(run_command(command))
    code, items = collect_lines(command)
    typer.echo(json.dumps({"items": items}, indent=2))
    raise typer.Exit(code)


def _installer(init_system: InitSystem, *, as_json: bool = False) -> ServiceInstaller:
    # The init system's commands write to standard output.
    return ServiceInstaller(
        init_system=init_system,
        run=run_quietly if as_json else run_command,
        report=lambda line: typer.echo(printable(line), err=True),
    )
