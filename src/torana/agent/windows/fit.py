"""Fit a model request into a number of tokens, always in the same order.

The order is: shorten results of tools in earlier turns, leave out the oldest turns, shorten older results of
the current turn, leave out its oldest calls, and shorten the newest calls and results and the message itself.
Instructions and tool definitions have a bounded share, so that messages have room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponsePart,
    TextContent,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from torana.agent.request_size import files_in, message_tokens
from torana.limits.request_tokens import likely_tokens
from torana.sessions import history
from torana.sessions.trimming import first_to_keep

#: The share of the room for the instructions, and for instructions and tool definitions together.
_INSTRUCTIONS_SHARE, _FIXED_SHARE = 0.5, 0.75

#: Characters that remain of a shortened tool result, and of any other shortened text.
_RESULT_CHARS = 300
_LEAST_CHARS = 40

#: The only key of a call's shortened arguments. Its value is their shortened text.
_SHORTENED_ARGUMENTS = "arguments"

#: The text in place of a file.
_LEFT_OUT = "[This file does not fit into the model's context window.]"

#: Maximum number of times that the newest texts are shortened. After that the request is sent, even if it
#: does not fit.
_ROUNDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The estimated tokens of a request: instructions, tool definitions, and all messages.

    ``files`` is the part of ``messages`` for pictures and PDF files; their real number of tokens may be many
    times larger.
    """

    instructions: int
    tools: int
    messages: int
    files: int = 0

    @property
    def total(self) -> int:
        return self.instructions + self.tools + self.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRequest:
    """A request that fits, its estimated tokens, and the number of turns and tools that were left out."""

    messages: list[ModelMessage]
    parameters: ModelRequestParameters
    parts: Parts
    turns_left_out: int = 0
    tools_left_out: int = 0


def fit(
    messages: Sequence[ModelMessage],
    parameters: ModelRequestParameters,
    *,
    room: int | None,
    tool_tokens: Callable[[Sequence[ToolDefinition]], int],
) -> FittedRequest:
    """Return the request with at most ``room`` estimated tokens, as far as possible; None means no limit.

    ``tool_tokens`` estimates the definitions of tools.
    """
    parts = Parts(
        instructions=_instruction_tokens(messages, parameters),
        tools=tool_tokens(parameters.function_tools),
        messages=message_tokens(messages),
        files=files_in(messages).likely,
    )
    if room is None or parts.total <= room:
        return FittedRequest(messages=list(messages), parameters=parameters, parts=parts)
    fitted = _with_short_instructions(parameters, int(room * _INSTRUCTIONS_SHARE))
    instructions = _instruction_tokens(messages, fitted)
    tools = _fitting_tools(fitted.function_tools, int(room * _FIXED_SHARE) - instructions, tool_tokens)
    fixed = instructions + tool_tokens(tools)
    kept, turns_left_out = _fit_messages(messages, room - fixed)
    return FittedRequest(
        messages=kept,
        parameters=replace(fitted, function_tools=tools),
        parts=Parts(
            instructions=instructions,
            tools=fixed - instructions,
            messages=message_tokens(kept),
            files=files_in(kept).likely,
        ),
        turns_left_out=turns_left_out,
        tools_left_out=len(fitted.function_tools) - len(tools),
    )


