"""Hooks between the agent, its model and its tools: permissions, the journal, errors and measurements."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import RunContext
from pydantic_ai.capabilities import (
    AbstractCapability,
    RawToolArgs,
    ValidatedToolArgs,
    WrapModelRequestHandler,
    WrapToolExecuteHandler,
)
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset

from torana.agent.journal_hooks import add_steers, request_with_journal, run_with_journal
from torana.agent.permission_gate import PermissionGate
from torana.agent.prompt.tool_list import ToolList
from torana.agent.relayed_model import relaying
from torana.agent.run import Run
from torana.agent.tool_errors import (
    bound_argument_error,
    name_listed_tools_only,
    run_with_error_handling,
)
from torana.limits.prices import Prices
from torana.measurements import OTHER, Measurements
from torana.models.listing import listed
from torana.tools import ToolContext


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCalls:
    """Counts the durations of model requests and tool calls, and the usage of models.

    ``prices`` knows the configured names of the models.
    """

    measurements: Measurements
    prices: Prices

    async def request(self, asked: ModelRequestContext, *, handler: WrapModelRequestHandler) -> ModelResponse:
        """Send a model request. A failed request names no model: several may have been tried."""
        started = time.monotonic()
        try:
            response = await handler(asked)
        except BaseException:
            self.measurements.add("model", time.monotonic() - started, "", "failed")
            raise
        model = self.prices.configured_name(response.model_name or "") or OTHER
        self.measurements.add("model", time.monotonic() - started, model, "ok")
        usage = self.prices.usage([response])
        self.measurements.spent_by(model).add(
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost_usd=usage.cost_usd
        )
        return response

    async def run_tool(self, args: ValidatedToolArgs, *, tool: str, handler: WrapToolExecuteHandler) -> Any:
        with self.measurements.time("tool", tool):
            return await handler(args)


@dataclass
class Safeguards(AbstractCapability[Run]):
    """Checks the permission of each call, records the call in the journal, and runs it with error handling.

    This is a single capability to save time: for every event of a run, pydantic-ai calls each capability with a
    copy of the run's context.
    """

    permits: PermissionGate
    tools: AbstractToolset[ToolContext]
    tool_list: ToolList
    measured: MeasuredCalls

    def get_wrapper_toolset(self, toolset: AbstractToolset[Run]) -> AbstractToolset[Run]:
        """Replace the agent's own toolset, which is empty, with the gateway's tools.

        pydantic-ai would otherwise combine both toolsets, and query each in a task several times in a run.
        Other capabilities cannot add or prepare tools: this method drops their changes.
        """
        return cast("AbstractToolset[Run]", self.tools)

    async def before_model_request(
        self, ctx: RunContext[Run], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Hide denied and unopened tools from the model, and add the user's messages that arrived meanwhile."""
        asked = self.permits.hide_denied_tools(ctx, request_context)
        opened, parameters = ctx.deps.opened_tools, asked.model_request_parameters
        # The last response and the results of its calls.
        opened.open(self.tool_list.opened_in(asked.messages[-2:]))
        tools = self.tool_list.arrange(parameters.function_tools, opened)
        asked = replace(asked, model_request_parameters=replace(parameters, function_tools=tools))
        name_listed_tools_only(ctx, asked, [tool.name for tool in listed(tools)])
        await add_steers(ctx, asked)
        return asked

    async def wrap_model_request(
        self,
        ctx: RunContext[Run],
        *,
        request_context: ModelRequestContext,
        handler: WrapModelRequestHandler,
    ) -> ModelResponse:
        """Send the model request, and keep the response for the journal."""
        measured = partial(self.measured.request, handler=handler)
        with relaying(ctx):
            return await request_with_journal(ctx, request_context, measured)

    async def before_tool_validate(
        self, ctx: RunContext[Run], *, call: ToolCallPart, tool_def: ToolDefinition, args: RawToolArgs
    ) -> RawToolArgs:
        """Refuse a denied tool before its arguments are validated."""
        self.permits.refuse_denied_tool(ctx, call, tool_def)
        return args

    async def on_tool_validate_error(
        self,
        ctx: RunContext[Run],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: RawToolArgs,
        error: ValidationError | ModelRetry,
    ) -> ValidatedToolArgs:
        """Limit the length of the error that the model receives for invalid arguments."""
        raise bound_argument_error(error)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Run],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run a permitted tool once."""
        measured = partial(self.measured.run_tool, tool=tool_def.name, handler=handler)
        guarded = partial(run_with_error_handling, call=call, handler=measured)
        written = partial(run_with_journal, ctx=ctx, call=call, tool=tool_def, handler=guarded)
        return await self.permits.run_tool(args, ctx=ctx, call=call, tool=tool_def, handler=written)
