"""The Typer application of a command, or of a group of commands."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup


class CommandGroup(TyperGroup):
    """A group of commands that finds a command without importing pydantic."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None. Lists of commands show the whole first sentence of its help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.short_help = command.get_short_help_str(sys.maxsize)
        return command

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with False as its default: Typer needs pydantic to convert None."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


def new_app(*, is_group: bool = False) -> typer.Typer:
    """Return the application of a command, or of a group of commands.

    Its help is plain text: Typer's formatted help imports rich, which takes as long as all other imports.
    """
    return typer.Typer(
        cls=CommandGroup,
        no_args_is_help=is_group,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
