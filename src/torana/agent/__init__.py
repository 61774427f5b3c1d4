"""One turn of the agent: context -> model <-> tools -> events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

import pydantic_ai
from pydantic_ai import AgentRunResult, CallToolsNode, RunUsage, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_graph import End

from torana.agent.event_relay import Emit, Watch
from torana.agent.journal import Journal, responses_of, settled_messages
from torana.agent.opened_skills import OpenedSkills
from torana.agent.prompt.context import Context, Contexts, without_note
from torana.agent.relayed_model import RelayedModel
from torana.agent.request_size import FixedTokens, RequestMeter
from torana.agent.run import Run
from torana.errors import ModelResponseTooLarge, TurnLimit
from torana.limits.prices import Prices
from torana.messages import Turn
from torana.models.failures import MODEL_ERRORS, explain, release
from torana.models.response_bounds import RESPONSE_BYTES
from torana.sessions import history
from torana.store.engine.database import retry_until_available

__all__ = ["Answer", "Bounds", "Emit", "TurnAgent"]

#: Consecutive calls of unknown tools or with invalid arguments; one more ends the turn.
_WRONG_CALLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on the work of one turn; ``tokens`` 0 means no limit.

    ``output_tokens`` limits one model response; None leaves the limit to the provider. ``reply_bytes`` limits
    the text of all responses. Their thinking and tool calls may have four times as many bytes.
    """

    model_calls: int = 50
    tool_calls: int = 100
    tokens: int = 0
    output_tokens: int | None = None
    reply_bytes: int = RESPONSE_BYTES

    @property
    def limits(self) -> UsageLimits:
        return UsageLimits(
            request_limit=self.model_calls,
            tool_calls_limit=self.tool_calls,
            total_tokens_limit=self.tokens or None,
        )

    def exceeded_limit(self, used: RunUsage) -> TurnLimit:
        """Return the error for a turn that reached one of the limits."""
        if self.tokens and used.total_tokens > self.tokens:
            what = f"used more than {self.tokens} tokens (TORANA_TURN_TOKENS)"
        elif used.requests >= self.model_calls:
            what = f"needed more than {self.model_calls} model calls (TORANA_TURN_MODEL_CALLS)"
        else:
            what = f"needed more than {self.tool_calls} tool calls (TORANA_TURN_TOOL_CALLS)"
        return TurnLimit(f"The turn {what}, and was stopped.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a run: the reply, the model that gave it, and the messages for the history.

    ``opened_tools`` are all tools that the session has opened; None if the turn opened none.
    """

    reply: str
    model: str
    history: tuple[bytes, int]
    opened_tools: tuple[str, ...] | None = None


class TurnAgent:
    """Runs the agent. It stores nothing: the caller stores the results."""

    def __init__(
        self,
        *,
        model: Model,
        capabilities: Sequence[AbstractCapability[Run]],
        contexts: Contexts,
        timezone: ZoneInfo,
        bounds: Bounds,
        clock: Callable[[], datetime],
        prices: Prices,
        fixed_tokens: FixedTokens | None = None,
    ) -> None:
        """``capabilities`` contain ``Safeguards``. ``fixed_tokens`` measures requests; it is set if tokens or
        money are limited.
        """
        self._model = model
        self._agent = pydantic_ai.Agent(
            RelayedModel(model),
            name="torana",
            deps_type=Run,
            capabilities=capabilities,
            retries={"tools": _WRONG_CALLS},
            model_settings=ModelSettings(max_tokens=bounds.output_tokens) if bounds.output_tokens else None,
        )
        self._contexts = contexts
        self._timezone = timezone
        self._prices = prices
        self._clock = clock
        self._bounds, self._limits = bounds, bounds.limits
        self._fixed_tokens = fixed_tokens

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        """Answer one turn, continuing after the steps that the journal has settled.

        The settled text followed by the emitted deltas is the reply. Raises ``ModelFailed`` if no model
        answered, ``TurnLimit`` if the turn, including its settled steps, reached a limit, and
        ``ModelResponseTooLarge`` if its text, or its thinking and tool calls, are too long.
        """
        settled = settled_messages(journal)
        # The turn was accepted, so an unreachable database does not fail it: it waits.
        context = await retry_until_available(partial(self._contexts.of, turn, settled), pause=asyncio.sleep)
        watch = Watch(emit, settled=settled, max_bytes=self._bounds.reply_bytes)
        run = Run(
            turn=turn,
            may_recall=context.may_recall,
            timezone=self._timezone,
            clock=self._clock,
            journal=journal,
            watch=watch,
            prompt=self._contexts.prompts.of,
            opened=OpenedSkills(settled),
            opened_tools=context.opened_tools,
            meter=RequestMeter(self._fixed_tokens) if self._fixed_tokens else None,
        )
        run.exchange.add_call_ids(settled)
        used = _usage_of(settled)
        try:
            result = await self._run_or_fail(context, run, used)
        except UsageLimitExceeded as error:
            run.exchange.cut_short(used, model=self._model.model_name)
            raise self._bounds.exceeded_limit(used) from error
        finally:
            owed = self._prices.usage(run.exchange.unsettled_responses)
            journal.leave(owed=owed, asking=run.exchange.is_open, unsaid=watch.unsaid)
        messages = [*settled, *result.new_messages()]
        return Answer(
            reply=watch.text,
            model=next(filter(None, (one.model_name for one in reversed(responses_of(messages)))), "unknown"),
            history=history.dump(without_note(messages, turn.content), speaker=turn.user),
            opened_tools=run.opened_tools.to_store,
        )

    async def _run_or_fail(self, context: Context, run: Run, used: RunUsage) -> AgentRunResult[str]:
        """Run the agent, and free the response of a failed request. Raises ``ModelFailed``."""
        try:
            return await self._run(context, run, used)
        except ModelResponseTooLarge as error:
            release(error)
            raise
        except MODEL_ERRORS as error:
            failure = explain(error)
            release(error)
        raise failure  # here it does not refer to the error, which contains the response

    async def _run(self, context: Context, run: Run, used: RunUsage) -> AgentRunResult[str]:
        async with self._agent.iter(
            context.prompt,
            deps=run,
            conversation_id=run.turn.session_id,
            message_history=context.messages,
            instructions=context.instructions,
            usage=used,
            usage_limits=self._limits,
        ) as running:
            node = running.next_node
            while not isinstance(node, End):
                if isinstance(node, CallToolsNode) and node.model_response.tool_calls:
                    async with node.stream(running.ctx) as events:
                        async for event in events:
                            run.watch.handle(event)
                node = await running.next(node)
        assert running.result is not None  # noqa: S101 - the run has ended
        return running.result


def _usage_of(settled: Sequence[ModelMessage]) -> RunUsage:
    """Return the usage that earlier attempts of a turn count against its limits."""
    used = RunUsage()
    for message in settled:
        if isinstance(message, ModelResponse):
            used.requests += 1
            used.incr(message.usage)
        else:
            used.tool_calls += sum(isinstance(part, ToolReturnPart) for part in message.parts)
    return used
