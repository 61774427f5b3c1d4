"""The journal of a turn: steps and tool calls are stored before they count, so that a crash repeats none.

A step is a model request and its response. A step that calls tools is stored in one transaction with the start
of its first call. A step that ends the turn needs no row because the turn's end is written at once. After a
crash the run continues after its last stored step: stored responses are not requested again, finished calls
return their recorded result, interrupted idempotent calls run again, and other interrupted calls do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic_ai.messages import ModelMessage, ModelResponse

from torana.agent.approval import ApprovalDecision, Question
from torana.limits.request_tokens import RequestTokens
from torana.messages import Turn, Usage


class MeasuredRequest(Protocol):
    """A model request that is measured."""

    response: ModelResponse | None


CallState = Literal["started", "completed", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A settled model exchange: its number in the turn, from 0, and its messages.

    The messages are the request and the response, preceded by exchanges that led to no call.
    """

    number: int
    messages: Sequence[ModelMessage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A recorded tool call; ``result`` is JSON if it completed, else the text of the failure."""

    step: int
    id: str
    tool: str
    idempotent: bool
    state: CallState = "started"
    result: bytes = b""

    @property
    def runs_again(self) -> bool:
        """Return whether the call was interrupted and may run again."""
        return self.state == "started" and self.idempotent


class Journal(Protocol):
    """The record of one turn. Each method returns after the commit."""

    @property
    def steps(self) -> Sequence[Step]:
        """Return the settled steps of earlier attempts, in order."""
        ...

    def call(self, step: int, call_id: str) -> Call | None:
        """Return the record that an earlier attempt made of a call, or None."""
        ...

    async def steers(self, step: int) -> Sequence[Turn]:
        """Return the user's messages that were added for the request of this step; the same in each attempt."""
        ...

    async def settle(self, step: Step) -> None:
        """Store a step of which no tool was started."""
        ...

    async def start(self, call: Call, step: Step | None) -> None:
        """Store that a call starts, and its step if it is not stored yet."""
        ...

    async def finish(self, call: Call) -> None:
        """Store the result of a started call."""
        ...

    async def ask(self, question: Question, step: Step | None) -> ApprovalDecision:
        """Ask for approval of a call and wait for the decision, also across crashes.

        The question is stored together with its step if the step is not stored yet.
        """
        ...

    async def hold(self, request: RequestTokens) -> None:
        """Reserve the possible cost of a model request, and store that it is sent."""
        ...

    def request(self, step: int) -> AbstractContextManager[MeasuredRequest]:
        """Measure a model request; the caller sets the response of the returned object."""
        ...

    def check_budgets(self) -> None:
        """Raise ``BudgetSpent`` if the cost of another model request could not be reserved."""
        ...

    def leave(self, *, owed: Usage, asking: bool, unsaid: int = 0) -> None:
        """Note the usage after the last step, and whether a model request was interrupted.

        ``unsaid`` is the number of bytes of thinking and tool calls in the interrupted response. Nothing is
        stored: the writer of the turn's end uses the values.
        """
        ...


def responses_of(messages: Sequence[ModelMessage]) -> list[ModelResponse]:
    return [message for message in messages if isinstance(message, ModelResponse)]


def settled_messages(journal: Journal) -> list[ModelMessage]:
    """Return all messages that earlier attempts of the turn settled, in order."""
    return [message for step in journal.steps for message in step.messages]
