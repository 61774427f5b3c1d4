"""Sessions: the history for the model, and lists of sessions and messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torana.errors import NotFound
from torana.messages import File, Turn
from torana.paging import LARGEST_PAGE, MESSAGE_KEY, NEWEST_KEY, TIME_KEY, Order, Page, cut, read_cursor
from torana.sessions.listing import Session, SessionMessage, messages_of, session_of
from torana.sessions.trimming import first_to_keep
from torana.store.engine.database import Connection, Database
from torana.store.rows import attachments, transcript
from torana.store.rows import sessions as session_rows
from torana.store.rows.transcript import HISTORY_BYTES, Newest

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

#: Maximum number of turns that ``Sessions.earlier`` reads, in total and at a time.
_REACH, _READ = 500, 10

#: Maximum stored bytes for each token that the model has for messages at least. The room can be
#: four times as large, and a token takes up to 16 bytes.
_BYTES_PER_TOKEN = 64

#: Assumed stored bytes of a character in a turn that is too long by itself.
_BYTES_PER_CHARACTER = 16

#: A number above the ``seq`` of every turn.
_END = 2**63 - 1

Speaker = Literal["user", "assistant", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionText:
    """One message of a session."""

    speaker: Literal["user", "assistant"]
    #: The user of the turn, or None.
    user: str | None
    text: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWindow:
    """The part of a session for the model: the newest messages, and a summary of older ones.

    ``shared`` is true if several users have sent messages in the session.
    """

    messages: Sequence[ModelMessage]
    shared: bool = False
    #: None if all messages are included, or the others are not summarised yet.
    before: str | None = None
    #: The names of the tools that the session has opened, in order.
    opened_tools: Sequence[str] = ()


class Sessions:
    """Reads sessions; only turns write them."""

    def __init__(
        self,
        *,
        database: Database,
        history_messages: int,
        message_room: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``message_room`` returns how many tokens of the model's window messages may use at least, or None."""
        self._database = database
        self._history_messages = history_messages
        self._message_room = message_room

    async def window(self, turn: Turn) -> HistoryWindow:
        """Return the messages of the session before this turn for the model, oldest first.

        Returns at most ``history_messages``, in whole turns, so that a tool call is not separated from its
        result, and about as many bytes as the model's window holds. Of a single longer turn it returns the
        first and the last message. In a shared session each question starts with its user's name. ``before``
        summarises older messages if a summary exists (``Summaries``); the messages then begin after it.
        Otherwise they begin at a place that changes only after several turns (``first_to_keep``).
        """
        # Imported here because it imports pydantic-ai, which the commands that list sessions do not need.
        from torana.sessions import history

        newest, chosen = await self._database.read(partial(self._read_window, turn=turn))
        is_cut = newest.is_cut or len(chosen) < len(newest.history)
        turns_of: list[list[ModelMessage]] = []
        for seq, stored in chosen:
            body = self._shorten(stored) if isinstance(stored, Mapping) else stored
            await history.let_others_run(body)
            turns_of.append(history.load_readable(body, name_speakers=newest.shared))
            history.set_place(turns_of[-1], seq)
        if len(turns_of) == 1 and len(turns_of[0]) > self._history_messages:
            messages = [turns_of[0][0], turns_of[0][-1]]
        else:
            messages = [message for messages in turns_of for message in messages]
        return HistoryWindow(
            messages=messages,
            shared=newest.shared,
            before=newest.summary if is_cut else None,
            opened_tools=newest.opened_tools,
        )

    async def files(self, owner: str, turn_id: str) -> list[File]:
        """Return the stored files of the message of the owner's turn, in order."""
        return await self._database.run(partial(attachments.of_turn, owner=owner, turn_id=turn_id))

    async def earlier(
        self, turn: Turn, *, speaker: Speaker, newest: bool
    ) -> AsyncGenerator[Sequence[SessionText]]:
        """Yield messages of at most 500 turns before this turn, starting with the newest or the first.

        Messages from before the last reset of the session are left out. A few turns are read at a time, on
        demand, with only the columns that a search needs.
        """
        for skipped in range(0, _REACH, _READ):
            rows = await self._database.run(
                partial(
                    transcript.exchanges,
                    owner=turn.owner,
                    session_id=turn.session_id,
                    before=turn.seq,
                    newest=newest,
                    limit=_READ,
                    skipped=skipped,
                )
            )
            messages = [message for row in rows for message in _texts_in(row, newest=newest)]
            yield [item for item in messages if speaker in ("any", item.speaker)]
            if len(rows) < _READ:
                return

    async def list_sessions(
        self,
        owner: str,
        *,
        channel: str | None,
        user: str | None,
        archived: bool | None = None,
        limit: int,
        after: str | None,
    ) -> Page[Session]:
        """Return the owner's sessions, the most recently used first.

        With ``channel`` or ``user``, only the sessions of the channel, or with turns of the user. ``archived``
        None selects archived and other sessions.
        """
        work = partial(
            session_rows.list_sessions,
            owner=owner,
            channel=channel,
            user=user,
            archived=archived,
            before=read_cursor(after, TIME_KEY),
            limit=limit + 1,
        )
        found = [session_of(row) for row in await self._database.run(work)]
        return cut(found, limit, lambda item: (item.updated_at, item.id), TIME_KEY)

    async def get(self, owner: str, session_id: str) -> Session:
        """Return the owner's session. Raises ``NotFound``, also for another owner's."""
        row = await self._database.run(partial(session_rows.get, owner=owner, session_id=session_id))
        if row is None:
            raise NotFound(f"there is no session {session_id!r}")
        return session_of(row)

    async def messages(
        self, owner: str, session_id: str, *, limit: int, after: str | None, order: Order = "oldest"
    ) -> Page[SessionMessage]:
        """Return the messages, also queued ones, in the order of turns, each question before its answer.

        With ``order="newest"``, all of this is reversed. Raises ``InvalidField`` for a cursor of another order.
        """
        await self.get(owner, session_id)
        newest = order == "newest"
        kind, start, step = (NEWEST_KEY, -_END, -1) if newest else (MESSAGE_KEY, 0, 1)
        place, role = read_cursor(after, kind) or (start, "")
        # One more than the page detects a next page; the cursor's turn may have no messages left.
        work = partial(
            session_rows.list_turns,
            owner=owner,
            session_id=session_id,
            from_seq=abs(place),
            limit=limit + 2,
            newest=newest,
        )
        rows = await self._database.run(work)
        placed = [(step * row["seq"], message) for row in rows for message in messages_of(row)[::step]]
        # The role of an answer is below that of its question.
        behind = [it for it in placed if it[0] > place or (it[1].role > role if newest else it[1].role < role)]
        page = cut(
            behind,
            limit,
            lambda item: (item[0], item[1].role),
            kind,
            size=lambda item: len(item[1].content),
        )
        return Page(items=[message for _, message in page.items], next=page.next)

    async def pages(self, owner: str, session_id: str) -> AsyncGenerator[Sequence[SessionMessage]]:
        """Yield every message in pages that are read on demand.

        Raises ``NotFound`` at the beginning, and later if the session is deleted in the meantime.
        """
        after: str | None = None
        while True:
            page = await self.messages(owner, session_id, limit=LARGEST_PAGE, after=after)
            yield page.items
            if page.next is None:
                return
            after = page.next

    def _read_window(
        self, connection: Connection, turn: Turn
    ) -> tuple[Newest, list[tuple[int, bytes | Mapping[Any, Any]]]]:
        """Return the newest turns, and those that fit; of a turn that is too long, its message and reply."""
        owner, session_id = turn.owner, turn.session_id
        turns, size = self._history_messages // 2 + 1, self._bytes_limit()
        newest = transcript.newest(connection, owner, session_id, turns_limit=turns, bytes_limit=size)
        return newest, [
            (seq, body if body is not None else transcript.exchange_at(connection, owner, session_id, seq=seq))
            for seq, body in self._fit(newest)
        ]

    def _shorten(self, said: Mapping[Any, Any]) -> bytes:
        """Return the beginnings of the message and the reply of a turn as its history."""
        from torana.sessions import history

        length = self._bytes_limit() // _BYTES_PER_CHARACTER
        messages = history.exchange(said["content"][:length], (said["reply"] or "")[:length])
        return history.dump(messages, speaker=said["user"])[0]

    def _bytes_limit(self) -> int:
        """Return the maximum stored bytes of the turns in a window."""
        room = self._message_room()
        return HISTORY_BYTES if room is None else min(HISTORY_BYTES, room * _BYTES_PER_TOKEN)

    def _fit(self, newest: Newest) -> list[tuple[int, bytes | None]]:
        """Return the places and messages of the turns that fit, oldest first; always the newest turn."""
        rows = newest.history[::-1]
        if sum(count for _, _, count in rows) > self._history_messages:
            rows = [row for row in rows if row[0] > newest.summary_to] or rows[-1:]
        counts = [count for _, _, count in rows]
        first = first_to_keep(counts, [place for place, _, _ in rows], self._history_messages)
        return [(place, body) for place, body, _ in rows[first:]]


def _texts_in(row: Mapping[Any, Any], *, newest: bool) -> list[SessionText]:
    """Return the messages of a turn's row, in order or the latest first."""
    pair = [SessionText(speaker="user", user=row["user"], text=row["content"], at=row["created_at"])]
    if row["reply"]:
        pair.append(replace(pair[0], speaker="assistant", text=row["reply"]))
    return pair[::-1] if newest else pair
