"""The tool journal: each step of a run is written down before it counts, and nothing is done twice.

A step is a request to the model and its response. One that calls tools is kept together with the start of its
first tool; one that ends the turn needs no row, for the turn's end is written at once. After a crash the run
goes on behind its last kept step: what was answered is not asked again, a finished call gives its recorded
result, an idempotent one that was cut off runs again, and any other is not started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic_ai.messages import ModelMessage, ModelResponse

from torana.agent.approval import Decision, Question
from torana.limits.budgets import RequestTokens
from torana.messages import Turn, Usage

CallState = Literal["started", "completed", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A settled exchange with the model: its place in the turn, from 0, and its messages.

    They are a request and a response, with those before them that led to no call.
    """

    number: int
    messages: Sequence[ModelMessage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call as the journal knows it; ``result`` is JSON when it completed, else the failure's text."""

    step: int
    id: str
    tool: str
    idempotent: bool
    state: CallState = "started"
    result: bytes = b""

    @property
    def runs_again(self) -> bool:
        """Whether it was cut off and may be begun anew."""
        return self.state == "started" and self.idempotent


class Journal(Protocol):
    """What is written down of one turn. Each method returns after the commit."""

    @property
    def steps(self) -> Sequence[Step]:
        """What earlier attempts settled, in order."""
        ...

    def call(self, step: int, call_id: str) -> Call | None:
        """What earlier attempts wrote of a call."""
        ...

    async def steers(self, step: int) -> Sequence[Turn]:
        """The messages that the user added for the request of this step; asked again, the same."""
        ...

    async def settle(self, step: Step) -> None:
        """Keep a step none of whose tools was started."""
        ...

    async def start(self, call: Call, step: Step | None) -> None:
        """Keep that a tool is about to run, with the step that called it where that is not kept yet."""
        ...

    async def finish(self, call: Call) -> None:
        """Keep how a started call ended."""
        ...

    async def ask(self, question: Question, step: Step | None) -> Decision:
        """Have somebody decide whether a call may run, and wait for it, also across crashes.

        The question is kept with the step that called it, where that is not kept yet.
        """
        ...

    async def hold(self, request: RequestTokens) -> None:
        """Hold back what the next request to the model may cost, where less is held back by now."""
        ...

    def check_budgets(self) -> None:
        """Raise ``BudgetSpent`` where nothing could be held back for another request to the model."""
        ...

    def leave(self, *, owed: Usage, asking: bool) -> None:
        """Note what a run used behind its last step, and whether it broke off while the model was being asked.

        Nothing is written: it is for whoever writes the turn's end.
        """
        ...


def responses_of(messages: Sequence[ModelMessage]) -> list[ModelResponse]:
    """What the model said among messages."""
    return [message for message in messages if isinstance(message, ModelResponse)]


def settled_messages(journal: Journal) -> list[ModelMessage]:
    """All messages of the turn that earlier attempts settled, in order."""
    return [message for step in journal.steps for message in step.messages]
