"""Tool schemas in the form of a provider."""

from __future__ import annotations

from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from torana.models.listing import write_schemas_once

LOOSE = {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}, "required": ["a"]}


def a_model() -> OpenAIChatModel:
    return OpenAIChatModel("gpt-5", provider=OpenAIProvider(base_url="http://localhost:9/v1", api_key="k"))


def parameters(*tools: ToolDefinition, output: tuple[ToolDefinition, ...] = ()) -> ModelRequestParameters:
    return ModelRequestParameters(function_tools=list(tools), output_tools=list(output))


def test_schemas_of_equal_tools_are_converted_once_and_unchanged() -> None:
    plain, model = a_model(), a_model()
    write_schemas_once(model)
    tool = ToolDefinition(name="open", parameters_json_schema=LOOSE)

    first = model.customize_request_parameters(parameters(tool))
    second = model.customize_request_parameters(parameters(tool))

    assert first == second == plain.customize_request_parameters(parameters(tool))
    assert second.function_tools[0].parameters_json_schema is first.function_tools[0].parameters_json_schema


def test_cached_schema_does_not_carry_its_tools_fields() -> None:
    plain, model = a_model(), a_model()
    write_schemas_once(model)
    tools = [
        ToolDefinition(name="open", description="Opens.", parameters_json_schema=LOOSE, strict=strict)
        for strict in (None, True, False)
    ] + [ToolDefinition(name="shut", parameters_json_schema=LOOSE)]

    for tool in tools * 2:
        assert model.customize_request_parameters(parameters(tool)) == plain.customize_request_parameters(
            parameters(tool)
        )


def test_different_schemas_are_converted_separately() -> None:
    model = a_model()
    write_schemas_once(model)
    written = [
        model.customize_request_parameters(
            parameters(ToolDefinition(name="open", parameters_json_schema=LOOSE | {"title": str(number)}))
        )
        for number in range(1_100)  # more than the cache holds, and some at reused memory addresses
    ]

    schemas = [one.function_tools[0].parameters_json_schema for one in written]
    plain = a_model().customize_request_parameters(
        parameters(ToolDefinition(name="open", parameters_json_schema=LOOSE | {"title": "7"}))
    )
    assert schemas[7] == plain.function_tools[0].parameters_json_schema
    assert len({id(schema) for schema in schemas}) == 1_100


def test_output_tools_are_converted_too() -> None:
    plain, model = a_model(), a_model()
    write_schemas_once(model)
    tool = ToolDefinition(name="answer", parameters_json_schema=LOOSE)

    written = model.customize_request_parameters(parameters(output=(tool,)))

    assert written == plain.customize_request_parameters(parameters(output=(tool,)))
