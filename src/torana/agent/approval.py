"""The question whether a tool may run, and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
