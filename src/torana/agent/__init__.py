"""One turn of the agent: context -> model <-> tools -> events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

import pydantic_ai
from pydantic_ai import RunUsage, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset

from torana.agent.context import Contexts
from torana.agent.journal import Journal, responses_of, settled_messages
from torana.agent.opened import OpenedSkills
from torana.agent.permits import Permits
from torana.agent.request_size import FixedTokens, RequestMeter
from torana.agent.run import Run
from torana.agent.safeguards import Safeguards
from torana.agent.texts import text_of
from torana.agent.watch import Emit, Watch
from torana.errors import TurnLimit
from torana.limits.prices import Prices
from torana.messages import Turn
from torana.models.failures import MODEL_ERRORS, explain
from torana.sessions import history
from torana.tools import ToolContext
from torana.tools.permission import Rules

__all__ = ["Answer", "Bounds", "Emit", "TurnAgent"]

#: Calls with arguments that do not fit, or of a tool that does not exist, in a row; one more ends the turn.
_WRONG_CALLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one turn may take at most; ``tokens`` 0 is no bound.

    ``output_tokens`` is what the model may say in one call; None leaves it to the provider.
    """

    model_calls: int = 50
    tool_calls: int = 100
    tokens: int = 0
    output_tokens: int | None = None

    @property
    def limits(self) -> UsageLimits:
        """The same, as pydantic-ai holds a run to it."""
        return UsageLimits(
            request_limit=self.model_calls,
            tool_calls_limit=self.tool_calls,
            total_tokens_limit=self.tokens or None,
        )

    def passed(self, used: RunUsage) -> TurnLimit:
        """What is said of a turn that came to one of them."""
        if self.tokens and used.total_tokens > self.tokens:
            what = f"took more than {self.tokens} tokens (TORANA_TURN_TOKENS)"
        elif used.requests >= self.model_calls:
            what = f"would have asked the model more than {self.model_calls} times (TORANA_TURN_MODEL_CALLS)"
        else:
            what = f"would have called more than {self.tool_calls} tools (TORANA_TURN_TOOL_CALLS)"
        return TurnLimit(f"The turn {what}, and was stopped.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a run made: the reply, the model that gave it, and its messages as the history keeps them."""

    reply: str
    model: str
    history: tuple[bytes, int]


class TurnAgent:
    """The agent behind the gateway. It writes nothing: what a turn made is recorded by whoever ran it."""

    def __init__(
        self,
        *,
        model: Model,
        toolset: AbstractToolset[ToolContext],
        contexts: Contexts,
        timezone: ZoneInfo,
        bounds: Bounds,
        clock: Callable[[], datetime],
        prices: Prices,
        rules: Rules,
        fixed_tokens: FixedTokens | None = None,
    ) -> None:
        """``fixed_tokens`` measures requests where tokens or money are limited."""
        self._model = model
        self._agent = pydantic_ai.Agent(
            model,
            name="torana",
            deps_type=Run,
            capabilities=[Safeguards(Permits(rules=rules), toolset)],
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
        """Answer one turn, telling what happens while it does, behind what its journal says is settled.

        The settled text and the deltas emitted, put together, are the reply. Raises ``ModelFailed`` when no
        model answered and ``TurnLimit`` when the turn, with what is settled, went round too often.
        """
        settled = settled_messages(journal)
        context = await self._contexts.of(turn, settled)
        watch = Watch(emit, said=text_of(settled))
        run = Run(
            turn=turn,
            may_recall=context.may_recall,
            timezone=self._timezone,
            clock=self._clock,
            journal=journal,
            prompt=self._contexts.prompts.of,
            opened=OpenedSkills(settled),
            meter=RequestMeter(self._fixed_tokens) if self._fixed_tokens else None,
        )
        run.exchange.add_call_ids(settled)
        used = _used(settled)
        try:
            result = await self._agent.run(
                context.prompt,
                deps=run,
                message_history=context.messages,
                instructions=context.instructions,
                usage=used,
                usage_limits=self._limits,
                event_stream_handler=watch.follow,
            )
        except UsageLimitExceeded as error:
            run.exchange.cut_short(used, model=self._model.model_name)
            raise self._bounds.passed(used) from error
        except MODEL_ERRORS as error:
            raise explain(error) from error
        finally:
            await run.exchange.stop_asking()
            owed = self._prices.usage(run.exchange.unsettled)
            journal.leave(owed=owed, asking=run.exchange.is_open)
        messages = [*settled, *result.new_messages()]
        return Answer(
            reply=watch.text,
            model=_model_name(responses_of(messages)),
            history=history.dump(messages, speaker=turn.user),
        )


def _used(settled: Sequence[ModelMessage]) -> RunUsage:
    """What earlier attempts of a turn used of its bounds."""
    used = RunUsage()
    for message in settled:
        if isinstance(message, ModelResponse):
            used.requests += 1
            used.incr(message.usage)
        else:
            used.tool_calls += sum(isinstance(part, ToolReturnPart) for part in message.parts)
    return used


def _model_name(responses: Sequence[ModelResponse]) -> str:
    return next((r.model_name for r in reversed(responses) if r.model_name), "unknown")
