"""The parts of the input tokens of model requests: instructions, tool definitions and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torana.messages import InputParts

if TYPE_CHECKING:  # importing it takes a second
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

#: The names of the parts in the details of a response's usage.
_INSTRUCTIONS, _TOOLS, _HISTORY = "torana_instructions", "torana_tools", "torana_history"


def add_parts(usage: RequestUsage, estimated: InputParts) -> RequestUsage:
    """Return the usage with the parts of its request, in proportion to the input tokens that it reports."""
    parts = estimated.scaled_to(usage.input_tokens)
    named = {_INSTRUCTIONS: parts.instructions, _TOOLS: parts.tools, _HISTORY: parts.history}
    return replace(usage, details={**usage.details, **named})


def parts_of(responses: Sequence[ModelResponse]) -> InputParts:
    """Return the sum of the parts that the responses note."""
    return sum((_parts_in(response.usage.details) for response in responses), InputParts())


def _parts_in(details: Mapping[str, int]) -> InputParts:
    return InputParts(
        instructions=details.get(_INSTRUCTIONS, 0),
        tools=details.get(_TOOLS, 0),
        history=details.get(_HISTORY, 0),
    )
