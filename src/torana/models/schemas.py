"""Writes the schemas of tools as a provider wants them once, and not before every request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

#: Sets of tools that are remembered: there are as many as there are people with different permissions.
_SETS = 32


def write_schemas_once(model: Model) -> None:
    """Make this model remember how it wrote the schemas of the tools that it was last given.

    pydantic-ai copies and walks each tool's schema for each request. The same definitions, object for object,
    are written the same; ``docs/explanation/performance.md`` has what that saves.
    """
    # An attribute of this one object: its class is not changed.
    vars(model)["customize_request_parameters"] = _Remembering(model.customize_request_parameters)


class _Remembering:
    def __init__(self, customize: Callable[[ModelRequestParameters], ModelRequestParameters]) -> None:
        self._customize = customize
        #: By the identities of the tools, which are kept with them so that no other object takes their place.
        self._written: OrderedDict[tuple[int, ...], tuple[Sequence[ToolDefinition], list[ToolDefinition]]] = (
            OrderedDict()
        )

    def __call__(self, parameters: ModelRequestParameters) -> ModelRequestParameters:
        if parameters.output_tools or parameters.output_object is not None:  # not of the agent's
            return self._customize(parameters)
        tools = tuple(parameters.function_tools)
        key = tuple(map(id, tools))
        if key not in self._written:
            self._written[key] = tools, self._customize(parameters).function_tools
            if len(self._written) > _SETS:
                self._written.popitem(last=False)
        self._written.move_to_end(key)
        return replace(parameters, function_tools=list(self._written[key][1]))