def without_files(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with a line in place of each file."""
    return [
        _with_parts(message, [_without_files(part) for part in message.parts])
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]


def _without_files(part: ModelRequestPart) -> ModelRequestPart:
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return part
    return replace(part, content=[_LEFT_OUT if isinstance(one, BinaryContent) else one for one in part.content])


def _instruction_tokens(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> int:
    if parameters.instruction_parts is not None:
        return sum(likely_tokens(part.content) for part in parameters.instruction_parts)
    # A request outside of the agent, such as a summary.
    newest = next((m for m in reversed(messages) if isinstance(m, ModelRequest)), None)
    return likely_tokens(newest.instructions or "") if newest else 0


def _with_short_instructions(parameters: ModelRequestParameters, room: int) -> ModelRequestParameters:
    """Cut the instructions at their end. The summary is their last part, after memories and skills."""
    parts: list[InstructionPart] = []
    for part in parameters.instruction_parts or ():
        text = _beginning(part.content, room)
        room -= likely_tokens(text)
        parts.append(part if text == part.content else replace(part, content=text))
    return replace(parameters, instruction_parts=parts) if parts else parameters


def _fitting_tools(
    tools: Sequence[ToolDefinition], room: int, tool_tokens: Callable[[Sequence[ToolDefinition]], int]
) -> list[ToolDefinition]:
    """Leave out each tool that does not fit after those before it."""
    kept: list[ToolDefinition] = []
    for tool in tools:
        size = tool_tokens([tool])
        if size <= room:
            kept.append(tool)
            room -= size
    return kept


def _fit_messages(messages: Sequence[ModelMessage], room: int) -> tuple[list[ModelMessage], int]:
    turns = _turns_of(messages)
    current = _fit_current(turns.pop(), room)
    room -= message_tokens(current)
    places = [history.place_of(turn[0]) or number for number, turn in enumerate(turns, start=1)]
    short = [[_with_short_results(message, _RESULT_CHARS) for message in turn] for turn in turns]
    sizes = [message_tokens(turn) for turn in short]
    first = first_to_keep(sizes, places, room) if sizes else 0
    if sizes and sum(sizes[first:]) > room:  # the newest turn does not fit either
        first = len(sizes)
    whole = turns[first:]
    fits = sum(map(message_tokens, whole)) <= room
    kept = [message for turn in (whole if fits else short[first:]) for message in turn]
    return [*kept, *current], first


def _turns_of(messages: Sequence[ModelMessage]) -> list[list[ModelMessage]]:
    """Return the messages by turn; the last turn is the current one."""
    turns: list[list[ModelMessage]] = []
    for message in messages:
        if _begins_turn(message) or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _begins_turn(message: ModelMessage) -> bool:
    """Return whether a message begins a turn: a user's message, but not one that was added to results."""
    return isinstance(message, ModelRequest) and all(isinstance(part, UserPromptPart) for part in message.parts)


def _fit_current(turn: Sequence[ModelMessage], room: int) -> list[ModelMessage]:
    """Fit the current turn: its message, its calls and their results."""
    fitted = list(turn)
    if message_tokens(fitted) <= room:
        return fitted
    fitted = [_with_short_results(message, _RESULT_CHARS) for message in fitted[:-1]] + fitted[-1:]
    if message_tokens(fitted) > room:
        fitted = _without_oldest_calls(fitted, room)
    limit = room * 4
    for _ in range(_ROUNDS):
        if message_tokens(fitted) <= room or limit < _LEAST_CHARS:
            break
        limit //= 2
        fitted = [_with_short_texts(message, limit) for message in fitted]
    return fitted


def _without_oldest_calls(turn: Sequence[ModelMessage], room: int) -> list[ModelMessage]:
    """Leave out the oldest calls with their results; the newest ones stay."""
    opening = list(turn[:1])
    pairs = [list(turn[start : start + 2]) for start in range(1, len(turn), 2)]
    if not pairs:
        return opening
    sizes = [message_tokens(pair) for pair in pairs]
    first = first_to_keep(sizes, range(1, len(sizes) + 1), room - message_tokens(opening))
    return [*opening, *(message for pair in pairs[first:] for message in pair)]


def _with_short_results(message: ModelMessage, limit: int) -> ModelMessage:
    if not isinstance(message, ModelRequest):
        return message
    return _with_parts(message, [_with_short_result(part, limit) for part in message.parts])


def _with_short_texts(message: ModelMessage, limit: int) -> ModelMessage:
    """Shorten arguments of calls, results and user messages; files are left out."""
    if not isinstance(message, ModelRequest):
        calls = [_with_short_arguments(part, limit) for part in message.parts]
        return replace(message, parts=calls) if calls != list(message.parts) else message
    parts = [
        replace(part, content=_short_content(part.content, limit))
        if isinstance(part, UserPromptPart)
        else _with_short_result(part, limit)
        for part in message.parts
    ]
    return _with_parts(message, parts)


def _with_parts(message: ModelRequest, parts: list[ModelRequestPart]) -> ModelRequest:
    return replace(message, parts=parts) if parts != list(message.parts) else message


def _with_short_result(part: ModelRequestPart, limit: int) -> ModelRequestPart:
    if not isinstance(part, ToolReturnPart):
        return part
    text = part.model_response_str(wrap_if_error=False)
    return part if len(text) <= limit else replace(part, content=_shortened(text, limit))


def _with_short_arguments(part: ModelResponsePart, limit: int) -> ModelResponsePart:
    if not isinstance(part, ToolCallPart) or len(text := part.args_as_json_str()) <= limit:
        return part
    return replace(part, args={_SHORTENED_ARGUMENTS: _shortened(text, limit)})


def _short_content(content: str | Sequence[UserContent], limit: int) -> str | Sequence[UserContent]:
    if isinstance(content, str):
        return _shortened(content, limit)
    shorten: Callable[[Any], UserContent] = lambda item: _short_item(item, limit)  # noqa: E731
    return [shorten(item) for item in content]


def _short_item(item: UserContent, limit: int) -> UserContent:
    match item:
        case str():
            return _shortened(item, limit)
        case TextContent():
            return replace(item, content=_shortened(item.content, limit))
        case BinaryContent():
            return _LEFT_OUT
        case _:
            return item


def _shortened(text: str, limit: int) -> str:
    """Return the beginning and the end of a text of more than ``limit`` characters, and say so."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 4, limit // 4
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters are left out here …]\n{text[-tail:]}"


def _beginning(text: str, room: int) -> str:
    """Return the beginning of a text that has at most ``room`` estimated tokens."""
    limit = len(text)
    while limit and likely_tokens(text[:limit]) > room:
        limit = limit * 15 // 16
    return text if limit == len(text) else f"{text[:limit].rstrip()} …"
