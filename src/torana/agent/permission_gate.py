"""Enforce permissions: tools are hidden, refused, or wait for approval."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_ai import RunContext, ToolFailed
from pydantic_ai.capabilities import ValidatedToolArgs, WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition

from torana.agent.approval import Question, with_changed_arguments
from torana.agent.opened_skills import slug_in
from torana.agent.run import Run, step_number
from torana.agent.text import arguments_of
from torana.errors import FieldFault, InvalidField
from torana.permissions import RUNS_SKILL, Calling, Rules, promised_by

_log = logging.getLogger(__name__)


class PermissionGate:
    """Checks every call of a run against the rules, before it is journaled.

    A denied tool is hidden from the model, and refused if it is called anyway. A call that an earlier attempt
    ran is not checked again: the journal returns its result.
    """

    def __init__(self, *, rules: Rules) -> None:
        self._rules = rules

    def hide_denied_tools(self, ctx: RunContext[Run], asked: ModelRequestContext) -> ModelRequestContext:
        """Return the request with only the tools that the rules may allow.

        The run still knows all tools, so that a recorded call of a tool that is now denied returns its result.
        """
        ctx.deps.opened.begin_request()
        parameters = asked.model_request_parameters
        tools = [
            tool
            for tool in parameters.function_tools
            if not self._rules.is_always_denied(self._calling(ctx, tool, {}))
        ]
        return replace(asked, model_request_parameters=replace(parameters, function_tools=tools))

    def refuse_denied_tool(self, ctx: RunContext[Run], call: ToolCallPart, tool: ToolDefinition) -> None:
        """Raise ``ToolFailed`` for a tool that is denied for all arguments, before they are validated.

        An error about invalid arguments would describe a tool that is hidden from the model.
        """
        known = ctx.deps.journal.call(step_number(ctx), call.tool_call_id)
        calling = self._calling(ctx, tool, {})
        if (known is None or known.runs_again) and self._rules.is_always_denied(calling):
            raise _tool_denied(call, f"it is denied ({self._rules.verdict(calling).why})")

    async def run_tool(
        self,
        args: ValidatedToolArgs,
        *,
        ctx: RunContext[Run],
        call: ToolCallPart,
        tool: ToolDefinition,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run an allowed or approved call. Raises ``ToolFailed`` for any other."""
        known = ctx.deps.journal.call(step_number(ctx), call.tool_call_id)
        edited: Mapping[str, Any] | None = None
        if known is None or known.runs_again:
            verdict = self._rules.verdict(self._calling(ctx, tool, args))
            if verdict.permission == "deny":
                raise _tool_denied(call, f"it is denied ({verdict.why})")
            if verdict.permission == "ask":
                edited = await self._wait_for_approval(ctx, call, tool)
        ran = args if edited is None else dict(edited)
        result = await handler(ran)
        ctx.deps.opened.note(call.tool_name, ran)
        return result if edited is None else with_changed_arguments(result, edited)

    async def _wait_for_approval(
        self, ctx: RunContext[Run], call: ToolCallPart, tool: ToolDefinition
    ) -> Mapping[str, Any] | None:
        """Wait for the approval of a call; return the replacing arguments, if there are any.

        The rules apply to the replacing arguments too.
        """

        async def check(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
            checked = await _validate_arguments(ctx, call, arguments)
            verdict = self._rules.verdict(self._calling(ctx, tool, checked))
            if verdict.permission == "deny":
                why = f"{tool.name} is denied with these arguments ({verdict.why})"
                raise InvalidField(why, faults=[FieldFault("/arguments", why)])
            return checked

        question = Question(
            step=step_number(ctx),
            call_id=call.tool_call_id,
            tool=call.tool_name,
            arguments=arguments_of(call),
            check=check,
        )
        decision = await ctx.deps.journal.ask(question, ctx.deps.exchange.take_pending())
        if not decision.approved:
            raise _tool_denied(call, decision.reason)
        if decision.arguments is None:
            return None
        try:
            return await check(decision.arguments)
        except InvalidField as error:  # the tool or a rule has changed
            raise _tool_denied(call, f"the approved arguments are no longer valid: {error.detail}") from error

    def _calling(self, ctx: RunContext[Run], tool: ToolDefinition, args: Mapping[str, Any]) -> Calling:
        turn = ctx.deps.turn
        return Calling(
            tool=tool.name,
            promised=promised_by(tool.metadata),
            user=turn.user,
            token=turn.token,
            skills=slug_in(args) if tool.name == RUNS_SKILL else ctx.deps.opened.counted,
        )


async def _validate_arguments(
    ctx: RunContext[Run], call: ToolCallPart, arguments: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the arguments validated like the model's. Raises ``InvalidField``."""
    manager = ctx.tool_manager
    assert manager is not None  # noqa: S101 - a tool is being called
    edited = replace(call, args=json.dumps(arguments, default=str))
    try:
        validated = await manager.validate_tool_call(edited, wrap_validation_errors=False)
    except ValidationError as error:
        faults = [
            FieldFault("/".join(["/arguments", *map(str, fault["loc"])]), fault["msg"])
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidField(
            "; ".join(f"{one.pointer}: {one.detail}" for one in faults), faults=faults
        ) from error
    except (ModelRetry, ToolFailed) as error:
        raise InvalidField(error.message, faults=[FieldFault("/arguments", error.message)]) from error
    return validated.validated_args or {}


def _tool_denied(call: ToolCallPart, why: str) -> ToolFailed:
    _log.info("tool_call_refused", extra={"tool": call.tool_name, "reason": why})
    return ToolFailed(
        f"{call.tool_name} was not run: {why}. Do not try to achieve the same in another way; tell the user."
    )
