"""Lone surrogates in the output of models and tools do not fail a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturn, ToolReturnPart
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaThinkingCalls,
    DeltaThinkingPart,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)

from torana.messages import Turn
from torana.testing import ScriptedModel
from torana.tools import ToolContext, ToolError

Make = Callable[..., Any]
Say = Callable[..., Awaitable[Turn]]

HALF, OTHER_HALF = "\ud83d", "\ude00"


async def test_model_thinking_with_lone_surrogate_is_accepted(open_turns: Make, say: Say) -> None:
    async def think(_: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaThinkingCalls]:
        yield {0: DeltaThinkingPart(content=f"hm {HALF}")}
        yield "Done."

    turns = open_turns(FunctionModel(stream_function=think))

    assert [(await say(turns)).reply for _ in range(2)] == ["Done.", "Done."]


async def test_lone_surrogate_in_tool_argument_is_replaced(
    open_agent: Make, open_turns: Make, say: Say
) -> None:
    heard: list[str] = []
    toolset = FunctionToolset[ToolContext](metadata={"permission": "allow"})

    @toolset.tool_plain
    def note(line: str) -> str:
        heard.append(line)
        return line

    del note
    arguments = [f'{{"line": "{line}"}}' for line in (f"a{HALF}", f"b{HALF}{OTHER_HALF}")]

    async def call(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if len(messages) > 1:
            yield "Done."
            return
        for number, argument in enumerate(arguments):
            yield {number: DeltaToolCall("note", argument, tool_call_id=str(number))}

    agent = open_agent(FunctionModel(stream_function=call), toolset)

    assert (await say(open_turns(agent=agent))).reply == "Done."
    assert sorted(heard) == ["a\ufffd", "b\U0001f600"]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("a\udc80", "a\ufffd"),
        (["a\udc80", 1, None], ["a\ufffd", 1, None]),
        ({"a\udc80": {"b": ("\udc80",)}}, {"a\ufffd": {"b": ["\ufffd"]}}),
        (ToolReturn("a\udc80", content="b\udc80"), "a\ufffd"),
        (ToolReturn("a", content=["b\udc80"], metadata={"c": "\udc80"}), "a"),
        (ToolError("no file a\udc80"), "no file a\ufffd"),
        ("x" * 30_000 + "\udc80", "x" * 20_000 + "\n… (cut: 10001 more characters)"),
    ],
    ids=["text", "list", "mapping", "text and more", "more", "error", "long"],
)
async def test_lone_surrogate_in_tool_result_is_replaced(
    open_agent: Make, open_turns: Make, say: Say, result: Any, told: object
) -> None:
    toolset = FunctionToolset[ToolContext](metadata={"permission": "allow"})

    @toolset.tool_plain
    def listed() -> Any:
        if isinstance(result, ToolError):
            raise result
        return result

    del listed
    model = ScriptedModel([ToolCallPart("listed", {}, tool_call_id="c")], "Done.")

    ended = await say(open_turns(agent=open_agent(model, toolset)))

    assert ended.reply == "Done."
    shown = model.requests[1].messages[-1].parts
    assert [part.content for part in shown if isinstance(part, ToolReturnPart)] == [told]
