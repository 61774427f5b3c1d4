"""Find the init system of this machine, and check that this user may change its services."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TypeAlias

from torana.cli.init_systems.launchd import Launchd
from torana.cli.init_systems.systemd import Systemd
from torana.errors import OperatorError

#: Exists while systemd is the first process (sd_booted(3)).
BOOTED = Path("/run/systemd/system")

#: Runs the gateway as a service. It only describes files and commands, and has no effects.
InitSystem: TypeAlias = Systemd | Launchd


def find_init_system(*, system: bool, platform: str = sys.platform) -> InitSystem:
    """Return launchd on macOS and otherwise systemd, even if it does not run.

    ``system``: for the service of the whole system. Raises ``OperatorError`` on macOS, which has none here.
    """
    if platform == "darwin":
        if system:
            raise OperatorError(
                "--system needs systemd; on macOS, omit it to install the service for your user"
            )
        return Launchd(library=Path.home() / "Library", uid=os.getuid())
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Systemd(unit_dir=None if system else Path(base, "systemd/user"))


def check_permitted(*, system: bool, uid: int, platform: str = sys.platform) -> None:
    """Raise ``OperatorError`` if no init system runs, or if this user may not change the service."""
    if platform != "darwin" and not BOOTED.is_dir():
        raise OperatorError(
            "this machine runs neither systemd nor launchd; run `torana serve` under its own supervisor, or in "
            "a container. `torana service install --print` shows the units for another machine"
        )
    if system and uid != 0:
        raise OperatorError("--system needs root; run the command with sudo, or omit --system")
    if uid == 0 and not system:
        raise OperatorError(
            "the gateway must not run as root; run this command as another user, or add --system, which "
            "creates a user for the gateway"
        )
