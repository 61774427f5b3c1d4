"""What a tool is: a Python function with a name, a docstring, and a promise about repeating it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from torana.messages import Turn

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__torana_idempotent__"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may know of the turn it runs in; it reaches a tool as ``RunContext[ToolContext].deps``."""

    turn: Turn
    #: False in a room where more than one user has spoken: private memory is not read there.
    may_recall: bool
    timezone: ZoneInfo
    clock: Callable[[], datetime]


def tool(*, idempotent: bool) -> Callable[[F], F]:
    """Mark a function as a tool.

    ``idempotent`` says that running it twice does what running it once does; after a crash only such a tool
    is run again. The function's signature is the tool's schema and its docstring the description that the
    model reads.
    """

    def mark(function: F) -> F:
        setattr(function, _ATTRIBUTE, idempotent)
        return function

    return mark


def is_idempotent(function: Callable[..., Any]) -> bool:
    """What the function's ``@tool`` promised; an unmarked function promises nothing."""
    return bool(getattr(function, _ATTRIBUTE, False))


class ToolError(Exception):
    """The tool could not do it; the message says why and is shown to the model (or to the person)."""
