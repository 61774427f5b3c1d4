"""Read turns: their rows, their ends and their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import NoReturn

from torana.errors import Erased, NotFound
from torana.messages import Inbound, Turn, TurnEvent
from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.store.engine.database import Database
from torana.store.rows import idempotency_keys, session_deletion
from torana.store.rows import turns as rows
from torana.store.rows.reports import calls, timings, turn_lists
from torana.store.rows.reports.timings import StepTime, Timing
from torana.store.rows.reports.turn_lists import TurnFilter
from torana.turns.calls import ToolCall, calls_of
from torana.turns.live import LiveTurn, LiveTurns

#: The number of characters of a message in a list of turns.
EXCERPT = 200


class TurnReader:
    """Finds turns, waits for their ends, and follows their events. Changes nothing."""

    def __init__(self, *, database: Database, live: LiveTurns, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._live = live
        self._clock = clock

    async def find_by_key(self, inbound: Inbound) -> Turn | None:
        """Return the turn that an earlier message with the same idempotency key became, if there is one.

        Raises ``KeyReused`` if the key was used with another message.
        """
        if inbound.key is None:
            return None
        return await self._database.run(partial(idempotency_keys.find, inbound=inbound, now=self._clock()))

    async def find_by_platform_message(self, account: str, message: str) -> Turn | None:
        """Return the turn that an account's connector created for a platform message, if there is one."""
        return await self._database.read(
            partial(rows.find_by_platform_message, account=account, message=message)
        )

    async def get(self, owner: str, turn_id: str) -> Turn:
        """Return the owner's turn from its row.

        Raises ``NotFound``, also for another owner's turn, and ``Erased`` for a deleted turn.
        """
        turn = await self._database.read(partial(rows.get, owner=owner, turn_id=turn_id))
        return turn or await self.raise_missing(owner, turn_id)

    async def list_turns(
        self, owner: str, which: TurnFilter, *, limit: int, after: str | None = None
    ) -> Page[Turn]:
        """Return the owner's turns, the newest first, without replies and with the beginnings of messages.

        Raises ``InvalidField`` for an invalid cursor.
        """
        before = read_cursor(after, TIME_KEY)
        work = partial(
            turn_lists.newest, owner=owner, which=which, before=before, limit=limit + 1, excerpt=EXCERPT
        )
        return cut(await self._database.run(work), limit, lambda turn: (turn.created_at, turn.id), TIME_KEY)

    async def steps(self, owner: str, turn_id: str) -> list[StepTime]:
        """Return the steps of the owner's turn by their start. Raises the errors of ``get``."""
        await self.get(owner, turn_id)
        work = partial(timings.of_turn, turn_id=turn_id, live=self._live_times(turn_id))
        return await self._database.run(work)

    async def calls(self, owner: str, turn_id: str) -> list[ToolCall]:
        """Return the tool calls of the owner's turn, in order. Raises the errors of ``get``."""
        turn = await self.get(owner, turn_id)
        records = await self._database.run(partial(calls.of_turn, turn=turn, live=self._live_times(turn_id)))
        return await asyncio.to_thread(calls_of, turn, records, self._clock())

    async def raise_missing(self, owner: str, turn_id: str) -> NoReturn:
        """Raise ``Erased`` for a turn that was deleted, else ``NotFound``."""
        if await self._database.read(partial(session_deletion.is_erased, owner=owner, turn_id=turn_id)):
            raise Erased(f"the turn {turn_id!r} was erased")
        raise NotFound(f"there is no turn {turn_id!r}")

    async def wait_for_end(self, turn: Turn) -> Turn:
        """Wait until the turn has ended. Cancelling the wait does not affect the turn.

        Raises ``Draining`` if the gateway stops first, ``StoreUnavailable`` if the end cannot be written, and
        ``NotFound`` as ``get`` does.
        """
        one = self._live.get(turn.id)
        if one is not None:
            return await one.wait_for_end()
        found = await self.get(turn.owner, turn.id)
        if found.has_ended:
            return found
        if self._database.replica is None:
            raise self._live.blocked.not_running_error(found.session_id)
        return await self._watch(found).wait_for_end()

    async def find_live(self, turn: Turn) -> LiveTurn | None:
        """Return a turn that has not ended, here or in another replica; None if it has ended.

        Raises as ``get`` does.
        """
        if (one := self._live.get(turn.id)) is not None or self._database.replica is None:
            return one
        found = await self.get(turn.owner, turn.id)
        return None if found.has_ended else self._watch(found)

    async def wait_for_delay(self, turn: Turn) -> None:
        """Wait until a live turn is held up because the disk cannot be written."""
        one = self._live.get(turn.id)
        await (one.delayed if one is not None else asyncio.Event()).wait()

    async def events(self, turn: Turn, *, after: str | None = None) -> AsyncGenerator[TurnEvent]:
        """Yield the turn's events after the event ``after`` until the turn ends.

        The first event of a turn is ``turn.accepted``. If the log has no events of the turn, they are made from
        its row.
        """
        log = self._live.log
        if await self._is_retried_elsewhere(turn):
            log.forget(turn.id)
        if not log.has_events(turn.id):
            found = await self.get(turn.owner, turn.id)
            if found.has_ended or self._database.replica is None:
                for event in _events_of_row(found):
                    yield event
                return
            self._watch(found)
        if (one := self._live.get(turn.id)) is not None and one.task is None:
            self._live.sharing.follow(turn.id)
        async for event in log.follow(turn.id, after=after):
            yield event

    def forget(self, turn_ids: Iterable[str]) -> None:
        """Drop the recorded events of deleted turns."""
        for turn_id in turn_ids:
            self._live.log.forget(turn_id)
            self._live.sharing.delete(turn_id)

    async def _is_retried_elsewhere(self, turn: Turn) -> bool:
        """Return whether another replica has queued or begun a later attempt than the one that ended here."""
        ended = self._live.log.ended_attempt(turn.id)
        if ended is None or self._database.replica is None:
            return False
        found = await self.get(turn.owner, turn.id)
        return found.attempt + (found.state == "queued") > ended

    def _watch(self, turn: Turn) -> LiveTurn:
        """Register a turn that another replica runs or queues."""
        return self._live.get(turn.id) or self._live.add(turn, elsewhere=True)

    def _live_times(self, turn_id: str) -> Sequence[Timing]:
        one = self._live.get(turn_id)
        return one.timings.times() if one is not None and one.timings is not None else ()


def _events_of_row(turn: Turn) -> list[TurnEvent]:
    attempt = max(turn.attempt, 1)
    events = [TurnEvent(f"{attempt}-1", "turn.accepted", {"id": turn.id, "channelId": turn.channel})]
    if turn.reply:
        events.append(TurnEvent(f"{attempt}-2", "message.snapshot", {"text": turn.reply}))
    if turn.has_ended:
        events.append(TurnEvent(f"{attempt}-{len(events) + 1}", turn.last_event, {}))
    return events
