"""Bodies of the search over messages."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from torana.api.schemas.base import Page, ReadFrom, Renamed, Time, Wire
from torana.paging import MESSAGE_KEY, NEWEST_KEY, encode_cursor
from torana.sessions.search import Found, MessageHit


class MatchBody(Wire):
    """A place in a snippet, in code points; `end` is exclusive."""

    start: int
    end: int


class HitBody(Renamed):
    """A message that contains words of the query."""

    session_id: str
    turn_id: Annotated[str, ReadFrom("message.turn_id")]
    message_id: Annotated[str, ReadFrom("message.id")]
    role: Annotated[Literal["user", "assistant"], ReadFrom("message.role")]
    channel_id: Annotated[str, ReadFrom("channel")]
    user_id: Annotated[str | None, ReadFrom("message.user")]
    snippet: Annotated[str, Field(description="The part of the message with the first match.")]
    offset: Annotated[int, Field(description="The place of the snippet in the message, in code points.")]
    matches: Annotated[list[MatchBody], Field(description="The matches in the snippet, in order.")]
    page: str
    """The value of `after` for a list of the session's messages from this turn on."""
    page_before: str
    """The value of `after` for a list in the order `newest` from before this turn."""
    created_at: Annotated[Time, ReadFrom("message.at")]

    @classmethod
    def from_hit(cls, hit: MessageHit) -> Self:
        """Return the body of a hit."""
        return cls.from_object(
            hit,
            matches=[MatchBody(start=start, end=end) for start, end in hit.matches],
            page=encode_cursor((hit.seq - 1, ""), MESSAGE_KEY),
            page_before=encode_cursor((-hit.seq, "user"), NEWEST_KEY),
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
