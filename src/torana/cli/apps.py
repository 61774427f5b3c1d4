"""The Typer application of a command, or of a group of commands."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class CommandGroup(TyperGroup):
    """A group of commands that finds a command without importing pydantic."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with False as its default: Typer needs pydantic to convert None."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


def new_app(group_help: str | None = None) -> typer.Typer:
    """Return the application of a group of commands, or without a help text of a single command.

    Its help is plain text: Typer's formatted help imports rich, which takes as long as all the rest.
    """
    return typer.Typer(
        cls=CommandGroup,
        help=group_help,
        no_args_is_help=group_help is not None,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
