"""The operator's commands.

The module of a command is imported when the command runs, so that ``serve`` starts to listen quickly.
"""

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

#: The modules of the commands, in the order of the help page.
COMMANDS = (
    "serve",
    "service",
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

# If rich is installed, httpx, which python-telegram-bot uses, imports its own command line with rich and
# pygments: 4 MB in a gateway. None makes that import fail, as it does without rich.
sys.modules.setdefault("httpx._main", cast("ModuleType", None))

_COMPLETION = ("install_completion", "show_completion")


class _Commands(TyperGroup):
    """Finds a command by importing its module."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Only the names are needed: Typer lists them, and suggests the nearest one for a mistyped name.
        self.commands = {name: TyperCommand(name) for name in COMMANDS}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(f"torana.cli.commands.{cmd_name}").app)
        command.name = cmd_name
        # Typer adds these options to every app; here each app is a part of one.
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
    """Run a command. An ``OperatorError`` is printed as one line on standard error, with exit code 1 or 2."""
    deny_inspection()
    run_behind_reaper()
    # Characters that the terminal or pipe cannot encode become question marks.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # pydantic-ai prints a greeting on a terminal.
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
    # A command without a log prints its errors itself; this prevents Python's default handler.
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
    # Imported here because it imports rich, which a gateway does not need.
    from torana.cli.terminal import printable

    typer.echo(printable(text), err=True)
