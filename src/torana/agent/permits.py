"""Nothing runs that may not: tools are hidden, refused, or wait for somebody's yes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import RunContext, ToolFailed
from pydantic_ai.capabilities import ValidatedToolArgs, WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturn, ToolReturnPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition

from torana.agent.approval import Question
from torana.agent.journal import Run, step_number
from torana.agent.watch import whole
from torana.errors import FieldFault, InvalidField
from torana.tools.permission import OPENS_SKILL, RUNS_SKILL, SLUG, Calling, Rules, promised_by

_NOTE = "Whoever approved this call changed its arguments to these."

_log = logging.getLogger(__name__)


class Permits:
    """Holds every call of one run against the rules, before the journal hears of it.

    A denied tool is not shown to the model, and refused where it is called all the same. What an earlier
    attempt has run is not asked about again: the journal gives its result.
    """

    def __init__(self, *, rules: Rules, settled: Sequence[ModelMessage] = ()) -> None:
        """``settled`` is what earlier attempts settled: they may have opened skills."""
        self.rules = rules
        #: The skills that were opened in this turn, and those that count from the next request to the model
        #: on: so it makes no difference which of several calls of one response is the quickest.
        self._open = _opened_in(settled)
        self._opening: set[str] = set()

    def shown(self, ctx: RunContext[Run], asked: ModelRequestContext) -> ModelRequestContext:
        """Show the model only what it may reach.

        The tools stay known to the run: a call of one that was allowed when it ran still gives its result.
        """
        self._open |= self._opening
        parameters = asked.model_request_parameters
        tools = [
            tool
            for tool in parameters.function_tools
            if not self.rules.is_out_of_reach(self._calling(ctx, tool, {}))
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
            verdict = self.rules.verdict(self._calling(ctx, tool, args))
            if verdict.permission == "deny":
                raise _refused(call, f"it is denied here ({verdict.why})")
            if verdict.permission == "ask":
                edited = await self._approved(ctx, call, tool)
        ran = args if edited is None else dict(edited)
        result = await handler(ran)
        if call.tool_name in OPENS_SKILL:
            self._opening |= _slug(ran)
        return result if edited is None else _with_note(result, edited)

    async def _approved(
        self, ctx: RunContext[Run], call: ToolCallPart, tool: ToolDefinition
    ) -> Mapping[str, Any] | None:
        """Wait until somebody has approved a call; returns the arguments that they gave it, if others.

        Those come under the rules as the model's do.
        """

        async def check(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
            checked = await _checked(ctx, call, arguments)
            verdict = self.rules.verdict(self._calling(ctx, tool, checked))
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
            skills=_slug(args) if tool.name == RUNS_SKILL else self._open,
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


def _with_note(result: Any, arguments: Mapping[str, Any]) -> Any:
    """A result that tells the model with which arguments it was had."""
    if isinstance(result, ToolReturn):
        wrapped = cast("ToolReturn[Any]", result)
        return replace(wrapped, return_value=_with_note(wrapped.return_value, arguments))
    return {"note": _NOTE, "arguments": dict(arguments), "result": result}


def _refused(call: ToolCallPart, why: str) -> ToolFailed:
    _log.info("a tool was not run", extra={"tool": call.tool_name, "reason": why})
    return ToolFailed(
        f"{call.tool_name} was not run: {why}. Do not try to reach the same in another way; tell the user."
    )


def _slug(args: Mapping[str, Any]) -> set[str]:
    slug = args.get(SLUG)
    return {slug} if isinstance(slug, str) else set()


def _opened_in(messages: Sequence[ModelMessage]) -> set[str]:
    """The skills that calls in these messages opened, some perhaps with the arguments of whoever approved."""
    parts = [part for message in messages for part in message.parts]
    results: dict[str, Any] = {
        part.tool_call_id: part.content
        for part in parts
        if isinstance(part, ToolReturnPart) and part.tool_name in OPENS_SKILL and part.outcome == "success"
    }
    calls = (part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id in results)
    return {
        slug for call in calls for slug in _slug(_edited(results[call.tool_call_id]) or call.args_as_dict())
    }


def _edited(result: Any) -> Mapping[str, Any] | None:
    """The arguments of whoever approved the call, where its result says that it was had with them."""
    is_noted = isinstance(result, Mapping) and cast("Mapping[str, Any]", result).get("note") == _NOTE
    return cast("Mapping[str, Any]", result)["arguments"] if is_noted else None
