"""The options that several commands share, and the settings that result from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from torana.cli.remote import RunningGateway
    from torana.config import Loaded, Settings

T = TypeVar("T")

ConfigFlag = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help=(
            "The settings file. Default: torana.toml in the current directory "
            "or the user's configuration directory."
        ),
    ),
]
DataDirFlag = Annotated[
    Path | None,
    typer.Option("--data-dir", help=("The directory of the database, logs and skills (TORANA_DATA_DIR).")),
]
UrlFlag = Annotated[
    str | None, typer.Option("--url", help="Use this gateway, such as https://torana.example.org.")
]
TokenEnvFlag = Annotated[
    str,
    typer.Option(
        "--token-env",
        help="With --url: the environment variable that contains the token. If it is not set and "
        "the gateway requires a token, the command asks for it.",
    ),
]
#: The default of ``--token-env``.
CHAT_VARIABLE = "TORANA_CHAT_TOKEN"
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options that most commands have; ``new_app`` adds them to a command with a parameter ``options``."""

    config: ConfigFlag = None
    data_dir: DataDirFlag = None
    as_json: JsonFlag = False

    @cached_property
    def loaded(self) -> Loaded:
        """The settings; warnings are printed on standard error. Raises ``ConfigInvalid``."""
        return settings_from(config=self.config, data_dir=self.data_dir)

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    def gateway(self) -> RunningGateway:
        """Return the gateway on the data directory. Raises ``OperatorError`` if none runs."""
        from torana.cli.remote import the_gateway

        return the_gateway(self.settings)

    def read_store(self, read: Callable[[Connection], T]) -> T:
        """Return the result of ``read`` for a read-only connection, also while a gateway runs.

        Raises ``OperatorError``.
        """
        # Imported here so that the help of a command is printed at once.
        from torana.config.database import database_place

        return database_place(self.settings).read(read)


def check_one_gateway(url: str | None, *, config: Path | None, data_dir: Path | None) -> None:
    """Raise ``BadParameter`` if options of a remote gateway and of a local gateway are combined."""
    if url is not None and (config is not None or data_dir is not None):
        raise typer.BadParameter("--url cannot be combined with --config and --data-dir")


def settings_from(**flags: Any) -> Loaded:
    """Load the settings of this directory and environment, and print warnings on standard error.

    Raises ``ConfigInvalid``.
    """
    # Commands import parts of the gateway when they run, so that their help is printed at once.
    from torana.config import load

    # A copy: secrets are removed from the process's environment, and the settings may be reloaded.
    return _print_warnings(load(flags=flags, environ=dict(os.environ), cwd=Path.cwd()))


def faulty_settings_from(**flags: Any) -> tuple[Loaded, list[str]]:
    """Load the settings, with defaults in place of invalid values, and return a line for each error.

    Raises ``ConfigInvalid`` for a file that cannot be read.
    """
    from torana.config import load_with_faults

    loaded, faults = load_with_faults(flags=flags, environ=os.environ, cwd=Path.cwd())
    return _print_warnings(loaded), faults


def _print_warnings(loaded: Loaded) -> Loaded:
    if loaded.warnings:
        # Imported here because it imports rich, which a gateway does not need.
        from torana.cli.terminal import printable

        for line in loaded.warnings:
            typer.echo(printable(f"warning: {line}"), err=True)
    return loaded
