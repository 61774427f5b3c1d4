"""Look up what was said earlier in the channel, also what the model is no longer shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_ai import RunContext

from torana.sessions import Said, Sessions, Speaker
from torana.store.words import words
from torana.tools.base import ToolContext, tool

_EXCERPT = 1_000


class ConversationTools:
    """The tools of the ``conversation`` skill."""

    def __init__(self, *, sessions: Sessions) -> None:
        self._sessions = sessions

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The functions."""
        return [self.earlier_messages]

    @tool(idempotent=True)
    async def earlier_messages(
        self,
        ctx: RunContext[ToolContext],
        speaker: Speaker = "any",
        order: Literal["first", "last"] = "last",
        count: Annotated[int, Field(ge=1, le=50)] = 1,
        about: str = "",
    ) -> str:
        """Quote what was said earlier in this channel.

        Args:
            speaker: Whose messages: "user", "assistant" or "any".
            order: From the beginning ("first") or from the end ("last") of the conversation.
            count: How many.
            about: Only those that hold all of these words; empty for any.
        """
        newest = order == "last"
        said = await self._sessions.earlier(ctx.deps.turn, speaker=speaker, newest=newest)
        wanted = set(words(about))
        found = [item for item in said if wanted <= set(words(item.text))][:count]
        if not found:
            return "Nothing like that was said earlier in this channel."
        asking = ctx.deps.turn.user
        return "\n".join(_quote(item, asking=asking) for item in (reversed(found) if newest else found))


def _quote(item: Said, *, asking: str | None) -> str:
    text = item.text if len(item.text) <= _EXCERPT else item.text[:_EXCERPT] + " …"
    return f"{_who(item, asking)} said: {text}"


def _who(item: Said, asking: str | None) -> str:
    if item.speaker == "assistant":
        return "I"
    return "You" if item.user == asking else item.user or "Someone"
