"""The definition of a service, independent of the init system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Command = Sequence[str]

#: The first words of each file that `torana service install` writes. Files without them are not replaced.
MARKER = "Written by `torana service install`."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDefinition:
    """The gateway and its daily backup."""

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
