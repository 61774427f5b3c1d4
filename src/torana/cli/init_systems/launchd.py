"""The gateway as an agent of launchd, the init system of macOS."""

from __future__ import annotations

import plistlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torana.cli.init_systems.base import MARKER, Command, ServiceDefinition

_GATEWAY, _BACKUP = "torana.gateway", "torana.backup"


class Launchd:
    """launchd; ``library`` is the user's ``~/Library``, ``uid`` the user's id."""

    def __init__(self, *, library: Path, uid: int) -> None:
        self._agents = library / "LaunchAgents"
        self._log_file = library / "Logs" / "torana.log"
        self._domain = f"gui/{uid}"

    def files(self, service: ServiceDefinition) -> Mapping[Path, str]:
        """Return the property lists of the agents."""
        common = {
            "WorkingDirectory": str(service.directory),
            "StandardErrorPath": str(self._log_file),
            "Umask": 0o077,
        }
        lists: dict[str, dict[str, Any]] = {
            _GATEWAY: {
                "ProgramArguments": list(service.serve),
                "RunAtLoad": True,
                # As with systemd: restart after a failure, not after an ordered stop.
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": 10,
                "ExitTimeOut": service.stop_seconds,
                **common,
            }
        }
        if service.backups is not None:
            lists[_BACKUP] = {
                "ProgramArguments": list(service.backup),
                "StartCalendarInterval": {"Hour": 3, "Minute": 30},
                **common,
            }
        return {self._file(label): _property_list(label, keys) for label, keys in lists.items()}

    def possible_files(self) -> Sequence[Path]:
        """Return the paths of all files that ``files`` may name."""
        return [self._file(_GATEWAY), self._file(_BACKUP)]

    def start_commands(self, service: ServiceDefinition) -> Sequence[Command]:
        """Return the commands that load the agents."""
        return [("launchctl", "bootstrap", self._domain, str(path)) for path in self.files(service)]

    def optional_commands(self) -> Mapping[Command, str]:
        """Return nothing: an agent always ends with the user's session."""
        return {}

    def stop_commands(self, installed: Sequence[Path]) -> Sequence[Command]:
        """Return the commands that unload the agents."""
        return [("launchctl", "bootout", f"{self._domain}/{path.stem}") for path in installed]

    def reload_commands(self) -> Sequence[Command]:
        """Return nothing: launchd forgets an agent when it is unloaded."""
        return []

    def status_command(self) -> Command:
        """Return the command that prints the state of the gateway."""
        return ("launchctl", "print", f"{self._domain}/{_GATEWAY}")

    def logs_command(self, *, lines: int, follow: bool) -> Command:
        """Return the command that prints the end of the standard error of both agents."""
        return ("tail", "-n", str(lines), *(["-f"] if follow else []), str(self._log_file))

    def _file(self, label: str) -> Path:
        return self._agents / f"{label}.plist"


def _property_list(label: str, keys: Mapping[str, Any]) -> str:
    text = plistlib.dumps({"Label": label, **keys}, sort_keys=False).decode()
    head, _, rest = text.partition("\n")
    return f"{head}\n<!-- {MARKER} -->\n{rest}"
