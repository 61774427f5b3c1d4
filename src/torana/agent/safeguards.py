"""What stands between the agent, its model and its tools: permissions, the journal, and a guard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

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
from pydantic_ai.toolsets import AbstractToolset

from torana.agent.guard import run_guarded
from torana.agent.journaled import add_steers, ask_journaled, run_journaled
from torana.agent.permits import Permits
from torana.agent.run import Run
from torana.tools import ToolContext


@dataclass
class Safeguards(AbstractCapability[Run]):
    """A call is permitted first, then written down, then run where nothing that it does ends the turn.

    They are one capability because each one costs: pydantic-ai goes through all of them with every event of a
    run, and copies the run's context for each.
    """

    permits: Permits
    tools: AbstractToolset[ToolContext]

    def get_wrapper_toolset(self, toolset: AbstractToolset[Run]) -> AbstractToolset[Run]:
        """The gateway's tools in the place of what the agent has: they are not given to it otherwise.

        pydantic-ai combines an agent's toolsets with one for functions of its own, of which ours has none, and
        asks each in a task, several times in every run. Nothing else may add tools to this agent or prepare
        them: that would be lost here.
        """
        return cast("AbstractToolset[Run]", self.tools)

    async def before_model_request(
        self, ctx: RunContext[Run], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Show the model what it may reach, and what the user added while the turn ran."""
        asked = self.permits.shown(ctx, request_context)
        await add_steers(ctx, asked)
        return asked

    async def wrap_model_request(
        self,
        ctx: RunContext[Run],
        *,
        request_context: ModelRequestContext,
        handler: WrapModelRequestHandler,
    ) -> ModelResponse:
        """Ask the model, and keep what it says for the journal."""
        return await ask_journaled(ctx, request_context, handler)

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
        written = partial(run_journaled, ctx=ctx, call=call, tool=tool_def, handler=guarded)
        return await self.permits.run_tool(args, ctx=ctx, call=call, tool=tool_def, handler=written)
