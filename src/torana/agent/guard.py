"""No tool ends a turn: what goes wrong in one is a result for the model, and what it returns is bounded."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast

from pydantic_ai import ToolFailed
from pydantic_ai.capabilities import ValidatedToolArgs, WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelRetry, ToolFailedError, ToolRetryError, UnexpectedModelBehavior
from pydantic_ai.messages import ToolCallPart, ToolReturn, ToolReturnPart

from torana.agent.texts import whole, whole_in
from torana.tools import ToolError

#: Longer results are cut, with a note that they were: a model's context is not a place for a whole file.
RESULT_LIMIT = 20_000

_log = logging.getLogger(__name__)


async def run_guarded(args: ValidatedToolArgs, *, call: ToolCallPart, handler: WrapToolExecuteHandler) -> Any:
    """Run a tool; what it returns is cut where it is too long.

    Raises ``ToolFailed``, which the model reads, for every failure: a ``ToolError`` is told as it is, any other
    exception only by its kind. As it is, an exception of an operator's tool would end the turn.
    """
    try:
        return _bounded(call, await handler(args))
    except ToolFailedError:
        raise
    except Exception as error:
        raise ToolFailed(_cut(whole(_told(call, error)))) from error


def _told(call: ToolCallPart, error: Exception) -> str:
    """What the model is told of an exception.

    A ``ModelRetry``, which is also what a time-out becomes, arrives wrapped, and a tool's second one as the end
    of the run: the model shall decide whether it tries again, within the turn's limit of calls.
    """
    wrapped = isinstance(error, ToolRetryError | UnexpectedModelBehavior)
    said = error.__cause__ if wrapped else error
    if isinstance(said, ToolError | ToolFailed | ModelRetry):
        return str(said)
    _log.error("a tool failed", extra={"tool": call.tool_name}, exc_info=error)
    return f"The tool {call.tool_name} failed with {type(error).__name__}; the log has the details."


def _bounded(call: ToolCallPart, result: Any) -> Any:
    """The result as it is, or as cut text where its text is too long. Raises what serialising it raises."""
    if isinstance(result, ToolReturn):
        wrapped = cast("ToolReturn[Any]", result)
        return replace(
            wrapped,
            return_value=_bounded(call, wrapped.return_value),
            content=whole_in(wrapped.content),
            metadata=whole_in(wrapped.metadata),
        )
    result = whole_in(result)
    part = ToolReturnPart(tool_name=call.tool_name, content=result, tool_call_id=call.tool_call_id)
    text = part.model_response_str()
    return result if len(text) <= RESULT_LIMIT else _cut(text)


def _cut(text: str) -> str:
    if len(text) <= RESULT_LIMIT:
        return text
    return f"{text[:RESULT_LIMIT]}\n… (cut: {len(text) - RESULT_LIMIT} more characters)"
