"""What a tool is: a Python function with a name, a docstring, and a promise about repeating it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar
from zoneinfo import ZoneInfo

from torana.messages import Turn

F = TypeVar("F", bound=Callable[..., Any])

#: Whether a tool may be run: yes; only when somebody who may says so; no.
Permission = Literal["allow", "ask", "deny"]

_ATTRIBUTE = "__torana_tool__"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may know of the turn it runs in; it reaches a tool as ``RunContext[ToolContext].deps``."""

    turn: Turn
    #: False in a room where more than one user has spoken: private memory is not read there.
    may_recall: bool
    timezone: ZoneInfo
    clock: Callable[[], datetime]


def tool(*, idempotent: bool, permission: Permission = "allow") -> Callable[[F], F]:
    """Mark a function as a tool.

    ``idempotent`` says that running it twice does what running it once does; after a crash only such a tool
    is run again. ``permission`` holds where no rule of the operator's speaks of the tool: one that reaches
    beyond the gateway should be ``ask``. The function's signature is the tool's schema and its docstring the
    description that the model reads.
    """

    def mark(function: F) -> F:
        setattr(function, _ATTRIBUTE, {"idempotent": idempotent, "permission": permission})
        return function

    return mark


def promises(function: Callable[..., Any]) -> dict[str, Any]:
    """What the function's ``@tool`` said, as a tool's metadata: ``idempotent`` and ``permission``.

    An unmarked function promises nothing; it is allowed because the operator named it.
    """
    return dict(getattr(function, _ATTRIBUTE, {"idempotent": False, "permission": "allow"}))


class ToolError(Exception):
    """The tool could not do it; the message says why and is shown to the model (or to the person)."""
