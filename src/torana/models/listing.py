"""Mark the tools that a request to a provider leaves out.

pydantic-ai's ``defer_loading`` is not used: with it, pydantic-ai announces each new tool in a system message in
the middle of the conversation, which the chat templates of several models refuse (docs/decisions/0058).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

_UNLISTED = "unlisted"


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
