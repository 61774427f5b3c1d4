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
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from torana import __version__
from torana.cli.apps import CommandGroup
from torana.cli.orphans import run_behind_reaper
from torana.cli.process_secrets import deny_inspection
from torana.errors import ConfigInvalid, OperatorError

#: The commands in the order of the help page: the name, which is also the module's, and the help line.
COMMANDS = {
    "serve": "Run the gateway until Ctrl-C or SIGTERM.",
    "service": "Install the gateway as a service, and show its state and log.",
    "chat": "Chat with the agent in the terminal.",
    "console": "Open the gateway's page in the browser, and sign in.",
    "setup": "Choose a model, connect a chat platform, and write the settings.",
    "models": "List the provider's models, test a model, and choose one.",
    "doctor": "Check the installation, and suggest cures.",
    "config": "Show and check the settings.",
    "skills": "List, show, install and approve skills.",
    "sessions": "List, show and export sessions.",
    "turns": "List, show, retry and cancel turns.",
    "approvals": "List, approve and deny tool calls that wait for approval.",
    "tools": "Show the agent's tools and their permissions.",
    "schedules": "List, add, pause, run and remove reminders and scheduled tasks.",
    "token": "Create, list, rotate and revoke tokens.",
    "user": "Export or erase all data of a user.",
    "usage": "Show messages, tokens and money per day, and the limits.",
    "connectors": "List chat platforms, and reload their settings.",
    "mcp": "List MCP servers, and approve tools that changed.",
    "pair": "List, approve and deny senders on chat platforms.",
    "replicas": "List the gateways that share the database.",
    "deliveries": "List, retry and drop deliveries to chat platforms.",
    "audit": "List the newest administrative actions.",
    "backup": "Write all data into a new zip file.",
    "restore": "Restore a backup. Stop the gateway first.",
    "database": "Copy the data between SQLite and PostgreSQL.",
    "completion": "Print the completion script of a shell.",
}

# If rich is installed, httpx, which python-telegram-bot uses, imports its own command line with rich and
# pygments: 4 MB in a gateway. A None in ``sys.modules`` makes that import fail, as if rich were missing.
sys.modules.setdefault("httpx._main", cast("ModuleType", None))


class _Commands(CommandGroup):
    """The commands. The module of a command is imported when the command is used, and not for the help page."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Typer lists these, and suggests the nearest name for a mistyped one.
        self.commands = {name: TyperCommand(name, short_help=line) for name, line in COMMANDS.items()}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(f"torana.cli.commands.{cmd_name}").app)
        command.name, command.short_help = cmd_name, COMMANDS[cmd_name]
        if isinstance(command, CommandGroup):
            command.help = command.short_help
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the table of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_Commands,
    help="Torana: a self-hosted gateway in front of an LLM agent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
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
    if "_TORANA_COMPLETE" in os.environ:
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # registers the completion of each shell
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
