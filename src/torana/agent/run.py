"""The dependencies of an agent run, and the model messages that are not stored yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field

from pydantic_ai import RunContext, RunUsage
from pydantic_ai.messages import ModelMessage, ModelResponse, UserContent
from pydantic_ai.usage import RequestUsage

from torana.agent.event_relay import Watch
from torana.agent.journal import Journal, Step, responses_of
from torana.agent.opened_skills import OpenedSkills
from torana.agent.request_size import RequestMeter
from torana.messages import Turn
from torana.tools import ToolContext


class Exchange:
    """The model messages of a run that no step has recorded yet."""

    def __init__(self) -> None:
        self.call_ids: set[str] = set()
        #: True if a model request is unanswered.
        self.is_open = False
        #: The run's usage before the request.
        self._before = RunUsage()
        #: Messages that belong to no step yet.
        self._said: list[ModelMessage] = []
        #: The step that is stored together with the first action on its calls.
        self._pending: Step | None = None

    @property
    def unsettled_responses(self) -> list[ModelResponse]:
        pending = self._pending.messages if self._pending is not None else ()
        return responses_of([*pending, *self._said])

    def add_call_ids(self, messages: Sequence[ModelMessage]) -> None:
        calls = (call for response in responses_of(messages) for call in response.tool_calls)
        self.call_ids.update(call.tool_call_id for call in calls)

    def add(self, request: ModelMessage, response: ModelResponse, *, step: int) -> None:
        """Keep an exchange for the step of that number; a response that calls tools completes the step."""
        self.add_call_ids([response])
        self._said += [request, response]
        if response.tool_calls:
            self._pending = Step(number=step, messages=self._said)
            self._said = []

    def take_pending(self) -> Step | None:
        """Return and clear the step that is to be stored, if there is one."""
        step, self._pending = self._pending, None
        return step

    def cut_short(self, used: RunUsage, *, model: str) -> None:
        """Keep the usage of an interrupted response; ``used`` is the run's usage."""
        if self.is_open:
            spent = used - self._before
            usage = RequestUsage(input_tokens=spent.input_tokens, output_tokens=spent.output_tokens)
            self._said.append(ModelResponse(parts=[], usage=usage, model_name=model))
            self.is_open = False

    @contextmanager
    def asking(self, used: RunUsage) -> Generator[None]:
        """Mark a model request as open; ``used`` is the run's usage so far."""
        self._before = copy(used)
        self.is_open = True
        yield
        self.is_open = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(ToolContext):
    """The dependencies of a run: the tool context and the turn's journal."""

    journal: Journal
    watch: Watch
    prompt: Callable[[Turn], Awaitable[str | Sequence[UserContent]]]
    opened: OpenedSkills
    #: None if neither tokens nor money are limited.
    meter: RequestMeter | None = None
    exchange: Exchange = field(default_factory=Exchange, init=False)


def step_number(ctx: RunContext[Run]) -> int:
    """Return the number of the current step; a resumed run continues after its settled steps."""
    steps = ctx.deps.journal.steps
    return (steps[-1].number + 1 if steps else 0) + ctx.run_step - 1
