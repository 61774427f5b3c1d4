"""Flags that several commands take, and the settings that follow from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from torana.config import Loaded, load, survey

ConfigFlag = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file; torana.toml here or in the user's directory by default."),
]
DataDirFlag = Annotated[
    Path | None, typer.Option("--data-dir", help="Where the database, logs and skills are (TORANA_DATA_DIR).")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_from(**flags: Any) -> Loaded:
    """The settings of this directory and environment, with warnings told on standard error.

    Raises ``ConfigInvalid``.
    """
    # A copy: secrets are removed from the process's own, and the settings may be read again.
    return _warned(load(flags=flags, environ=dict(os.environ), cwd=Path.cwd()))


def faulty_settings_from(**flags: Any) -> tuple[Loaded, list[str]]:
    """The same with the faults, a line for each, in whose place defaults stand; only to find more of them.

    Raises ``ConfigInvalid`` for a file that cannot be read.
    """
    loaded, faults = survey(flags=flags, environ=os.environ, cwd=Path.cwd())
    return _warned(loaded), faults


def _warned(loaded: Loaded) -> Loaded:
    if loaded.warnings:
        # It imports rich, which a gateway does without.
        from torana.cli.terminal import printable

        for line in loaded.warnings:
            typer.echo(printable(f"warning: {line}"), err=True)
    return loaded
