"""Turn every tool error into a result for the model, and limit the length of results."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import RunContext, ToolFailed
from pydantic_ai.capabilities import ValidatedToolArgs, WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelRetry, ToolFailedError, ToolRetryError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelRequest, ModelRequestPart, ToolCallPart, ToolReturn, ToolReturnPart
from pydantic_ai.models import ModelRequestContext

from torana.agent.run import Run
from torana.agent.text import repair_all_surrogates, repair_surrogates
from torana.tools import ToolError

#: Maximum characters of a result, to protect the model's context; the rest is cut off.
RESULT_LIMIT = 20_000

#: The maximum number of faults in arguments that an error lists. Each takes 10 µs on the event loop.
_FAULTS_LIMIT = 200

_log = logging.getLogger(__name__)


async def run_with_error_handling(
    args: ValidatedToolArgs, *, call: ToolCallPart, handler: WrapToolExecuteHandler
) -> Any:
    """Run a tool, and cut off a result that is too long.

    Raises ``ToolFailed``, whose text the model receives, for every failure: with the message of a
    ``ToolError``, but only with the type of an unexpected exception.
    """
    try:
        return _truncate_result(call, await handler(args))
    except ToolFailedError:
        raise
    except Exception as error:
        raise ToolFailed(_truncate(repair_surrogates(_describe_error(call, error)))) from error


def bound_argument_error(error: ValidationError | ModelRetry) -> ValidationError | ModelRetry:
    """Return the error for invalid arguments, with a shorter text if it is too long for the model.

    A ``ValidationError`` quotes the arguments.
    """
    if not isinstance(error, ValidationError):
        return ModelRetry(_truncate(error.message))
    if (count := error.error_count()) > _FAULTS_LIMIT:
        return ModelRetry(f"{count:,} values or names are invalid. Send only what the tool's schema names.")
    faults = error.errors(include_url=False, include_context=False)
    if sum(len(json.dumps(fault, default=str)) for fault in faults) <= RESULT_LIMIT:
        return error
    lines = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
    return ModelRetry(_truncate("\n".join(lines)))


def name_listed_tools_only(ctx: RunContext[Run], asked: ModelRequestContext, names: Sequence[str]) -> None:
    """Let errors about unknown tools in the request name these tools; pydantic-ai names denied tools, too."""
    last = asked.messages[-1]
    if not isinstance(last, ModelRequest):
        return
    parts = [_name_tools(part, names) for part in last.parts]
    if parts != list(last.parts):
        asked.messages[-1] = ctx.messages[-1] = replace(last, parts=parts)


def _name_tools(part: ModelRequestPart, names: Sequence[str]) -> ModelRequestPart:
    if not isinstance(part, ToolReturnPart) or part.retry is None or part.retry.cause != "unknown_tool":
        return part
    listed = ", ".join(map(repr, names)) or "none"
    return replace(part, content=f"Unknown tool name: {part.tool_name!r}. Available tools: {listed}")


def _describe_error(call: ToolCallPart, error: Exception) -> str:
    """Return the text that the model receives for an exception.

    pydantic-ai wraps a ``ModelRetry``, and converts a time-out to one. The second ``ModelRetry`` of a tool
    would end the run. Instead, the model decides whether it tries again, within the turn's limit of calls.
    """
    wrapped = isinstance(error, ToolRetryError | UnexpectedModelBehavior)
    cause = error.__cause__ if wrapped else error
    if isinstance(cause, ToolError | ToolFailed | ModelRetry):
        return str(cause)
    _log.error("tool_failed", extra={"tool": call.tool_name}, exc_info=error)
    return f"The tool {call.tool_name} failed with {type(error).__name__}; the log has the details."


def _truncate_result(call: ToolCallPart, result: Any) -> Any:
    """Return the result, or its text cut off if it is too long. Raises serialization errors."""
    if isinstance(result, ToolReturn):
        wrapped = cast("ToolReturn[Any]", result)
        return replace(
            wrapped,
            return_value=_truncate_result(call, wrapped.return_value),
            content=repair_all_surrogates(wrapped.content),
            metadata=repair_all_surrogates(wrapped.metadata),
        )
    result = repair_all_surrogates(result)
    part = ToolReturnPart(tool_name=call.tool_name, content=result, tool_call_id=call.tool_call_id)
    text = part.model_response_str()
    return result if len(text) <= RESULT_LIMIT else _truncate(text)


def _truncate(text: str) -> str:
    if len(text) <= RESULT_LIMIT:
        return text
    return f"{text[:RESULT_LIMIT]}\n… (cut: {len(text) - RESULT_LIMIT} more characters)"
