"""Remember, recall, correct and forget memories of the turn's user."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai import RunContext

from torana.errors import MemoryFull
from torana.memory import Memory, Remembered
from torana.tools.base import ToolContext, ToolError, ToolGroup, tool, tool_errors

_SHOWN = 10


class MemoryTools(ToolGroup):
    """The tools of the ``memory`` skill."""

    def __init__(self, *, memory: Memory) -> None:
        self._memory = memory

    @tool(idempotent=True)
    async def remember(self, ctx: RunContext[ToolContext], text: str, subject: str = "") -> str:
        """Remember something about the user for later conversations.

        Args:
            text: What to remember, as a sentence that can be understood alone.
            subject: The topic, such as "favourite colour", if a newer statement should replace the older one;
                empty if both may be true.
        """
        user = ctx.deps.user_for("Memories")
        if not text.strip():
            raise ToolError("The text to remember is empty.")
        with tool_errors(MemoryFull):
            kept = await self._memory.remember(user, text.strip(), subject=subject, turn_id=ctx.deps.turn.id)
        return f"Remembered: {kept.memory.text}"

    @tool(idempotent=True)
    async def recall(self, ctx: RunContext[ToolContext], query: str = "", every_word: bool = False) -> str:
        """Find memories of the user.

        Args:
            query: Words to search for; empty for the newest memories.
            every_word: Find only memories that contain all of these words, instead of some.
        """
        user = ctx.deps.user_for("Memories")
        ctx.deps.check_private("memories are not read")
        if query.strip():
            fits = await self._memory.recall(user, query, limit=_SHOWN, every_word=every_word)
            found = [fit.memory for fit in fits]
            if every_word and not found:
                found = (await self._memory.resembling(user, query))[:_SHOWN]
        else:
            found = await self._memory.list_memories(user, limit=_SHOWN)
        if not found:
            return "No memory matches that." if query.strip() else "There are no memories yet."
        return _format_list(found)

    @tool(idempotent=True)
    async def correct(self, ctx: RunContext[ToolContext], query: str, text: str) -> str:
        """Replace one memory with the correct statement.

        Args:
            query: Words of the memory to correct. It must be the only memory that contains all of them.
            text: What to remember instead, as a sentence that can be understood alone.
        """
        user = ctx.deps.user_for("Memories")
        if not text.strip():
            raise ToolError("The new text is empty.")
        named = await self._memory.find_named(user, query)
        if not named:
            return await self._describe_no_match(ctx, user, query)
        if len(named) > 1:
            raise ToolError(f"{len(named)} memories contain these words; give more words of the memory.")
        now = await self._memory.edit(user, named[0].id, text=text.strip(), turn_id=ctx.deps.turn.id)
        return f"Remembered: {now.text}"

    @tool(idempotent=True)
    async def forget(self, ctx: RunContext[ToolContext], query: str) -> str:
        """Delete memories of the user.

        Args:
            query: Words of the memories to delete. Every memory that contains all of them is deleted; "name"
                means the user's own name, "sister's name" the sister's.
        """
        user = ctx.deps.user_for("Memories")
        gone = await self._memory.forget(user, query)
        if not gone:
            return await self._describe_no_match(ctx, user, query)
        if not ctx.deps.may_recall:  # the other users would read the memories
            return f"Forgotten: {len(gone)} of the user's memories."
        return "\n".join(f"Forgotten: {item.text}" for item in gone)

    async def _describe_no_match(self, ctx: RunContext[ToolContext], user: str, query: str) -> str:
        """Return the message for a change that matches no memory, with similar memories if allowed here."""
        message = "No memory contains all of these words."
        near = await self._memory.recall(user, query, limit=_SHOWN) if ctx.deps.may_recall else []
        return f"{message} Similar memories:\n{_format_list([fit.memory for fit in near])}" if near else message


def _format_list(found: Sequence[Remembered]) -> str:
    return "\n".join(f"- {item.text} ({item.created_at:%Y-%m-%d})" for item in found)
