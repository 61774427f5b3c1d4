"""A session's history: what the model is shown of it, and what was said earlier."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Literal

from pydantic_ai.messages import ModelMessage

from torana.errors import NotFound
from torana.messages import File, Turn
from torana.paging import LARGEST_PAGE, MESSAGE_KEY, TIME_KEY, Page, cut, read_cursor
from torana.sessions import history
from torana.sessions.listing import Message, Session, messages_of, session_of
from torana.store import attachments, transcript
from torana.store import sessions as session_rows
from torana.store.database import Database

#: How far back ``Sessions.earlier`` looks, in turns.
_REACH = 500

Speaker = Literal["user", "assistant", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One thing that was said in a session."""

    speaker: Literal["user", "assistant"]
    #: Who spoke, or was answered; None is someone without a name.
    user: str | None
    text: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a turn is shown of its session: the newest messages, and in short what stood before them.

    ``shared`` tells whether more than one user has spoken in it.
    """

    messages: Sequence[ModelMessage]
    shared: bool = False
    #: None where the messages are all there is, or nothing is told of the others yet.
    before: str | None = None


class Sessions:
    """Reads what is written of sessions; only turns write it."""

    def __init__(self, *, database: Database, history_messages: int) -> None:
        self._database = database
        self._history_messages = history_messages

    async def window(self, turn: Turn) -> Window:
        """What the model is shown of the session before this turn: its newest messages, oldest first.

        At most ``history_messages``, in whole turns, so that no tool call is parted from its result; of a
        single turn longer than that, its question and its answer. In a shared room each question is given
        with its speaker's name. What does not fit is told in short, once it was summarised (``Summaries``).
        """
        limit = self._history_messages // 2 + 1
        work = partial(transcript.newest, owner=turn.owner, session_id=turn.session_id, turns_limit=limit)
        newest = await self._database.run(work)
        chosen = self._fit(newest.history)
        is_cut = len(chosen) < len(newest.history) or len(newest.history) == limit
        turns_of = [history.load(body, name_speakers=newest.shared) for body in chosen]
        if len(turns_of) == 1 and len(turns_of[0]) > self._history_messages:
            messages = [turns_of[0][0], turns_of[0][-1]]
        else:
            messages = [message for messages in turns_of for message in messages]
        return Window(messages=messages, shared=newest.shared, before=newest.summary if is_cut else None)

    async def files(self, owner: str, turn_id: str) -> list[File]:
        """What came with the message of the owner's turn, in its order, as long as it is kept."""
        return await self._database.run(partial(attachments.of_turn, owner=owner, turn_id=turn_id))

    async def earlier(self, turn: Turn, *, speaker: Speaker, newest: bool) -> list[Said]:
        """What was said before this turn, from the newest or from the first; at most 500 turns of it."""
        rows = await self._database.run(
            partial(
                transcript.exchanges,
                owner=turn.owner,
                session_id=turn.session_id,
                before=turn.seq,
                newest=newest,
                limit=_REACH,
            )
        )
        said: list[Said] = []
        for row in rows:
            pair = [Said(speaker="user", user=row["user"], text=row["content"], at=row["created_at"])]
            if row["reply"]:
                pair.append(replace(pair[0], speaker="assistant", text=row["reply"]))
            said.extend(reversed(pair) if newest else pair)
        return [item for item in said if speaker in ("any", item.speaker)]

    async def listed(
        self, owner: str, *, channel: str | None, user: str | None, limit: int, after: str | None
    ) -> Page[Session]:
        """The owner's sessions, the last used first: of a channel, or those in which a user spoke."""
        work = partial(
            session_rows.listed,
            owner=owner,
            channel=channel,
            user=user,
            before=read_cursor(after, TIME_KEY),
            limit=limit + 1,
        )
        found = [session_of(row) for row in await self._database.run(work)]
        return cut(found, limit, lambda item: (item.updated_at, item.id), TIME_KEY)

    async def get(self, owner: str, session_id: str) -> Session:
        """The owner's session. Raises ``NotFound``, also for another owner's."""
        row = await self._database.run(partial(session_rows.get, owner=owner, session_id=session_id))
        if row is None:
            raise NotFound(f"there is no session {session_id!r}")
        return session_of(row)

    async def messages(self, owner: str, session_id: str, *, limit: int, after: str | None) -> Page[Message]:
        """What was said, in the order of turns, a question before its answer; what waits is there too."""
        await self.get(owner, session_id)
        seq, role = read_cursor(after, MESSAGE_KEY) or (0, "")
        # One more than the page tells of a next one; of the turn that the cursor stands in nothing may be left.
        work = partial(session_rows.said, owner=owner, session_id=session_id, from_seq=seq, limit=limit + 2)
        rows = await self._database.run(work)
        said = [(row["seq"], message) for row in rows for message in messages_of(row)]
        behind = [item for item in said if item[0] > seq or item[1].role < role]
        page = cut(behind, limit, lambda item: (item[0], item[1].role), MESSAGE_KEY)
        return Page(items=[message for _, message in page.items], next=page.next)

    async def pages(self, owner: str, session_id: str) -> AsyncGenerator[Sequence[Message]]:
        """Every message, page by page as they are asked for.

        Raises ``NotFound`` at the beginning, and later when the session is deleted meanwhile.
        """
        after: str | None = None
        while True:
            page = await self.messages(owner, session_id, limit=LARGEST_PAGE, after=after)
            yield page.items
            if page.next is None:
                return
            after = page.next

    def _fit(self, newest_first: Sequence[tuple[bytes, int]]) -> list[bytes]:
        """As many whole turns as fit, oldest first; the newest one in any case."""
        chosen: list[bytes] = []
        room = self._history_messages
        for body, count in newest_first:
            if chosen and count > room:
                break
            chosen.append(body)
            room -= count
        return chosen[::-1]
