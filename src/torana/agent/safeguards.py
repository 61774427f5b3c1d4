"""What stands between the agent, its model and its tools: permissions, the journal, and a guard."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import (
    AbstractCapability,
    ValidatedToolArgs,
    WrapModelRequestHandler,
    WrapToolExecuteHandler,
)
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition

from torana.agent.guard import run_guarded
from torana.agent.journal import Journaled, Run, settled_messages
from torana.agent.permits import Permits


@dataclass
class Safeguards(AbstractCapability[Run]):
    """A call is permitted first, then written down, then run where nothing that it does ends the turn.

    They are one capability because each one costs: pydantic-ai goes through all of them with every event of a
    run, and copies the run's context for each.
    """

    permits: Permits
    journaled: Journaled = field(default_factory=Journaled, init=False)

    async def for_run(self, ctx: RunContext[Run]) -> AbstractCapability[Run]:
        """One of its own for each run, which knows what earlier attempts did."""
        return Safeguards(Permits(rules=self.permits.rules, settled=settled_messages(ctx.deps.journal)))

    async def before_model_request(
        self, ctx: RunContext[Run], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Show the model what it may reach, and what the user added while the turn ran."""
        asked = self.permits.shown(ctx, request_context)
        await self.journaled.steered(ctx, asked)
        return asked

    async def wrap_model_request(
        self,
        ctx: RunContext[Run],
        *,
        request_context: ModelRequestContext,
        handler: WrapModelRequestHandler,
    ) -> ModelResponse:
        """Ask the model, and keep what it says for the journal."""
        return await self.journaled.ask(ctx, request_context, handler)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Run],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run a tool that may be run, once."""
        guarded = partial(run_guarded, call=call, handler=handler)
        written = partial(self.journaled.run_tool, ctx=ctx, call=call, tool=tool_def, handler=guarded)
        return await self.permits.run_tool(args, ctx=ctx, call=call, tool=tool_def, handler=written)
