"""The upper bound of a request's tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from torana.agent.request_size import FixedTokens, RequestMeter, definition_bytes, message_bytes
from torana.limits.request_tokens import RequestTokens

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}


def tool(name: str, *, description: str = "Do it.", schema: dict[str, Any] = SCHEMA) -> ToolDefinition:
    return ToolDefinition(name=name, description=description, parameters_json_schema=schema)


def model_request(
    messages: list[ModelMessage], *tools: ToolDefinition, instructions: str = "Be brief."
) -> ModelRequestContext:
    parameters = ModelRequestParameters(
        function_tools=list(tools), instruction_parts=[InstructionPart(content=instructions)]
    )
    return ModelRequestContext(
        model=TestModel(), messages=messages, model_settings=None, model_request_parameters=parameters
    )


def user_message(text: str) -> ModelRequest:
    return ModelRequest.user_text_prompt(text)


def model_response(tokens: int, *, output: int = 10, model: str = "m", text: str = "yes") -> ModelResponse:
    usage = RequestUsage(input_tokens=tokens, output_tokens=output)
    return ModelResponse(parts=[TextPart(text)], usage=usage, model_name=model)


@pytest.fixture
def fixed() -> FixedTokens:
    return FixedTokens(instruction_bytes=lambda: 100, tool_bytes=lambda: 1_000)


@given(text=st.text(), name=st.text(max_size=64), arguments=st.dictionaries(st.text(), st.text()))
def test_message_bytes_bound_the_texts_of_a_request(text: str, name: str, arguments: dict[str, str]) -> None:
    messages: list[ModelMessage] = [
        user_message(text),
        ModelResponse(parts=[TextPart(text), ThinkingPart(text), ToolCallPart(name, arguments)]),
        ModelRequest(
            parts=[
                ToolReturnPart(name, text, "c"),
                RetryFeedbackPart(content=text, retry=RetryInfo(cause="no_output")),
                UserPromptPart([text]),
            ]
        ),
    ]
    sent = [text] * 6 + [name, name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))]

    assert message_bytes(messages) >= sum(len(one.encode(errors="surrogatepass")) for one in sent)


def test_measure_counts_all_tools_and_instructions(fixed: FixedTokens) -> None:
    tools = [tool(f"tool{number}", description="é" * 2_000) for number in range(64)]

    measured = RequestMeter(fixed).measure(
        model_request([user_message("hello")], *tools, instructions="x" * 10_000)
    )

    assert measured.most > sum(map(definition_bytes, tools)) + 10_000 + len("hello")
    assert measured.most > 64 * 4_000
    assert measured.likely * 3 < measured.most + 10


def test_reported_usage_bounds_later_requests_with_the_same_tools(fixed: FixedTokens) -> None:
    tools = [tool("a", description="x" * 9_000), tool("b")]
    first = RequestMeter(fixed)
    before = first.measure(model_request([user_message("hello")], *tools))
    first.learn(model_response(2_500))

    again = RequestMeter(fixed).measure(model_request([user_message("hello")], *tools))
    others = RequestMeter(fixed).measure(model_request([user_message("hello")], *tools, tool("c")))

    assert before.most > 9_000
    assert 2_500 < again.most < 2_700
    assert others.most > 9_000


def test_largest_reported_usage_of_several_models_counts(fixed: FixedTokens) -> None:
    tools = [tool("a", description="x" * 9_000)]
    for tokens, model in [(2_000, "m"), (3_000, "n"), (2_500, "n"), (8_000, "m")]:
        meter = RequestMeter(fixed)
        meter.measure(model_request([user_message("hello")], *tools))
        meter.learn(model_response(tokens, model=model))

    assert 2_500 < RequestMeter(fixed).measure(model_request([user_message("hello")], *tools)).most < 2_700


def measure_second_request(fixed: FixedTokens) -> RequestTokens:
    """Measure the request after one of 5,000 bytes, for which 1,050 tokens were reported; 300 bytes are new."""
    meter = RequestMeter(fixed)
    question, answer = user_message("x" * 5_000), model_response(1_000, output=50)
    meter.measure(model_request([question], tool("a")))
    meter.learn(answer)
    result = ModelRequest(parts=[ToolReturnPart("a", "y" * 300, "c")])

    return meter.measure(model_request([question, answer, result], tool("a")))


def test_later_request_adds_new_messages_to_reported_usage(fixed: FixedTokens) -> None:
    measured = measure_second_request(fixed)

    assert 1_350 <= measured.most < 1_450


def test_maximum_for_several_models_is_that_of_all_messages() -> None:
    fixed = FixedTokens(instruction_bytes=lambda: 100, tool_bytes=lambda: 1_000, several_models=True)
    measured = measure_second_request(fixed)

    assert 5_300 < measured.most < 6_600
    assert 1_150 <= measured.likely < 1_250


def test_tools_added_during_a_turn_are_counted(fixed: FixedTokens) -> None:
    meter = RequestMeter(fixed)
    question, answer = user_message("hello"), model_response(1_000, output=50)
    meter.measure(model_request([question], tool("a")))
    meter.learn(answer)

    measured = meter.measure(
        model_request([question, answer, user_message("on")], tool("a"), tool("b", description="z" * 2_000))
    )

    assert measured.most > 1_050 + 2_000


def test_bytes_count_when_no_usage_is_reported(fixed: FixedTokens) -> None:
    meter = RequestMeter(fixed)
    question, answer = user_message("x" * 5_000), model_response(0, output=0, text="y" * 700)
    meter.measure(model_request([question], tool("a")))
    meter.learn(answer)

    assert meter.measure(model_request([question, answer, user_message("on")], tool("a"))).most > 5_700


def test_fixed_tokens_add_new_tools_to_reported_usage() -> None:
    sizes = [9_000]
    fixed = FixedTokens(instruction_bytes=lambda: 300, tool_bytes=lambda: sizes[-1])
    assert (fixed().most, fixed().likely) == (9_300, 3_100)

    meter = RequestMeter(fixed)
    meter.measure(model_request([user_message("hello")], tool("a", description="x" * 8_900)))
    meter.learn(model_response(2_000))

    assert fixed().most == 2_300
    sizes.append(50_000)
    assert fixed().most == 2_300 + 41_000
