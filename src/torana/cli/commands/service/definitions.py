"""The definitions of the service: of the user, or of the whole system."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from torana.cli.flags import CommonOptions
from torana.cli.init_systems.base import Command, ServiceDefinition
from torana.cli.init_systems.systemd import SYSTEM_BACKUPS, SYSTEM_DATA, SYSTEM_SETTINGS
from torana.cli.terminal import printable
from torana.errors import ConfigInvalid, OperatorError

if TYPE_CHECKING:
    from torana.config import Loaded, Settings

#: Seconds beyond `TORANA_DRAIN_DELAY` and `TORANA_DRAIN` in which connections are closed and replies are sent.
_STOP_MARGIN = 30


def checked_settings(options: CommonOptions) -> Loaded:
    """Load and check the settings of this folder, and warn about those that only this shell has."""
    from torana.app.checks import settings_faults

    loaded = options.loaded
    if faults := settings_faults(loaded):
        raise ConfigInvalid("\n".join(faults))
    _warn_about_variables(loaded)
    return loaded


def own_service(loaded: Loaded, config: Path | None, backup_to: Path | None, keep: int) -> ServiceDefinition:
    """Return the service of the user, with the settings of the current directory."""
    if config is None and (named := os.environ.get("TORANA_CONFIG")):
        config = Path(named)
    data = loaded.settings.data_dir.absolute()
    return ServiceDefinition(
        torana=_torana(),
        options=("--data-dir", str(data), *(("--config", str(config.absolute())) if config else ())),
        directory=Path.cwd(),
        stop_seconds=_stop_seconds(loaded.settings),
        backups=(backup_to or data.with_name(f"{data.name}-backups")).absolute(),
        keep=keep,
    )


def system_service(backup_to: Path | None, keep: int) -> ServiceDefinition:
    """Return the service of the system. Raises ``OperatorError`` if it cannot access one of its directories."""
    from torana.config import load

    backups = (backup_to or SYSTEM_BACKUPS).absolute()
    if _is_at_home(backups):
        raise OperatorError(f"the service of the system cannot write {backups}; name another with --backup-to")
    for place in map(Path, (sys.executable, sys.base_prefix, __file__)):
        if _is_at_home(place):
            raise OperatorError(
                f"the service of the system cannot read {place}; install Torana and its Python outside of "
                "/home and /root, for example into /opt/torana, and run the command there"
            )
    # The environment of this shell is not the service's.
    settings = load(
        flags={"data_dir": SYSTEM_DATA}, environ={}, cwd=SYSTEM_SETTINGS, user_dir=SYSTEM_SETTINGS
    ).settings
    return ServiceDefinition(
        torana=_torana(),
        options=("--data-dir", str(SYSTEM_DATA)),
        directory=SYSTEM_SETTINGS,
        stop_seconds=_stop_seconds(settings),
        backups=backups,
        keep=keep,
    )


def _stop_seconds(settings: Settings) -> int:
    return settings.drain_delay + settings.drain + _STOP_MARGIN


def _is_at_home(place: Path) -> bool:
    return place.is_relative_to("/home") or place.is_relative_to("/root")


def _torana() -> Command:
    # -P: a module in the working directory must not replace one of Torana's.
    return sys.executable, "-P", "-m", "torana"


def _warn_about_variables(loaded: Loaded) -> None:
    """Name the settings that only this shell has."""
    prefix = "environment "
    only_here = sorted(
        origin.removeprefix(prefix)
        for setting, origin in loaded.origins.items()
        if origin.startswith(prefix) and setting != "data_dir"
    )
    if only_here:
        line = f"warning: the service does not get {', '.join(only_here)} of this shell; write them into .env"
        typer.echo(printable(line), err=True)
