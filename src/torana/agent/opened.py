"""The skills that a turn has opened, on which permissions may depend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart

from torana.agent.approval import changed_arguments
from torana.tools.permission import OPENS_SKILL, SLUG


class OpenedSkills:
    """Those of one run.

    A skill counts as open from the request to the model on that follows its opening, so that it makes no
    difference which of several calls of one response is the quickest.
    """

    def __init__(self, settled: Sequence[ModelMessage]) -> None:
        """``settled`` is what earlier attempts settled: they may have opened some."""
        self.counted = _opened_in(settled)
        self._noted: set[str] = set()

    def note(self, tool: str, args: Mapping[str, Any]) -> None:
        """Note a call that has succeeded."""
        if tool in OPENS_SKILL:
            self._noted |= slug_in(args)

    def begin_request(self) -> None:
        """Have those that were noted count from now on."""
        self.counted |= self._noted


def slug_in(args: Mapping[str, Any]) -> set[str]:
    """The skill that a call's arguments name, if any."""
    slug = args.get(SLUG)
    return {slug} if isinstance(slug, str) else set()


def _opened_in(messages: Sequence[ModelMessage]) -> set[str]:
    """The skills that calls in these messages opened, some perhaps with the arguments of whoever approved."""
    parts = [part for message in messages for part in message.parts]
    results: dict[str, Any] = {
        part.tool_call_id: part.content
        for part in parts
        if isinstance(part, ToolReturnPart) and part.tool_name in OPENS_SKILL and part.outcome == "success"
    }
    calls = (part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id in results)
    return {
        slug
        for call in calls
        for slug in slug_in(changed_arguments(results[call.tool_call_id]) or call.args_as_dict())
    }
