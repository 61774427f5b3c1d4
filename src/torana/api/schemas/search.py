"""Bodies of the search over messages."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from torana.api.schemas.base import Page, Time, Wire
from torana.paging import MESSAGE_KEY, NEWEST_KEY, encode_cursor
from torana.sessions.search import Found, MessageHit


class MatchBody(Wire):
    """A place in a snippet, in code points; `end` is exclusive."""

    start: int
    end: int


class HitBody(Wire):
    """A message that contains words of the query."""

    session_id: str
    turn_id: str
    message_id: str
    role: Literal["user", "assistant"]
    channel_id: str
    user_id: str | None
    snippet: Annotated[str, Field(description="The part of the message with the first match.")]
    offset: Annotated[int, Field(description="The place of the snippet in the message, in code points.")]
    matches: Annotated[list[MatchBody], Field(description="The matches in the snippet, in order.")]
    page: str
    """The value of `after` for a list of the session's messages from this turn on."""
    page_before: str
    """The value of `after` for a list in the order `newest` from before this turn."""
    created_at: Time

    @classmethod
    def from_hit(cls, hit: MessageHit) -> Self:
        """Return the body of a hit."""
        return cls.from_object(
            hit,
            turn_id=hit.message.turn_id,
            message_id=hit.message.id,
            role=hit.message.role,
            channel_id=hit.channel,
            user_id=hit.message.user,
            matches=[MatchBody(start=start, end=end) for start, end in hit.matches],
            page=encode_cursor((hit.seq - 1, ""), MESSAGE_KEY),
            page_before=encode_cursor((-hit.seq, "user"), NEWEST_KEY),
            created_at=hit.message.at,
        )


class SearchBody(Page[HitBody]):
    """A page of hits."""

    complete: bool
    """False while older turns are not indexed yet. Each search indexes some of them."""

    @classmethod
    def from_found(cls, found: Found) -> Self:
        """Return the body of a page."""
        items = [HitBody.from_hit(hit) for hit in found.page.items]
        return cls(items=items, next=found.page.next, complete=found.complete)
