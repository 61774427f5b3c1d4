"""Find tools that the model's requests do not list."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_ai import RunContext
from pydantic_ai.tools import ToolDefinition

from torana.skills import Skills
from torana.store.engine.similarity import count_words
from torana.tools.base import ToolContext, ToolGroup, tool
from torana.tools.computing import Computing
from torana.tools.shares import sharing_user

#: Maximum number of results of each kind, and of characters of a result's description.
_RESULTS, _DESCRIPTION = 5, 160
#: Maximum numbers of words of a query, and of characters of a name with its description, that a search reads.
_WORDS, _READ = 12, 500


class ToolSearch(ToolGroup):
    """The tool that finds skills, and tools of MCP servers and operators."""

    def __init__(self, *, skills: Skills, computing: Computing) -> None:
        self._skills = skills
        self._computing = computing

    @tool(idempotent=True)
    async def find_tools(self, ctx: RunContext[ToolContext], query: str) -> dict[str, dict[str, str]]:
        """Find tools and skills that are not listed. The tools it returns can be called next.

        Args:
            query: Words for the task, such as "calendar event".
        """
        query, user = query[:_READ], sharing_user(ctx.deps.turn)
        skills = {skill.slug: f"{skill.title} {skill.description}" for skill in self._skills.catalogue().loaded}
        tools = {definition.name: described(definition) for definition in ctx.deps.opened_tools.unlisted}
        return {
            "tools": await self._best(query, tools, user=user),
            "skills": await self._best(query, skills, user=user),
        }

    async def _best(self, query: str, texts: Mapping[str, str], *, user: str) -> dict[str, str]:
        """Return the names that match most of the words in their name or text, best first, with their texts."""
        read = {name: f"{name} {text}"[:_READ] for name, text in texts.items()}
        arguments = {"query": query, "texts": read, "most": _WORDS}
        counts = await self._computing.run(count_words, arguments, user=user)
        found = sorted((name for name, count in counts.items() if count), key=lambda name: -counts[name])
        return {name: texts[name][:_DESCRIPTION] for name in found[:_RESULTS]}


def described(definition: ToolDefinition) -> str:
    """Return the description of a tool on one line."""
    return " ".join((definition.description or "").split())
