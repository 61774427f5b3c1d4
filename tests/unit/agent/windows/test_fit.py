"""The order in which a request is fitted into the context window."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from torana.agent.request_size import ToolSizes, message_tokens
from torana.agent.windows.fit import FittedRequest, fit
from torana.sessions import history

TOOLS = [
    ToolDefinition(name=name, description=name * size, parameters_json_schema={"type": "object"})
    for name, size in (("a", 100), ("b", 6_000), ("c", 100))
]


def turn(number: int, *, result: str = "") -> list[ModelMessage]:
    """Return the messages of one turn, with a tool's result if there is one."""
    question = ModelRequest(parts=[UserPromptPart(f"question {number}")])
    answer = ModelResponse(parts=[TextPart(f"answer {number}")])
    calls = exchange(number, result) if result else []
    messages: list[ModelMessage] = [question, *calls, answer]
    history.set_place(messages, number)
    return messages


def exchange(number: int, result: str) -> list[ModelMessage]:
    call = ToolCallPart("look", {"number": number}, tool_call_id=f"c{number}")
    returned = ToolReturnPart("look", result, tool_call_id=f"c{number}")
    return [ModelResponse(parts=[call]), ModelRequest(parts=[returned])]


def fitted(
    messages: Sequence[ModelMessage], room: int, *, instructions: str = "", tools: Sequence[ToolDefinition] = ()
) -> FittedRequest:
    parameters = ModelRequestParameters(
        function_tools=list(tools), instruction_parts=[InstructionPart(content=instructions)]
    )
    return fit(messages, parameters, room=room, tool_tokens=ToolSizes().tokens)


def texts(messages: Sequence[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart | TextPart | ToolReturnPart)
    ]


NOW: ModelMessage = ModelRequest(parts=[UserPromptPart("now")])


def test_request_that_fits_is_not_changed() -> None:
    messages = [*turn(1, result="x" * 2_000), NOW]

    assert fitted(messages, 10_000).messages == messages


def test_results_of_earlier_turns_are_shortened_before_a_turn_is_left_out() -> None:
    messages = [*turn(1, result="x" * 2_000), *turn(2), NOW]

    sent = fitted(messages, 500)

    assert sent.turns_left_out == 0
    assert texts(sent.messages)[0] == "question 1"
    assert texts(sent.messages)[1].startswith("x" * 225 + "\n[… 1,700 characters are left out here …]")
    assert sent.parts.total <= 500


def test_oldest_turns_are_left_out_in_steps_so_that_the_beginning_stays() -> None:
    begins: list[str] = []
    for count in range(1, 60):
        sent = fitted([*(m for number in range(1, count + 1) for m in turn(number)), NOW], 1_000)
        assert sent.parts.total <= 1_000
        begins.append(texts(sent.messages)[0])

    assert begins[0] == "question 1"
    assert len(set(begins)) < 60 // 4


def test_older_results_of_the_current_turn_are_shortened_before_the_newest() -> None:
    current = [NOW, *exchange(1, "x" * 3_000), *exchange(2, "y" * 900)]

    sent = fitted(current, 700)

    first, second = [text for text in texts(sent.messages) if text != "now"]
    assert "left out here" in first
    assert second == "y" * 900
    assert sent.parts.total <= 700


def test_oldest_calls_of_the_current_turn_are_left_out_with_their_results() -> None:
    current = [NOW, *(message for number in range(1, 40) for message in exchange(number, "x" * 200))]

    sent = fitted(current, 1_500)

    calls = {part.tool_call_id for m in sent.messages for part in m.parts if isinstance(part, ToolCallPart)}
    results = {part.tool_call_id for m in sent.messages for part in m.parts if isinstance(part, ToolReturnPart)}
    assert calls == results
    assert "c39" in calls
    assert texts(sent.messages)[0] == "now"
    assert sent.parts.total <= 1_500


def test_long_arguments_of_a_call_leave_room_for_its_result() -> None:
    call = ToolCallPart("look", {"text": "x" * 9_000}, tool_call_id="c1")
    current = [NOW, ModelResponse(parts=[call]), exchange(1, "too long")[1]]

    sent = fitted(current, 800)

    (shortened,) = [part for m in sent.messages for part in m.parts if isinstance(part, ToolCallPart)]
    assert "left out here" in shortened.args_as_dict()["arguments"]
    assert texts(sent.messages)[-1] == "too long"
    assert sent.parts.total <= 800


def test_shortened_error_is_one_error() -> None:
    failed = ToolReturnPart("look", "bad " * 2_000, tool_call_id="c1", outcome="failed")
    current = [NOW, exchange(1, "")[0], ModelRequest(parts=[failed])]

    sent = fitted(current, 300)

    (result,) = [part for m in sent.messages for part in m.parts if isinstance(part, ToolReturnPart)]
    assert result.model_response_str().startswith('{"error":"bad bad')
    assert result.model_response_str().count("error") == 1


def test_message_that_exceeds_the_window_keeps_its_beginning_and_its_end() -> None:
    sent = fitted([*turn(1), ModelRequest(parts=[UserPromptPart("begin " + "x" * 9_000 + " end")])], 800)

    text = texts(sent.messages)[-1]
    assert text.startswith("begin ")
    assert text.endswith(" end")
    assert sent.parts.total <= 800


def test_instructions_and_tools_leave_a_quarter_of_the_room_to_messages() -> None:
    sent = fitted([NOW], 1_000, instructions="You are Torana. " * 500, tools=TOOLS)

    assert [tool.name for tool in sent.parameters.function_tools] == ["a", "c"]
    (part,) = sent.parameters.instruction_parts or []
    assert part.content.startswith("You are Torana. You are")
    assert part.content.endswith(" …")
    assert sent.parts.instructions <= 510
    assert sent.parts.total <= 1_000


@pytest.mark.parametrize("text", ["", "hello", "ünïcode", "你好世界", "🦜🌍", "\ud83d"])
def test_estimate_is_not_below_a_third_of_the_bytes(text: str) -> None:
    size = len(text.encode(errors="surrogatepass"))

    assert message_tokens([ModelRequest(parts=[UserPromptPart(text)])]) >= size / 3
