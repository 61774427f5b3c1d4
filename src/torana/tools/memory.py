"""Remember, recall and forget for the user who speaks."""

from __future__ import annotations

from pydantic_ai import RunContext

from torana.memory import Memory, MemoryFull
from torana.tools.base import ToolContext, ToolError, tool

_SHOWN = 10


class MemoryTools:
    """The tools of the ``memory`` skill."""

    def __init__(self, *, memory: Memory) -> None:
        self._memory = memory

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
            kept = await self._memory.remember(
                ctx.deps.turn.owner, user, text.strip(), subject=subject, turn_id=ctx.deps.turn.id
            )
        except MemoryFull as full:
            raise ToolError(full.detail) from full
        return f"Remembered: {kept}"

    @tool(idempotent=True)
    async def recall(self, ctx: RunContext[ToolContext], query: str = "") -> str:
        """Find what the user asked to be remembered.

        Args:
            query: Words of what is looked for; empty for the newest memories.
        """
        user = _user(ctx)
        if not ctx.deps.may_recall:
            raise ToolError("More than one person speaks in this channel; private memories are not read here.")
        owner = ctx.deps.turn.owner
        if query.strip():
            found = await self._memory.recall(owner, user, query, limit=_SHOWN)
        else:
            found = (await self._memory.all(owner, user))[:_SHOWN]
        if not found:
            return "Nothing is remembered about that." if query.strip() else "Nothing is remembered yet."
        return "\n".join(f"- {item.text} ({item.created_at:%Y-%m-%d})" for item in found)

    @tool(idempotent=True)
    async def forget(self, ctx: RunContext[ToolContext], query: str) -> str:
        """Forget what the user asked to be remembered.

        Args:
            query: Words of what is to be forgotten; every memory that holds all of them goes, or else the one
                that fits best.
        """
        user = _user(ctx)
        gone = await self._memory.forget(ctx.deps.turn.owner, user, query)
        if not gone:
            return "Nothing like that is remembered."
        return "\n".join(f"Forgotten: {item.text}" for item in gone)


def _user(ctx: RunContext[ToolContext]) -> str:
    if ctx.deps.turn.user is None:
        raise ToolError("Nothing can be remembered without knowing who speaks; send a userId with the message.")
    return ctx.deps.turn.user
