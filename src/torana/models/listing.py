"""Mark the tools that a request to a provider leaves out.

pydantic-ai's ``defer_loading`` is not used: with it, pydantic-ai announces each new tool in a system message in
the middle of the conversation, which the chat templates of several models refuse (docs/decisions/0058).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

_UNLISTED = "unlisted"

#: Maximum number of remembered schemas.
_SCHEMAS = 1_000


def mark_unlisted(tool: ToolDefinition) -> ToolDefinition:
    return replace(tool, metadata={**(tool.metadata or {}), _UNLISTED: True})


def listed(tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
    """Return the tools without the mark, in order."""
    return [tool for tool in tools if not (tool.metadata or {}).get(_UNLISTED)]


def send_listed_tools_only(model: Model) -> None:
    customize = model.customize_request_parameters

    def customize_listed(parameters: ModelRequestParameters) -> ModelRequestParameters:
        return customize(replace(parameters, function_tools=listed(parameters.function_tools)))

    # Set on the object, so that the class stays unchanged.
    vars(model)["customize_request_parameters"] = customize_listed


def write_schemas_once(model: Model) -> None:
    """Make this model remember the converted schemas of tools.

    pydantic-ai copies and walks each tool's schema for each request. The result is the same for the same schema
    object; ``docs/explanation/performance.md`` has the measurements.
    """
    # Set on the object, so that the class stays unchanged.
    vars(model)["customize_request_parameters"] = _Remembering(model.customize_request_parameters)


class _Remembering:
    def __init__(self, customize: Callable[[ModelRequestParameters], ModelRequestParameters]) -> None:
        self._customize = customize
        #: The last tool by the schema's ``id`` and strictness, with its converted form. The tool holds the
        #: schema, so that its ``id`` is not reused.
        self._written: OrderedDict[tuple[int, bool | None], tuple[ToolDefinition, ToolDefinition]] = (
            OrderedDict()
        )

    def __call__(self, parameters: ModelRequestParameters) -> ModelRequestParameters:
        if parameters.output_tools or parameters.output_object is not None:  # the agent uses neither
            return self._customize(parameters)
        return replace(parameters, function_tools=[self._write(tool) for tool in parameters.function_tools])

    def _write(self, tool: ToolDefinition) -> ToolDefinition:
        key = id(tool.parameters_json_schema), tool.strict
        known, becomes = self._written.get(key, (None, tool))
        if known is None:
            (becomes,) = self._customize(ModelRequestParameters(function_tools=[tool])).function_tools
            self._written[key] = tool, becomes
            if len(self._written) > _SCHEMAS:
                self._written.popitem(last=False)
        elif known is not tool:
            schema, strict = becomes.parameters_json_schema, becomes.strict
            becomes = replace(tool, parameters_json_schema=schema, strict=strict)
            self._written[key] = tool, becomes
        self._written.move_to_end(key)
        return becomes
