"""List all tools with their permissions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import RunUsage

from torana.permissions import Calling, PermissionVerdict, Rules, promised_by
from torana.tools import ToolContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverview:
    name: str
    description: str
    idempotent: bool
    verdict: PermissionVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The tools by name, and the names in rules that match no tool."""

    offers: Sequence[ToolOverview]
    unknown_tools: Sequence[str]


class Toolbox:
    """The agent's tools, including those of MCP servers, with the operator's rules."""

    def __init__(self, *, toolset: AbstractToolset[ToolContext], model: Model, rules: Rules) -> None:
        self._toolset = toolset
        self._model = model
        self._rules = rules

    async def overview(self, *, user: str | None, token: str | None, skill: str | None) -> Overview:
        """Return the current permissions for a user, a token and an opened skill."""
        # Tools are filtered by the run's dependencies; there is no run here.
        no_caller = cast(
            "RunContext[ToolContext]", RunContext[Any](deps=None, model=self._model, usage=RunUsage())
        )
        async with self._toolset:
            tools = await self._toolset.get_tools(no_caller)
        skills = frozenset({skill} if skill else ())
        offers: list[ToolOverview] = []
        for name, tool in sorted(tools.items()):
            metadata = tool.tool_def.metadata
            call = Calling(tool=name, promised=promised_by(metadata), user=user, token=token, skills=skills)
            offers.append(
                ToolOverview(
                    name=name,
                    description=(tool.tool_def.description or "").strip().partition("\n")[0],
                    idempotent=bool((metadata or {}).get("idempotent")),
                    verdict=self._rules.verdict(call),
                )
            )
        return Overview(offers=offers, unknown_tools=self._rules.unknown_tools(tools))
