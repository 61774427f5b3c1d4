"""The operator's commands; the module of one is imported when it is called, so ``serve`` listens at once."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from torana import __version__
from torana.errors import ConfigInvalid, OperatorError

#: In the order of the help page; each is the module of that name in this package.
COMMANDS = ("serve", "chat", "doctor", "config", "skills", "backup", "restore")


class _Commands(TyperGroup):
    """Finds a command by importing its module."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every command's name."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or None where there is no such one."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(f"torana.cli.{cmd_name}").app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Commands,
    help="Torana: a self-hosted gateway in front of an LLM agent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    """Torana: a self-hosted gateway in front of an LLM agent."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run a command. What the operator has to mend is a line on standard error, and the exit code is 1 or 2."""
    try:
        app()
    except OperatorError as error:
        typer.echo(error.detail, err=True)
        sys.exit(2 if isinstance(error, ConfigInvalid) else 1)
