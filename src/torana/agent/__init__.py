"""One turn of the agent: context -> model <-> tools -> events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from zoneinfo import ZoneInfo

import pydantic_ai
from pydantic_ai import UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset

from torana.agent.files import Prompts
from torana.agent.instructions import Instructions, Knowledge
from torana.agent.journal import Journal, Run, responses_of, settled_messages
from torana.agent.overview import Toolbox
from torana.agent.permits import Permits
from torana.agent.safeguards import Safeguards
from torana.agent.watch import Emit, Watch, text_of
from torana.errors import TurnLimit
from torana.limits.prices import Prices
from torana.memory import Memory
from torana.messages import FileKind, Reply, Turn
from torana.models.failures import MODEL_ERRORS, explain
from torana.sessions import Sessions, history
from torana.tools import ToolContext
from torana.tools.permission import Rules

__all__ = ["Answer", "Bounds", "Emit", "TurnAgent"]

#: Memories put in front of the model, at most.
_RECALLED = 8

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
        bounds: Bounds,
        clock: Callable[[], datetime],
        prices: Prices | None = None,
        takes: frozenset[FileKind] = frozenset(),
        rules: Rules | None = None,
    ) -> None:
        """``takes`` are the kinds of files that the model can be handed."""
        rules = rules or Rules()
        self.toolbox = Toolbox(toolset=toolset, model=model, rules=rules)
        self._agent = pydantic_ai.Agent(
            model,
            name="torana",
            deps_type=Run,
            toolsets=[toolset],
            capabilities=[Safeguards(Permits(rules=rules))],
            retries={"tools": _WRONG_CALLS},
            model_settings=ModelSettings(max_tokens=bounds.output_tokens) if bounds.output_tokens else None,
        )
        self._instructions = instructions
        self._sessions = sessions
        self._prompts = Prompts(sessions=sessions, takes=takes)
        self._memory = memory
        self._timezone = timezone
        self._recall_in_rooms = recall_in_rooms
        self._prices = prices or Prices()
        self._clock = clock
        self._limits = UsageLimits(
            request_limit=bounds.model_calls,
            tool_calls_limit=bounds.tool_calls,
            total_tokens_limit=bounds.tokens or None,
        )

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        """Answer one turn, telling what happens while it does, behind what its journal says is settled.

        The settled text and the deltas emitted, put together, are the reply. Raises ``ModelFailed`` when no
        model answered and ``TurnLimit`` when the turn went round too often.
        """
        window = await self._sessions.window(turn)
        may_recall = self._recall_in_rooms or not window.shared
        memories = await self._recalled(turn) if may_recall else []
        knowledge = Knowledge(shared=window.shared, memories=memories, before=window.before)
        settled = settled_messages(journal)
        watch = Watch(emit, said=text_of(settled))
        run = Run(
            turn=turn,
            may_recall=may_recall,
            timezone=self._timezone,
            clock=self._clock,
            journal=journal,
            prompt=self._prompts.of,
        )
        try:
            result = await self._agent.run(
                None if settled else await self._prompts.of(turn),
                deps=run,
                message_history=[*window.messages, *await self._prompts.restored(settled, turn.owner)],
                instructions=self._instructions.render(turn, knowledge, now=self._clock()),
                usage_limits=self._limits,
                event_stream_handler=watch.follow,
            )
        except UsageLimitExceeded as error:
            raise TurnLimit(f"The turn was stopped: {error}") from error
        except MODEL_ERRORS as error:
            raise explain(error) from error
        finally:
            await run.stop_asking()
        messages = [*settled, *result.new_messages()]
        responses = responses_of(messages)
        used = self._prices.usage(_unsettled(responses))
        return Answer(
            reply=Reply(text=watch.text, model=_model_name(responses), usage=used),
            history=history.dump(messages, speaker=turn.user),
        )

    async def _recalled(self, turn: Turn) -> list[str]:
        if turn.user is None:
            return []
        found = await self._memory.recall(turn.user, turn.content, limit=_RECALLED)
        return [item.memory.text for item in found]


def _unsettled(responses: Sequence[ModelResponse]) -> list[ModelResponse]:
    """Those that are in no step: a step ends with a response that calls tools."""
    return list(takewhile(lambda response: not response.tool_calls, reversed(responses)))


def _model_name(responses: Sequence[ModelResponse]) -> str:
    return next((r.model_name for r in reversed(responses) if r.model_name), "unknown")
