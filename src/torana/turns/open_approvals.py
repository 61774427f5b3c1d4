"""The approval questions of waiting turns, as responses to the messages that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from torana.messages import Turn
from torana.store.engine.database import Connection, Database
from torana.store.rows import approvals as rows
from torana.store.rows import turns as turn_rows
from torana.store.rows.approval_questions import question_after
from torana.store.rows.approvals import Approval
from torana.turns.journal import settled_text
from torana.turns.reader import TurnReader


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTurn:
    """A turn that waits for an approval, the approval, and the turn's text so far with the question."""

    turn: Turn
    approval: Approval
    text: str


class OpenApprovals:
    """Finds the questions that an HTTP response contains instead of the end of a turn."""

    def __init__(self, *, database: Database, reader: TurnReader, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._reader = reader
        self._clock = clock

    async def wait_for_question(self, turn: Turn) -> WaitingTurn:
        """Wait until a call of the turn waits for an approval, and return its oldest open question.

        From then on the question counts as contained in a response, so that a yes or a no of the same sender in
        the same channel answers it, also after a restart.
        """

        def find(connection: Connection) -> WaitingTurn | None:
            return _find_question(connection, turn, self._clock())

        one = await self._reader.find_live(turn)
        if one is None:  # the wait for the end of the turn reports it
            await asyncio.Event().wait()
            raise AssertionError("no event is ever set")
        # Another replica may have asked before this one was told.
        may_ask = one.awaits_approval or one.turn.state == "waiting" or one.task is None
        while True:
            approval_requested = one.approval_requested
            if may_ask and (found := await self._database.run(find)) is not None:
                return found
            await approval_requested.wait()
            may_ask = True

    async def asking_turn(self, turn: Turn) -> Turn:
        """Return the turn whose approval a message decided, or the turn of the message itself."""

        def find(connection: Connection) -> Turn | None:
            decided = rows.decided_by_message(connection, turn.id)
            return decided and turn_rows.get(connection, turn.owner, decided.turn_id)

        return await self._database.run(find) or turn


def _find_question(connection: Connection, turn: Turn, now: datetime) -> WaitingTurn | None:
    asked = rows.open_of(connection, turn.owner, turn.id, now)
    current = turn_rows.get(connection, turn.owner, turn.id)
    if not asked or current is None:
        return None
    rows.note_reply(connection, asked[0], now)
    until = f"The question expires at {asked[0].expires_at:%Y-%m-%d %H:%M} UTC."
    said = settled_text(connection, current).strip()
    text = f"{question_after(said, asked[0].tool, asked[0].arguments)}\n\n{until}"
    return WaitingTurn(turn=current, approval=asked[0], text=text)
