"""A run of the agent: what it has at hand, and what it and the model have said that is not written down yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import RunContext, RunUsage
from pydantic_ai.messages import ModelMessage, ModelResponse, UserContent
from pydantic_ai.usage import RequestUsage

from torana.agent.journal import Journal, Step, responses_of
from torana.agent.opened import OpenedSkills
from torana.agent.request_size import RequestMeter
from torana.messages import Turn
from torana.tools import ToolContext


class Exchange:
    """What a run and the model say to each other, until it is written down."""

    def __init__(self) -> None:
        #: The ids of the turn's calls so far.
        self.call_ids: set[str] = set()
        #: Whether the model was asked last and has not answered.
        self.is_open = False
        #: What the run had used when it was asked.
        self._before = RunUsage()
        #: The tasks in which it is being asked.
        self._asking: set[asyncio.Task[Any]] = set()
        #: What was said and is in no step yet.
        self._said: list[ModelMessage] = []
        #: The step that is written down with the first thing that is done with its calls.
        self._pending: Step | None = None

    @property
    def unsettled(self) -> list[ModelResponse]:
        """What the model said that was not left to be written down with a step."""
        pending = self._pending.messages if self._pending is not None else ()
        return responses_of([*pending, *self._said])

    def add_call_ids(self, messages: Sequence[ModelMessage]) -> None:
        """Count the calls in these messages among the turn's."""
        calls = (call for response in responses_of(messages) for call in response.tool_calls)
        self.call_ids.update(call.tool_call_id for call in calls)

    def keep(self, request: ModelMessage, response: ModelResponse, *, step: int) -> None:
        """Keep what was said for a step of that number, which a response that calls tools ends."""
        self.add_call_ids([response])
        self._said += [request, response]
        if response.tool_calls:
            self._pending = Step(number=step, messages=self._said)
            self._said = []

    def take_pending(self) -> Step | None:
        """The step that is to be written down with what is written now, if any."""
        step, self._pending = self._pending, None
        return step

    def cut_short(self, used: RunUsage, *, model: str) -> None:
        """Keep what the answer took in which the model was stopped, of a run that has used so much by now."""
        if self.is_open:
            spent = used - self._before
            usage = RequestUsage(input_tokens=spent.input_tokens, output_tokens=spent.output_tokens)
            self._said.append(ModelResponse(parts=[], usage=usage, model_name=model))
            self.is_open = False

    @contextmanager
    def asking(self, used: RunUsage) -> Generator[None]:
        """Count this task among those that ask the model, in a run that has ``used`` so much."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._asking.add(task)
        self._before = copy(used)
        self.is_open = True
        try:
            yield
        finally:
            self._asking.discard(task)
        self.is_open = False

    async def stop_asking(self) -> None:
        """End what a run that was cut off left behind.

        A cancellation that meets pydantic-ai 2.62 just as it takes the model's stream over leaves the task
        that holds the stream, and with it the connection to the provider.
        """
        left = list(self._asking)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(ToolContext):
    """What a run of the agent has at hand: what tools may know, and the turn's journal."""

    journal: Journal
    #: Makes the prompt of a message.
    prompt: Callable[[Turn], Awaitable[str | Sequence[UserContent]]]
    opened: OpenedSkills
    #: None where neither tokens nor money are limited.
    meter: RequestMeter | None = None
    exchange: Exchange = field(default_factory=Exchange, init=False)


def step_number(ctx: RunContext[Run]) -> int:
    """The step's place in the turn: a resumed run's first new request is behind all that is settled."""
    steps = ctx.deps.journal.steps
    return (steps[-1].number + 1 if steps else 0) + ctx.run_step - 1
