"""Nothing runs that may not: tools are hidden, refused, or wait for somebody's yes."""

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

from torana.agent.approval import Question, with_changed
from torana.agent.opened import slug_in
from torana.agent.run import Run, step_number
from torana.agent.texts import whole
from torana.errors import FieldFault, InvalidField
from torana.tools.permission import RUNS_SKILL, Calling, Rules, promised_by

_log = logging.getLogger(__name__)


class Permits:
    """Holds every call of a run against the rules, before the journal hears of it.

    A denied tool is not shown to the model, and refused where it is called all the same. What an earlier
    attempt has run is not asked about again: the journal gives its result.
    """

    def __init__(self, *, rules: Rules) -> None:
        self._rules = rules

    def shown(self, ctx: RunContext[Run], asked: ModelRequestContext) -> ModelRequestContext:
        """Show the model only what it may reach.

        The tools stay known to the run: a call of one that was allowed when it ran still gives its result.
        """
        ctx.deps.opened.begin_request()
        parameters = asked.model_request_parameters
        tools = [
            tool
            for tool in parameters.function_tools
            if not self._rules.is_out_of_reach(self._calling(ctx, tool, {}))
        ]
        return replace(asked, model_request_parameters=replace(parameters, function_tools=tools))

    async def run_tool(
        self,
        args: ValidatedToolArgs,
        *,
        ctx: RunContext[Run],
        call: ToolCallPart,
        tool: ToolDefinition,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run what is allowed or approved; the model is told of everything else that it was not run."""
        known = ctx.deps.journal.call(step_number(ctx), call.tool_call_id)
        edited: Mapping[str, Any] | None = None
        if known is None or known.runs_again:
            verdict = self._rules.verdict(self._calling(ctx, tool, args))
            if verdict.permission == "deny":
                raise _refused(call, f"it is denied here ({verdict.why})")
            if verdict.permission == "ask":
                edited = await self._approved(ctx, call, tool)
        ran = args if edited is None else dict(edited)
        result = await handler(ran)
        ctx.deps.opened.note(call.tool_name, ran)
        return result if edited is None else with_changed(result, edited)

    async def _approved(
        self, ctx: RunContext[Run], call: ToolCallPart, tool: ToolDefinition
    ) -> Mapping[str, Any] | None:
        """Wait until somebody has approved a call; returns the arguments that they gave it, if others.

        Those come under the rules as the model's do.
        """

        async def check(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
            checked = await _checked(ctx, call, arguments)
            verdict = self._rules.verdict(self._calling(ctx, tool, checked))
            if verdict.permission == "deny":
                why = f"with these {tool.name} is denied here ({verdict.why})"
                raise InvalidField(why, faults=[FieldFault("/arguments", why)])
            return checked

        question = Question(
            step=step_number(ctx),
            call_id=call.tool_call_id,
            tool=call.tool_name,
            arguments=_plain(call),
            check=check,
        )
        decision = await ctx.deps.journal.ask(question, ctx.deps.exchange.take_pending())
        if not decision.approved:
            raise _refused(call, decision.reason)
        if decision.arguments is None:
            return None
        try:
            return await check(decision.arguments)
        except InvalidField as error:  # the tool, or a rule, is another one by now
            raise _refused(
                call, f"the arguments that were approved do not fit any more: {error.detail}"
            ) from error

    def _calling(self, ctx: RunContext[Run], tool: ToolDefinition, args: Mapping[str, Any]) -> Calling:
        turn = ctx.deps.turn
        return Calling(
            tool=tool.name,
            promised=promised_by(tool.metadata),
            user=turn.user,
            token=turn.token,
            skills=slug_in(args) if tool.name == RUNS_SKILL else ctx.deps.opened.counted,
        )


async def _checked(ctx: RunContext[Run], call: ToolCallPart, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the tool takes them, read as the model's are. Raises ``InvalidField``."""
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


def _plain(call: ToolCallPart) -> dict[str, Any]:
    """The call's arguments as any JSON can hold them: without halves of characters and without infinities."""
    text = whole(json.dumps(call.args_as_dict(), ensure_ascii=False))
    return json.loads(text, parse_constant=str)


def _refused(call: ToolCallPart, why: str) -> ToolFailed:
    _log.info("a tool was not run", extra={"tool": call.tool_name, "reason": why})
    return ToolFailed(
        f"{call.tool_name} was not run: {why}. Do not try to reach the same in another way; tell the user."
    )
