"""Remember, recall, correct and forget for the user who speaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai import RunContext

from torana.errors import MemoryFull
from torana.memory import Memory, Remembered
from torana.tools.base import ToolContext, ToolError, tool

_SHOWN = 10


class MemoryTools:
    """The tools of the ``memory`` skill."""

    def __init__(self, *, memory: Memory) -> None:
        self._memory = memory

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The functions."""
        return [self.remember, self.recall, self.correct, self.forget]

    @tool(idempotent=True)
    async def remember(self, ctx: RunContext[ToolContext], text: str, subject: str = "") -> str:
        """Remember something about the user for later conversations.

        Args:
            text: What to remember, as a sentence that can be read alone.
            subject: What it is about when a newer statement should replace an older one, such as "favourite
                colour"; empty when both may be true.
        """
        user = _user(ctx)
        if not text.strip():
            raise ToolError("There is nothing to remember: the text is empty.")
        try:
            kept = await self._memory.remember(user, text.strip(), subject=subject, turn_id=ctx.deps.turn.id)
        except MemoryFull as full:
            raise ToolError(full.detail) from full
        return f"Remembered: {kept.memory.text}"

    @tool(idempotent=True)
    async def recall(self, ctx: RunContext[ToolContext], query: str = "", every_word: bool = False) -> str:
        """Find what the user asked to be remembered.

        Args:
            query: Words of what is looked for; empty for the newest memories.
            every_word: Find only what holds all of these words, instead of what shares some of them.
        """
        user = _user(ctx)
        if not ctx.deps.may_recall:
            raise ToolError("More than one person speaks in this channel; private memories are not read here.")
        if query.strip():
            fits = await self._memory.recall(user, query, limit=_SHOWN, every_word=every_word)
            found = [fit.memory for fit in fits]
        else:
            found = await self._memory.listed(user, limit=_SHOWN)
        if not found:
            return "Nothing is remembered about that." if query.strip() else "Nothing is remembered yet."
        return _listed(found)

    @tool(idempotent=True)
    async def correct(self, ctx: RunContext[ToolContext], query: str, text: str) -> str:
        """Replace one thing that is remembered by what is true instead.

        Args:
            query: Words that only the memory to correct holds, all of them.
            text: What to remember in its place, as a sentence that can be read alone.
        """
        user = _user(ctx)
        if not text.strip():
            raise ToolError("There is nothing to put in its place: the text is empty.")
        named = await self._memory.named(user, query)
        if not named:
            return await self._not_named(ctx, user, query)
        if len(named) > 1:
            raise ToolError(
                f"{len(named)} memories hold these words; give more words of the one that is meant."
            )
        now = await self._memory.edit(user, named[0].id, text=text.strip(), turn_id=ctx.deps.turn.id)
        return f"Remembered: {now.text}"

    @tool(idempotent=True)
    async def forget(self, ctx: RunContext[ToolContext], query: str) -> str:
        """Forget what the user asked to be remembered.

        Args:
            query: Words of what is to be forgotten. Every memory that holds all of them goes; "name" stands for
                the user's own, and "sister's name" for hers.
        """
        user = _user(ctx)
        gone = await self._memory.forget(user, query)
        if not gone:
            return await self._not_named(ctx, user, query)
        if not ctx.deps.may_recall:  # the others would read what it was
            return f"Forgotten: {len(gone)} of the user's memories."
        return "\n".join(f"Forgotten: {item.text}" for item in gone)

    async def _not_named(self, ctx: RunContext[ToolContext], user: str, query: str) -> str:
        """What is said where nothing is changed, with what could have been meant if that may be read here."""
        told = "Nothing that is remembered holds all of these words."
        near = await self._memory.recall(user, query, limit=_SHOWN) if ctx.deps.may_recall else []
        return f"{told} What comes near:\n{_listed([fit.memory for fit in near])}" if near else told


def _listed(found: Sequence[Remembered]) -> str:
    return "\n".join(f"- {item.text} ({item.created_at:%Y-%m-%d})" for item in found)


def _user(ctx: RunContext[ToolContext]) -> str:
    if ctx.deps.turn.user is None:
        raise ToolError("Nothing can be remembered without knowing who speaks; send a userId with the message.")
    return ctx.deps.turn.user
