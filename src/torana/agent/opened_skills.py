"""The skills that a turn has opened, on which permissions may depend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart

from torana.agent.approval import changed_arguments
from torana.permissions import OPENS_SKILL, SLUG


class OpenedSkills:
    """The skills that one run has opened.

    A skill counts as open from the next model request on, so that the order in which concurrent calls of one
    response finish makes no difference.
    """

    def __init__(self, settled: Sequence[ModelMessage]) -> None:
        """``settled`` are the messages of earlier attempts, which may have opened skills."""
        self.counted = set(slugs_opened_in(settled))
        self._noted: set[str] = set()

    def note(self, tool: str, args: Mapping[str, Any]) -> None:
        """Note a call that has succeeded."""
        if tool in OPENS_SKILL:
            self._noted |= slug_in(args)

    def begin_request(self) -> None:
        """Count the noted skills as open from now on."""
        self.counted |= self._noted


def slug_in(args: Mapping[str, Any]) -> set[str]:
    """Return the skill that a call's arguments name, if any."""
    slug = args.get(SLUG)
    return {slug} if isinstance(slug, str) else set()


def slugs_opened_in(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the skills that these calls opened, in order, considering arguments that an approver changed."""
    parts = [part for message in messages for part in message.parts]
    results: dict[str, Any] = {
        part.tool_call_id: part.content
        for part in parts
        if isinstance(part, ToolReturnPart) and part.tool_name in OPENS_SKILL and part.outcome == "success"
    }
    calls = (part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id in results)
    return [
        slug
        for call in calls
        for slug in slug_in(changed_arguments(results[call.tool_call_id]) or call.args_as_dict())
    ]
