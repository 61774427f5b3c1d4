"""The operator's commands; the module of one is imported when it is called, so ``serve`` listens at once."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from types import ModuleType
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from torana import __version__
from torana.cli.orphans import run_behind_reaper
from torana.cli.process_secrets import deny_inspection
from torana.errors import ConfigInvalid, OperatorError

#: In the order of the help page; each is the module of that name in this package.
COMMANDS = (
    "serve",
    "chat",
    "doctor",
    "config",
    "skills",
    "sessions",
    "turns",
    "approvals",
    "tools",
    "schedules",
    "token",
    "user",
    "usage",
    "connectors",
    "mcp",
    "pair",
    "deliveries",
    "audit",
    "backup",
    "restore",
)

# Where rich is installed httpx imports a command line of its own, and rich and pygments with it: 4 MB in every
# gateway, and 0.05 s of every command. With None in this place that import fails, as it does without rich.
sys.modules.setdefault("httpx._main", cast("ModuleType", None))

_COMPLETION = ("install_completion", "show_completion")


class _Commands(TyperGroup):
    """Finds a command by importing its module."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Only for their names, which Typer lists, and of which it suggests the nearest to a mistyped one.
        self.commands = {name: TyperCommand(name) for name in COMMANDS}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or None where there is no such one."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(f"torana.cli.{cmd_name}").app)
        command.name = cmd_name
        # Typer adds these to every app; here each app is but a part of one.
        command.params = [param for param in command.params if param.name not in _COMPLETION]
        return command


app = typer.Typer(
    cls=_Commands,
    help="Torana: a self-hosted gateway in front of an LLM agent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Torana: a self-hosted gateway in front of an LLM agent."""


def main() -> None:
    """Run a command. What the operator has to mend is a line on standard error, and the exit code is 1 or 2."""
    deny_inspection()
    run_behind_reaper()
    # What a terminal or a pipe cannot show becomes a question mark.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # The agent's library greets whoever runs it on a terminal; what is printed here is ours to choose.
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
    # A command that sets up no log says itself what is wrong.
    logging.getLogger("torana").addHandler(logging.NullHandler())
    try:
        app(prog_name="torana")
    except OperatorError as error:
        _complain(error.detail)
        sys.exit(2 if isinstance(error, ConfigInvalid) else 1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _complain(f"{place}{error.strerror or error}")
        sys.exit(1)


def _complain(text: str) -> None:
    # It imports rich, which a gateway does without.
    from torana.cli.terminal import printable

    typer.echo(printable(text), err=True)
