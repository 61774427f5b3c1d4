"""Search the earlier messages of the conversation, including those that the model no longer receives."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Annotated, Literal

from pydantic import Field
from pydantic_ai import RunContext

from torana.aio import run_uncancellable
from torana.sessions import Sessions, SessionText, Speaker
from torana.sessions.history import indent_below
from torana.store.engine.tokenizer import words
from torana.tools.base import ToolContext, ToolGroup, tool

_EXCERPT = 1_000


class ConversationTools(ToolGroup):
    """The tools of the ``conversation`` skill."""

    def __init__(self, *, sessions: Sessions) -> None:
        self._sessions = sessions

    @tool(idempotent=True)
    async def earlier_messages(
        self,
        ctx: RunContext[ToolContext],
        speaker: Speaker = "any",
        order: Literal["first", "last"] = "last",
        count: Annotated[int, Field(ge=1, le=50)] = 1,
        about: str = "",
    ) -> str:
        """Quote earlier messages of this conversation.

        Args:
            speaker: Whose messages: "user", "assistant" or "any".
            order: From the beginning ("first") or from the end ("last") of the conversation.
            count: The number of messages.
            about: Only messages that contain all of these words; empty for any.
        """
        newest = order == "last"
        found: list[SessionText] = []
        async with aclosing(self._sessions.earlier(ctx.deps.turn, speaker=speaker, newest=newest)) as pages:
            async for page in pages:
                # Slots limit the threads. A cancelled call keeps its slot until its thread ends.
                found += await run_uncancellable(partial(_find, page, about, count - len(found)))
                if len(found) == count:
                    break
        if not found:
            return "No earlier message in this conversation matches."
        reader = ctx.deps.turn.user
        return "\n".join(_quote(item, reader=reader) for item in (reversed(found) if newest else found))


def _find(page: Iterable[SessionText], about: str, count: int) -> list[SessionText]:
    """Return the first ``count`` messages that contain all words. It may be slow: call it in a thread."""
    wanted = set(words(about))
    matching = (item for item in page if not wanted or wanted <= set(words(item.text)))
    return list(islice(matching, count))


def _quote(item: SessionText, *, reader: str | None) -> str:
    text = item.text if len(item.text) <= _EXCERPT else item.text[:_EXCERPT] + " …"
    user = "You" if item.user == reader else item.user or "Someone"
    return f"{'I' if item.speaker == 'assistant' else user} said: {indent_below(text)}"
