"""A session's history: what the model is shown of it, and what was said earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Literal

from pydantic_ai.messages import ModelMessage

from torana.messages import Turn
from torana.sessions import history
from torana.store import transcript, turns
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


class Sessions:
    """Reads what is written of sessions; only turns write it."""

    def __init__(self, *, database: Database, history_messages: int) -> None:
        self._database = database
        self._history_messages = history_messages

    async def window(self, turn: Turn, *, name_speakers: bool) -> list[ModelMessage]:
        """What the model is shown of the session before this turn: its newest messages, oldest first.

        At most ``history_messages``, in whole turns, so that no tool call is parted from its result; of a
        single turn longer than that, its question and its answer. In a shared room each question is given
        with its speaker's name.
        """
        rows = await self._database.run(
            partial(
                transcript.newest_history,
                owner=turn.owner,
                session_id=turn.session_id,
                before=turn.seq,
                turns_limit=self._history_messages // 2 + 1,
            )
        )
        chosen = self._fit(rows)
        turns_of = [history.load(body, name_speakers=name_speakers) for body in chosen]
        if len(turns_of) == 1 and len(turns_of[0]) > self._history_messages:
            return [turns_of[0][0], turns_of[0][-1]]
        return [message for messages in turns_of for message in messages]

    async def is_shared(self, turn: Turn) -> bool:
        """Whether more than one user has spoken in the turn's session."""
        return await self._database.run(partial(turns.is_shared, owner=turn.owner, session_id=turn.session_id))

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
