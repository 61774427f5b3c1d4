"""The tool calls of a turn, as shown to its user."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeVar

from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart

from torana.agent.approval import without_changed_arguments
from torana.agent.journal_hooks import result_text
from torana.agent.text import arguments_of
from torana.messages import Turn
from torana.sessions import history
from torana.store.rows.approval_questions import arguments_text
from torana.store.rows.approvals import Approval, size_of
from torana.store.rows.reports.calls import CallRecords
from torana.store.rows.reports.timings import StepTime
from torana.turns.approval_replies import with_visible_arguments
from torana.turns.journal import call_of

P = TypeVar("P", ToolCallPart, ToolReturnPart[Any])

CallState = Literal["running", "waiting", "completed", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of a turn. ``arguments`` and ``result`` are None if they are unknown or ``hidden``.

    ``hidden`` is true for private data of one user in a session of several.
    """

    id: str
    tool: str
    state: CallState
    arguments: Mapping[str, Any] | None
    result: str | None
    hidden: bool
    approval: Approval | None
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def arguments_text(self) -> str | None:
        return None if self.arguments is None else arguments_text(self.arguments)

    @property
    def size(self) -> int:
        """Return the approximate number of characters of the texts."""
        approval_size = size_of(self.approval) if self.approval is not None else 0
        own_size = 2 * len(json.dumps(self.arguments))  # also the readable text
        return own_size + approval_size + len(self.result or "")


@dataclass(frozen=True, slots=True)
class _Result:
    state: Literal["completed", "failed"]
    text: str


def calls_of(turn: Turn, records: CallRecords, now: datetime) -> list[ToolCall]:
    messages = [message for body in records.bodies for message in history.load_readable(body)]
    called = {part.tool_call_id: part for part in _parts(messages, ToolCallPart)}
    journaled = (call for call in map(call_of, records.journaled) if call.state != "started")
    results = {
        call.id: _Result("completed" if call.state == "completed" else "failed", result_text(call))
        for call in journaled
    }
    results |= {part.tool_call_id: _result(part) for part in _parts(messages, ToolReturnPart)}
    # A later attempt of a call replaces an earlier one.
    times = {step.call_id or "": step for step in records.times}
    approvals = {
        one.call_id: with_visible_arguments(one.at(now), shared=records.shared) for one in records.approvals
    }

    def build_call(call_id: str) -> ToolCall:
        part, result = called.get(call_id), results.get(call_id)
        time, approval = times.get(call_id), approvals.get(call_id)
        tool = part.tool_name if part else approval.tool if approval else (time and time.name) or ""
        arguments = arguments_of(part) if part else approval and approval.arguments
        hidden = history.hides(tool, shared=records.shared)
        return ToolCall(
            id=call_id,
            tool=tool,
            state=_state(turn, result, time, approval),
            arguments=None if hidden else arguments,
            result=None if hidden else result and result.text,
            hidden=hidden,
            approval=approval,
            started_at=time and time.started_at,
            ended_at=time and time.ended_at,
        )

    return [build_call(call_id) for call_id in {**called, **times, **approvals}]


def _state(turn: Turn, result: _Result | None, time: StepTime | None, approval: Approval | None) -> CallState:
    if result is not None:
        return result.state
    if not turn.has_ended:
        return "waiting" if approval is not None and approval.state == "open" else "running"
    return time.state if time is not None and time.state in ("completed", "failed") else "interrupted"


def _parts(messages: Sequence[ModelMessage], kind: type[P]) -> Iterator[P]:
    return (part for message in messages for part in message.parts if isinstance(part, kind))


def _result(part: ToolReturnPart[Any]) -> _Result:
    shown = replace(part, content=without_changed_arguments(part.content))
    text = shown.model_response_str(wrap_if_error=False)
    return _Result("completed" if part.outcome == "success" else "failed", text)
