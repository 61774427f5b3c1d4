"""``torana service``: run the gateway as a service of systemd or launchd."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from torana.cli.apps import new_app
from torana.cli.commands.service.definitions import checked_settings, own_service, system_service
from torana.cli.flags import ConfigFlag, DataDirFlag
from torana.cli.init_systems.base import Command, InitSystem
from torana.cli.init_systems.detection import check_permitted, find_init_system
from torana.cli.init_systems.installation import ServiceInstaller, format_files, run_command
from torana.cli.init_systems.systemd import SYSTEM_BACKUPS, SYSTEM_DATA, SYSTEM_SETTINGS
from torana.cli.remote import running_gateway
from torana.cli.terminal import printable
from torana.errors import OperatorError

app = new_app("Install the gateway as a service, and show its state and log.")

SystemFlag = Annotated[
    bool,
    typer.Option(
        "--system", help="The service of the whole system, with its own user, instead of your own service."
    ),
]


@app.command()
def install(
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
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Install and start the service, also in place of an older one.

    Your own service uses the settings of the current directory. With --system, the settings are in /etc/torana
    and the data in /var/lib/torana.
    """
    if not only_print:
        check_permitted(system=system, uid=os.geteuid())
    init_system = find_init_system(system=system)
    installer = _installer(init_system)
    if system:
        if config is not None or data_dir is not None:
            raise OperatorError(
                f"with --system, the settings are in {SYSTEM_SETTINGS} and the data in {SYSTEM_DATA}; omit "
                "--config and --data-dir"
            )
        service = system_service(backup_to, keep)
    else:
        loaded = checked_settings(config, data_dir)
        service = own_service(loaded, config, backup_to, keep)
        if not only_print and not installer.is_installed() and (gateway := running_gateway(loaded.settings)):
            raise OperatorError(f"a gateway runs already at {gateway.address}; stop it, and run this again")
    if not backups:
        service = replace(service, backups=None)
    if only_print:
        typer.echo(format_files(init_system.files(service)), nl=False)
        return
    installer.install(service)
    typer.echo("the service is installed and started; `torana service logs` shows its log")


@app.command()
def uninstall(system: SystemFlag = False) -> None:
    """Stop the service and delete its files. The data, the backups and the settings stay."""
    check_permitted(system=system, uid=os.geteuid())
    _installer(find_init_system(system=system)).uninstall()


@app.command()
def status(system: SystemFlag = False) -> None:
    """Print the state of the service."""
    init_system = find_init_system(system=system)
    _run_for_installed(init_system, init_system.status_command())


@app.command()
def logs(
    system: SystemFlag = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="The number of lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
) -> None:
    """Print the last lines of the service's log."""
    init_system = find_init_system(system=system)
    _run_for_installed(init_system, init_system.logs_command(lines=lines, follow=follow))


def _installer(init_system: InitSystem) -> ServiceInstaller:
    return ServiceInstaller(
        init_system=init_system, run=run_command, report=lambda line: typer.echo(printable(line), err=True)
    )


def _run_for_installed(init_system: InitSystem, command: Command) -> NoReturn:
    _installer(init_system).check_installed()
    raise typer.Exit(run_command(command))
