"""The tool journal: each step of a run is written down before it counts, and nothing is done twice.

A step is a request to the model and its response. One that calls tools is kept together with the start of its
first tool; one that ends the turn needs no row, for the turn's end is written at once. After a crash the run
goes on behind its last kept step: what was answered is not asked again, a finished call gives its recorded
result, an idempotent one that was cut off runs again, and any other is not started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast

from pydantic import TypeAdapter
from pydantic_ai import RunContext, RunUsage, ToolFailed
from pydantic_ai.capabilities import ValidatedToolArgs, WrapModelRequestHandler, WrapToolExecuteHandler
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from torana.agent.approval import Decision, Question
from torana.agent.opened import OpenedSkills
from torana.agent.watch import whole, whole_in
from torana.messages import Turn, Usage
from torana.tools import ToolContext

CallState = Literal["started", "completed", "failed"]

_RESULT = TypeAdapter(ToolReturn[Any])

UNKNOWN_OUTCOME = (
    "The gateway was interrupted while this call ran, and its outcome is unknown. It was not started again. "
    "Find out how things stand before you repeat it, or tell the user."
)


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


class Exchange:
    """What a run and the model say to each other, until it is written down."""

    def __init__(self) -> None:
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

    def keep(self, request: ModelMessage, response: ModelResponse, *, step: int) -> None:
        """Keep what was said for a step of that number, which a response that calls tools ends."""
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
    exchange: Exchange = field(default_factory=Exchange, init=False)


async def add_steers(ctx: RunContext[Run], asked: ModelRequestContext) -> None:
    """Put in front of the model what the user added while the turn ran."""
    added = await ctx.deps.journal.steers(step_number(ctx))
    last = asked.messages[-1]
    if added and isinstance(last, ModelRequest):
        prompts = [UserPromptPart(await ctx.deps.prompt(turn)) for turn in added]
        request = replace(last, parts=[*last.parts, *prompts])
        asked.messages[-1] = request
        ctx.messages[-1] = request


async def ask_journaled(
    ctx: RunContext[Run], asked: ModelRequestContext, handler: WrapModelRequestHandler
) -> ModelResponse:
    """Ask the model; a response that calls tools waits for the first of them to be written down."""
    exchange = ctx.deps.exchange
    if pending := exchange.take_pending():
        await ctx.deps.journal.settle(pending)
    ctx.deps.journal.check_budgets()
    with exchange.asking(ctx.usage):
        response = _storable(await handler(asked))
    exchange.keep(asked.messages[-1], response, step=step_number(ctx))
    return response


async def run_journaled(
    args: ValidatedToolArgs,
    *,
    ctx: RunContext[Run],
    call: ToolCallPart,
    tool: ToolDefinition,
    handler: WrapToolExecuteHandler,
) -> Any:
    """Run a tool between two rows, unless an earlier attempt did."""
    journal = ctx.deps.journal
    begun = Call(
        step=step_number(ctx),
        id=call.tool_call_id,
        tool=call.tool_name,
        idempotent=bool((tool.metadata or {}).get("idempotent")),
    )
    known = journal.call(begun.step, begun.id)
    if known is not None and not known.runs_again:
        return _recorded(known)
    await journal.start(begun, ctx.deps.exchange.take_pending())
    return await _run(journal, begun, handler, args)


def _storable(response: ModelResponse) -> ModelResponse:
    """The response with texts that can be written down: some models cut a character in two."""
    parts = [_storable_part(part) for part in response.parts]
    return replace(response, parts=parts) if parts != list(response.parts) else response


def _storable_part(part: ModelResponsePart) -> ModelResponsePart:
    match part:
        case TextPart() | ThinkingPart():
            return replace(part, content=whole(part.content))
        case ToolCallPart():
            return replace(part, args=whole_in(part.args))
        case _:
            return part


async def _run(journal: Journal, begun: Call, handler: WrapToolExecuteHandler, args: ValidatedToolArgs) -> Any:
    try:
        result = await handler(args)
    except ToolFailed as error:
        await journal.finish(replace(begun, state="failed", result=error.message.encode()))
        raise
    await journal.finish(replace(begun, state="completed", result=_dump(result)))
    return result


def _dump(result: Any) -> bytes:
    """A tool's result in the one form that keeps what it gave beside its value."""
    wrapped = cast("ToolReturn[Any]", result) if isinstance(result, ToolReturn) else ToolReturn[Any](result)
    return _RESULT.dump_json(wrapped, fallback=str, warnings=False)


def step_number(ctx: RunContext[Run]) -> int:
    """The step's place in the turn: a resumed run's first new request is behind all that is settled."""
    steps = ctx.deps.journal.steps
    return (steps[-1].number + 1 if steps else 0) + ctx.run_step - 1


def _recorded(call: Call) -> Any:
    """What the model is told of a call that is not run again."""
    match call.state:
        case "completed":
            return _RESULT.validate_json(call.result)
        case "failed":
            raise ToolFailed(call.result.decode())
        case "started":
            raise ToolFailed(UNKNOWN_OUTCOME)
