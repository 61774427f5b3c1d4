"""One turn of the agent: context -> model <-> tools -> events."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import pydantic_ai
from pydantic_ai import RunContext, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset

from torana.agent.guard import ToolGuard
from torana.agent.instructions import Instructions, Knowledge
from torana.errors import TurnLimit
from torana.memory import Memory
from torana.messages import EventType, Reply, Turn, Usage
from torana.models.failures import MODEL_ERRORS, explain
from torana.sessions import Sessions, history
from torana.tools import ToolContext

#: Memories put in front of the model, at most.
_RECALLED = 8

#: Calls with arguments that do not fit, or of a tool that does not exist, in a row; one more ends the turn.
_WRONG_CALLS = 3


class Emit(Protocol):
    """Takes what happens in a turn, in order, at once."""

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None:
        """Take one event."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a run made: the reply, and its messages as the history keeps them."""

    reply: Reply
    history: tuple[bytes, int]


class TurnAgent:
    """The agent behind the gateway. It writes nothing: what a turn made is recorded by whoever ran it."""

    def __init__(
        self,
        *,
        model: Model,
        toolset: AbstractToolset[ToolContext],
        instructions: Instructions,
        sessions: Sessions,
        memory: Memory,
        timezone: ZoneInfo,
        recall_in_rooms: bool,
        clock: Callable[[], datetime],
    ) -> None:
        self._agent = pydantic_ai.Agent(
            model,
            name="torana",
            deps_type=ToolContext,
            toolsets=[toolset],
            capabilities=[ToolGuard()],
            retries={"tools": _WRONG_CALLS},
        )
        self._instructions = instructions
        self._sessions = sessions
        self._memory = memory
        self._timezone = timezone
        self._recall_in_rooms = recall_in_rooms
        self._clock = clock

    async def run(self, turn: Turn, emit: Emit) -> Answer:
        """Answer one turn, telling what happens while it does.

        The deltas emitted, put together, are the reply's text. Raises ``ModelFailed`` when no model answered
        and ``TurnLimit`` when the turn went round too often.
        """
        shared = await self._sessions.is_shared(turn)
        window = await self._sessions.window(turn, name_speakers=shared)
        may_recall = self._recall_in_rooms or not shared
        memories = await self._recalled(turn) if may_recall else []
        knowledge = Knowledge(shared=shared, memories=memories)
        text = _Text(emit)
        try:
            result = await self._agent.run(
                turn.content,
                deps=ToolContext(turn=turn, may_recall=may_recall, timezone=self._timezone, clock=self._clock),
                message_history=window,
                instructions=self._instructions.render(turn, knowledge, now=self._clock()),
                usage_limits=UsageLimits(request_limit=50, tool_calls_limit=100),
                event_stream_handler=text.follow,
            )
        except UsageLimitExceeded as error:
            raise TurnLimit(str(error)) from error
        except MODEL_ERRORS as error:
            raise explain(error) from error
        messages = result.new_messages()
        return Answer(
            reply=Reply(text=text.whole, model=_model_name(messages), usage=_usage(messages)),
            history=history.dump(messages, speaker=turn.user),
        )

    async def _recalled(self, turn: Turn) -> list[str]:
        if turn.user is None:
            return []
        found = await self._memory.recall(turn.owner, turn.user, turn.content, limit=_RECALLED)
        return [item.text for item in found]


class _Text:
    """Gathers the text of a run from its events and passes on what a watcher may see."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._pieces: list[str] = []
        #: What stands before the next text.
        self._gap = ""

    @property
    def whole(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    async def follow(self, _ctx: RunContext[ToolContext], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Handle the events of one step of the run."""
        async for event in events:
            self._handle(event)

    def _handle(self, event: AgentStreamEvent) -> None:
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                # Text after a tool call is a new paragraph of the same reply. Some models begin it empty.
                self._gap = "\n\n" if self._pieces else ""
                self._add(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                self._add(text)
            case FunctionToolCallEvent(part=call):
                self._emit("tool.started", {"callId": call.tool_call_id, "tool": call.tool_name})
            case FunctionToolResultEvent(part=part):
                outcome = getattr(part, "outcome", "failed")
                self._emit(
                    "tool.finished",
                    {"callId": part.tool_call_id, "tool": part.tool_name, "ok": outcome == "success"},
                )
            case _:
                pass

    def _add(self, text: str) -> None:
        if text:
            text, self._gap = self._gap + text, ""
            self._pieces.append(text)
            self._emit("message.delta", {"text": text})


def _responses(messages: Sequence[ModelMessage]) -> list[ModelResponse]:
    return [message for message in messages if isinstance(message, ModelResponse)]


def _model_name(messages: Sequence[ModelMessage]) -> str:
    return next((r.model_name for r in reversed(_responses(messages)) if r.model_name), "unknown")


def _usage(messages: Sequence[ModelMessage]) -> Usage:
    responses = _responses(messages)
    return Usage(
        input_tokens=sum(r.usage.input_tokens for r in responses),
        output_tokens=sum(r.usage.output_tokens for r in responses),
        cost_usd=sum(_cost(r) for r in responses),
    )


def _cost(response: ModelResponse) -> float:
    """The price of one response; 0 where it is not known, as for a model of one's own."""
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return 0.0
