"""Find tools that the model's requests do not list."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from pydantic_ai import RunContext
from pydantic_ai.tools import ToolDefinition

from torana.skills import Skills
from torana.store.engine.similarity import most_alike
from torana.store.engine.tokenizer import words
from torana.tools.base import ToolContext, ToolGroup, tool

#: Maximum number of results of each kind, and of characters of a result's description.
_RESULTS, _DESCRIPTION = 5, 160
#: Maximum numbers of words of a query, and of characters of a name with its description, that a search reads.
_WORDS, _READ = 12, 500


class ToolSearch(ToolGroup):
    """The tool that finds skills, and tools of MCP servers and operators."""

    def __init__(self, *, skills: Skills) -> None:
        self._skills = skills

    @tool(idempotent=True)
    def find_tools(self, ctx: RunContext[ToolContext], query: str) -> dict[str, dict[str, str]]:
        """Find tools and skills that are not listed. The tools it returns can be called next.

        Args:
            query: Words for the task, such as "calendar event".
        """
        wanted = list(dict.fromkeys(words(query[:_READ])))[:_WORDS]
        skills = {skill.slug: f"{skill.title} {skill.description}" for skill in self._skills.catalogue().loaded}
        tools = {definition.name: described(definition) for definition in ctx.deps.opened_tools.unlisted}
        return {"tools": _best(wanted, tools), "skills": _best(wanted, skills)}


def described(definition: ToolDefinition) -> str:
    """Return the description of a tool on one line."""
    return " ".join((definition.description or "").split())


def _best(wanted: Collection[str], texts: Mapping[str, str]) -> dict[str, str]:
    """Return the names that match most of the words in their name or text, best first, with their texts."""
    scores = {name: _score(wanted, _words(f"{name} {text}"[:_READ])) for name, text in texts.items()}
    found = sorted((name for name, score in scores.items() if score), key=lambda name: -scores[name])
    return {name: texts[name][:_DESCRIPTION] for name in found[:_RESULTS]}


def _score(wanted: Collection[str], present: Collection[str]) -> int:
    """Return the number of the words that are present, also in a similar form."""
    return sum(word in present or most_alike(word, present) is not None for word in wanted)


@lru_cache(1_024)
def _words(text: str) -> frozenset[str]:
    return frozenset(words(text))
