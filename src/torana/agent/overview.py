"""All tools there are, and whether somebody may run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import RunUsage

from torana.tools import ToolContext
from torana.tools.permission import Calling, Rules, Verdict, promised_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool, and what holds for it."""

    name: str
    description: str
    idempotent: bool
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The tools by name, and the names in rules that are no tool's."""

    offers: Sequence[Offer]
    strangers: Sequence[str]


class Toolbox:
    """The tools as the agent has them, those of servers included, under the operator's rules."""

    def __init__(self, *, toolset: AbstractToolset[ToolContext], model: Model, rules: Rules) -> None:
        self._toolset = toolset
        self._model = model
        self._rules = rules

    async def overview(self, *, user: str | None, token: str | None, skill: str | None) -> Overview:
        """What would hold at this moment for a call by a user with a token, with a skill opened."""
        # Tools are told apart by the run they are for; of ours none is.
        nobody = cast(
            "RunContext[ToolContext]", RunContext[Any](deps=None, model=self._model, usage=RunUsage())
        )
        async with self._toolset:
            tools = await self._toolset.get_tools(nobody)
        skills = frozenset({skill} if skill else ())
        offers: list[Offer] = []
        for name, tool in sorted(tools.items()):
            metadata = tool.tool_def.metadata
            call = Calling(tool=name, promised=promised_by(metadata), user=user, token=token, skills=skills)
            offers.append(
                Offer(
                    name=name,
                    description=(tool.tool_def.description or "").strip().partition("\n")[0],
                    idempotent=bool((metadata or {}).get("idempotent")),
                    verdict=self._rules.verdict(call),
                )
            )
        return Overview(offers=offers, strangers=self._rules.strangers(tools))
