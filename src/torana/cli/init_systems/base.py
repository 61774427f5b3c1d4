"""The definition of a service, and the interface of an init system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Command = Sequence[str]

#: The first words of each file that `torana service install` writes. Files without them are not replaced.
MARKER = "Written by `torana service install`."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDefinition:
    """The gateway and its daily backup, independent of the init system."""

    #: The command `torana` without a subcommand; the first word is an absolute path.
    torana: Command
    #: The options that select the settings and the data, such as `--data-dir`.
    options: Command
    #: The working directory, which may contain `.env` and `torana.toml`.
    directory: Path
    #: Seconds that the gateway may take to stop.
    stop_seconds: int
    #: The directory of the daily backups, or None.
    backups: Path | None
    #: The number of backups to keep.
    keep: int

    @property
    def serve(self) -> Command:
        """The command of the gateway."""
        return (*self.torana, "serve", *self.options)

    @property
    def backup(self) -> Command:
        """The command of the daily backup. Needs ``backups``."""
        return (*self.torana, "backup", *self.options, "--to", str(self.backups), "--keep", str(self.keep))


class InitSystem(Protocol):
    """Runs the gateway as a service. It only describes files and commands, and has no effects."""

    def files(self, service: ServiceDefinition) -> Mapping[Path, str]:
        """Return the texts of all files that define the service."""
        ...

    def possible_files(self) -> Sequence[Path]:
        """Return the paths of all files that ``files`` may name."""
        ...

    def start_commands(self, service: ServiceDefinition) -> Sequence[Command]:
        """Return the commands that start the service now and at each boot, also if it runs already."""
        ...

    def optional_commands(self) -> Mapping[Command, str]:
        """Return commands that may fail, each with the consequence of its failure."""
        ...

    def stop_commands(self, installed: Sequence[Path]) -> Sequence[Command]:
        """Return the commands that stop the service of these files, also at the next boot."""
        ...

    def reload_commands(self) -> Sequence[Command]:
        """Return the commands that follow the deletion of the files."""
        ...

    def status_command(self) -> Command:
        """Return the command that prints the state of the service."""
        ...

    def logs_command(self, *, lines: int, follow: bool) -> Command:
        """Return the command that prints the last lines of the log."""
        ...
