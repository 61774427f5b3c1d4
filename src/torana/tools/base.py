"""The definition of a tool: a Python function with a name, a docstring and metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from torana.messages import Turn
from torana.permissions import Permission
from torana.tools.opened import OpenedTools

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__torana_tool__"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The data of a turn that tools may use, as ``RunContext[ToolContext].deps``."""

    turn: Turn
    #: False in a channel with several users: private memories are not read there.
    may_recall: bool
    timezone: ZoneInfo
    clock: Callable[[], datetime]
    opened_tools: OpenedTools = field(default_factory=OpenedTools)


def tool(*, idempotent: bool, permission: Permission = "allow") -> Callable[[F], F]:
    """Mark a function as a tool.

    ``idempotent`` means that running the tool twice has the same effect as running it once; after a crash only
    such a tool runs again. ``permission`` applies if no rule of the operator matches; a tool that reaches
    beyond the gateway should be ``ask``. The function's signature is the tool's schema, and its docstring is
    the description for the model.
    """

    def mark(function: F) -> F:
        setattr(function, _ATTRIBUTE, {"idempotent": idempotent, "permission": permission})
        return function

    return mark


def promises(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the metadata of the function's ``@tool``: ``idempotent`` and ``permission``.

    An unmarked function is not idempotent. It is allowed, because the operator named it.
    """
    return dict(getattr(function, _ATTRIBUTE, {"idempotent": False, "permission": "allow"}))


class ToolError(Exception):
    """The tool failed. The message gives the reason; the model, or the user, can read it."""
