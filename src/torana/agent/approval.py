"""The question whether a tool call may run, and the decision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_ai.messages import ToolReturn

_NOTE = "The approver of this call changed its arguments to these."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A tool call that needs approval; ``arguments`` are the model's.

    ``check`` raises ``InvalidField`` for replacing arguments that the tool does not accept.
    """

    step: int
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    check: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecision:
    """The decision on a call: approved, possibly with changed ``arguments``, or denied with a reason."""

    approved: bool
    arguments: Mapping[str, Any] | None = None
    reason: str = ""


def with_changed_arguments(result: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the result with a note of the approver's arguments for the model."""
    if isinstance(result, ToolReturn):
        wrapped = cast("ToolReturn[Any]", result)
        return replace(wrapped, return_value=with_changed_arguments(wrapped.return_value, arguments))
    return {"note": _NOTE, "arguments": dict(arguments), "result": result}


def changed_arguments(result: Any) -> Mapping[str, Any] | None:
    """Return the approver's arguments that ``with_changed_arguments`` noted in a result, or None."""
    is_noted = isinstance(result, Mapping) and cast("Mapping[str, Any]", result).get("note") == _NOTE
    return cast("Mapping[str, Any]", result).get("arguments") if is_noted else None


def without_changed_arguments(result: Any) -> Any:
    """Return the result without the note of ``with_changed_arguments``."""
    is_noted = changed_arguments(result) is not None
    return cast("Mapping[str, Any]", result).get("result") if is_noted else result
