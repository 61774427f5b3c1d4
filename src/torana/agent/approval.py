"""The question whether a tool may run, and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_ai.messages import ToolReturn

_NOTE = "Whoever approved this call changed its arguments to these."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call of a tool that somebody is to approve; ``arguments`` are the model's.

    ``check`` raises ``InvalidField`` for other arguments that the tool would not take.
    """

    step: int
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    check: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of it: with which ``arguments`` where whoever approved it chose others, or why not."""

    approved: bool
    arguments: Mapping[str, Any] | None = None
    reason: str = ""


def with_changed(result: Any, arguments: Mapping[str, Any]) -> Any:
    """A result that tells the model with which arguments it was had, where they are not its own."""
    if isinstance(result, ToolReturn):
        wrapped = cast("ToolReturn[Any]", result)
        return replace(wrapped, return_value=with_changed(wrapped.return_value, arguments))
    return {"note": _NOTE, "arguments": dict(arguments), "result": result}


def changed_arguments(result: Any) -> Mapping[str, Any] | None:
    """The arguments with which a result was had, where it tells."""
    is_noted = isinstance(result, Mapping) and cast("Mapping[str, Any]", result).get("note") == _NOTE
    return cast("Mapping[str, Any]", result)["arguments"] if is_noted else None
