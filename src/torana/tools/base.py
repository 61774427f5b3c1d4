"""The definition of a tool: a Python function with a name, a docstring and metadata."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

from torana.messages import Turn
from torana.permissions import Permission

if TYPE_CHECKING:  # commands that need no agent start without its library
    from pydantic_ai.tools import ToolDefinition

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__torana_tool__"

#: Maximum number of opened tools of a session. A further one replaces the one that was opened first.
_OPENED_LIMIT = 64


class OpenedTools:
    """The tools that a session has opened, in order, and the tools that its requests do not list."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """``names`` are the tools that earlier turns of the session opened."""
        self.names = self._stored = tuple(names)
        #: The permitted tools that the last request did not list; a search finds them.
        self.unlisted: Sequence[ToolDefinition] = ()

    @property
    def to_store(self) -> tuple[str, ...] | None:
        """Return the names for the session's later turns; None if they have not changed."""
        return None if self.names == self._stored else self.names

    def open(self, names: Iterable[str]) -> None:
        """Append the tools that are not open yet."""
        new = [name for name in dict.fromkeys(names) if name not in self.names]
        if new:
            self.names = (*self.names, *new)[-_OPENED_LIMIT:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The data of a turn that tools may use, as ``RunContext[ToolContext].deps``."""

    turn: Turn
    #: False in a channel with several users: private memories are not read there.
    may_recall: bool
    timezone: ZoneInfo
    clock: Callable[[], datetime]
    opened_tools: OpenedTools = field(default_factory=OpenedTools)

    def user_for(self, purpose: str) -> str:
        """Return the user, who is needed for ``purpose``. Raises ``ToolError``."""
        if self.turn.user is None:
            raise ToolError(f"{purpose} need a user; send a userId with the message.")
        return self.turn.user

    def check_private(self, purpose: str) -> None:
        """Raise ``ToolError`` in a channel with several users; ``purpose`` says what is not done there."""
        if not self.may_recall:
            raise ToolError(f"The channel has several users, so private {purpose} here.")


class ToolGroup:
    """Related tools that share their dependencies: the methods that ``@tool`` marks."""

    @property
    def tools(self) -> Sequence[Callable[..., Any]]:
        """Return the functions, in the order of their definitions."""
        return [getattr(self, name) for name, member in vars(type(self)).items() if hasattr(member, _ATTRIBUTE)]


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


def counted(number: int, unit: str) -> str:
    """Return a number with its unit in the singular or the plural, such as "1 line" or "2 lines"."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


class ToolError(Exception):
    """The tool failed. The message gives the reason; the model, or the user, can read it."""


@contextmanager
def tool_errors(*kinds: type[Exception]) -> Generator[None]:
    """Convert errors of these kinds to ``ToolError`` with the same text."""
    try:
        yield
    except kinds as error:
        raise ToolError(str(error)) from error
