"""Run model requests and tool calls through the journal, by ids of calls that are unique within a turn."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import count
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai import RunContext, ToolFailed
from pydantic_ai.capabilities import ValidatedToolArgs, WrapModelRequestHandler, WrapToolExecuteHandler
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition

from torana.agent.journal import Call, Journal
from torana.agent.run import Run, step_number
from torana.agent.text import repair_all_surrogates, repair_surrogates
from torana.json_bounds import with_readable_nesting

_RESULT = TypeAdapter(ToolReturn[Any])

UNKNOWN_OUTCOME = (
    "The gateway was interrupted while this call ran. Its outcome is unknown, and the call was not repeated. "
    "Check the current state before you repeat it, or tell the user."
)


#: Printable ASCII without the characters that are special in a URL (space, slash, backslash, #, % and ?); not
#: "." or "..".
_PLAIN_ID = re.compile(r"""(?!\.{1,2}$)[!"$&-.0->@-\[\]-~]{1,64}""")

#: Length of a replacement id: Mistral accepts no other, and every provider accepts it.
_ID_LENGTH = 9


async def add_steers(ctx: RunContext[Run], asked: ModelRequestContext) -> None:
    """Add the user's messages that arrived during the turn to the model request."""
    added = await ctx.deps.journal.steers(step_number(ctx))
    last = asked.messages[-1]
    if added and isinstance(last, ModelRequest):
        prompts = [UserPromptPart(await ctx.deps.prompt(turn)) for turn in added]
        request = replace(last, parts=[*last.parts, *prompts])
        asked.messages[-1] = request
        ctx.messages[-1] = request


async def request_with_journal(
    ctx: RunContext[Run], asked: ModelRequestContext, handler: WrapModelRequestHandler
) -> ModelResponse:
    """Send the model request; a response with calls is stored together with its first call.

    The returned calls have ids that are unique in the turn: the journal and approvals use them as keys.
    """
    exchange = ctx.deps.exchange
    if pending := exchange.take_pending():
        await ctx.deps.journal.settle(pending)
    meter = ctx.deps.meter
    if meter is not None:
        await ctx.deps.journal.hold(meter.measure(asked))
    ctx.deps.journal.check_budgets()
    step = step_number(ctx)
    with exchange.asking(ctx.usage), ctx.deps.journal.request(step) as measured:
        response = measured.response = _storable(await handler(asked))
    if meter is not None:
        meter.learn(response)
    response = with_unique_ids(response, taken=exchange.call_ids, step=step)
    exchange.add(asked.messages[-1], response, step=step)
    return response


async def run_with_journal(
    args: ValidatedToolArgs,
    *,
    ctx: RunContext[Run],
    call: ToolCallPart,
    tool: ToolDefinition,
    handler: WrapToolExecuteHandler,
) -> Any:
    """Run a tool and record its start and result, unless an earlier attempt did."""
    journal = ctx.deps.journal
    begun = Call(
        step=step_number(ctx),
        id=call.tool_call_id,
        tool=call.tool_name,
        idempotent=bool((tool.metadata or {}).get("idempotent")),
    )
    known = journal.call(begun.step, begun.id)
    if known is not None and not known.runs_again:
        return _replay(known)
    await journal.start(begun, ctx.deps.exchange.take_pending())
    return await _run(journal, begun, handler, args)


def result_text(call: Call) -> str:
    """Return the recorded result of an ended call as the model receives it."""
    if call.state == "failed":
        return call.result.decode()
    value = _RESULT.validate_json(call.result).return_value
    return ToolReturnPart(call.tool, value, tool_call_id=call.id).model_response_str()


def _storable(response: ModelResponse) -> ModelResponse:
    """Return the response with texts that are valid UTF-8: some models split surrogate pairs."""
    parts = [_storable_part(part) for part in response.parts]
    return replace(response, parts=parts) if parts != list(response.parts) else response


def _storable_part(part: ModelResponsePart) -> ModelResponsePart:
    match part:
        case TextPart() | ThinkingPart():
            return replace(part, content=repair_surrogates(part.content))
        case ToolCallPart():
            return replace(part, args=repair_all_surrogates(part.args))
        case _:
            return part


async def _run(journal: Journal, begun: Call, handler: WrapToolExecuteHandler, args: ValidatedToolArgs) -> Any:
    try:
        result = _without_lookalikes(await handler(args), begun.tool)
    except ToolFailed as error:
        await journal.finish(replace(begun, state="failed", result=error.message.encode()))
        raise
    await journal.finish(replace(begun, state="completed", result=_dump(result)))
    return result


def _without_lookalikes(result: Any, tool: str) -> Any:
    """Return the result; as JSON text if it would be read as a file when it is loaded again.

    The model library takes a stored object with this ``kind`` for a file.
    """
    if isinstance(result, ToolReturn):
        wrapped = cast("ToolReturn[Any]", result)
        return replace(wrapped, return_value=_without_lookalikes(wrapped.return_value, tool))
    is_list = isinstance(result, list | tuple)
    values = cast("Sequence[Any]", result) if is_list else [result]
    if any(map(_has_the_form_of_a_file, values)):
        return ToolReturnPart(tool, result).model_response_str()
    return result


def _has_the_form_of_a_file(value: Any) -> bool:
    return isinstance(value, Mapping) and cast("Mapping[Any, Any]", value).get("kind") == BinaryContent.kind


def _dump(result: Any) -> bytes:
    """Serialize a result as a ``ToolReturn``, which preserves its content and metadata."""
    wrapped = cast("ToolReturn[Any]", result) if isinstance(result, ToolReturn) else ToolReturn[Any](result)
    return with_readable_nesting(_RESULT.dump_json(wrapped, fallback=str, warnings=False))


def _replay(call: Call) -> Any:
    """Return the recorded result of a call that does not run again."""
    match call.state:
        case "completed":
            return _RESULT.validate_json(call.result)
        case "failed":
            raise ToolFailed(call.result.decode())
        case "started":
            raise ToolFailed(UNKNOWN_OUTCOME)


def with_unique_ids(response: ModelResponse, *, taken: Set[str], step: int) -> ModelResponse:
    """Return the response with URL-safe call ids that are neither in ``taken`` nor repeated.

    Valid ids stay. The others are replaced by ids that depend only on the step, the position and the old id.
    """
    seen = set(taken)

    def unique(place: int, part: ModelResponsePart) -> ModelResponsePart:
        if not isinstance(part, ToolCallPart):
            return part
        id_ = part.tool_call_id
        if id_ in seen or not _PLAIN_ID.fullmatch(id_):
            id_ = _new_id(id_, step, place, seen)
        seen.add(id_)
        return part if id_ == part.tool_call_id else replace(part, tool_call_id=id_)

    parts = [unique(place, part) for place, part in enumerate(response.parts)]
    return replace(response, parts=parts) if parts != list(response.parts) else response


def _new_id(old: str, step: int, place: int, seen: Set[str]) -> str:
    names = (f"{step} {place} {attempt} {old}" for attempt in count())
    digests = (hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest() for name in names)
    return next(digest[:_ID_LENGTH] for digest in digests if digest[:_ID_LENGTH] not in seen)
