"""The Typer application of a command, or of a group of commands."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
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


class _App(typer.Typer):
    """An application whose commands may have a parameter ``options``, a dataclass with a field per option."""

    def command(self, name: str | None = None, **attributes: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a command."""
        register = super().command(name, **attributes)

        def add(function: Callable[..., None]) -> Callable[..., None]:
            register(_with_options(function))
            return function

        return add


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with one parameter for each field of ``options``, which Typer reads."""
    signature = inspect.signature(function, eval_str=True)
    if "options" not in signature.parameters:
        return function
    kind = signature.parameters["options"].annotation
    fields = inspect.signature(kind, eval_str=True).parameters

    @wraps(function)
    def run(**arguments: Any) -> None:
        options = kind(**{name: arguments.pop(name) for name in fields})
        function(**arguments, options=options)

    own = [one for one in signature.parameters.values() if one.name != "options"]
    vars(run)["__signature__"] = signature.replace(parameters=[*own, *fields.values()])
    return run


def new_app(*, is_group: bool = False) -> typer.Typer:
    """Return the application of a command, or of a group of commands.

    Its help is plain text: Typer's formatted help imports rich, which takes as long as all other imports.
    """
    return _App(
        cls=CommandGroup,
        no_args_is_help=is_group,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
