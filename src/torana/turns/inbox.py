"""The durable inbox: every message that comes in, and what is asked of it afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn, TypeAlias

from torana.errors import (
    CrashedRepeatedly,
    Draining,
    Erased,
    Expired,
    NotFound,
    StoreUnavailable,
)
from torana.limits.budgets import Admitted, Budgets, RequestTokens
from torana.limits.standings import Standing
from torana.messages import Inbound, Turn, TurnEvent, new_id
from torana.sessions import history
from torana.sessions.titles import title_of
from torana.store import deletion, keys
from torana.store import turns as rows
from torana.store.audit import Act, on_a_users, recorded
from torana.store.database import Connection, Database, T
from torana.store.turns import Accepted, Ending, NewTurn
from torana.turns import endings
from torana.turns.approvals import Approvals
from torana.turns.controls import Controls
from torana.turns.journal import settled_text
from torana.turns.log.base import EventLog
from torana.turns.questions import read_answer
from torana.turns.queue import Queue
from torana.turns.runner import Runner

#: From so many deaths on a turn is a suspect, and runs alone.
_SUSPECT = 2

#: What waited longer than this when the gateway starts is not acted on any more.
_STALE = timedelta(days=1)

_log = logging.getLogger(__name__)

#: Something that is kept together with a message, or not at all.
Also: TypeAlias = Callable[[Connection, Turn], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What became of a message: its turn, and how the limits stand that it was counted on.

    A message that is not ``new`` is a turn that was known by its key; it was counted on none.
    """

    turn: Turn
    new: bool
    standings: Sequence[Standing] = ()


class Turns:
    """Takes messages in, runs each session's turns one at a time in the order of acceptance, keeps the answers.

    One process owns the database; the tasks that run turns live here.
    """

    def __init__(
        self,
        *,
        database: Database,
        runner: Runner,
        approvals: Approvals,
        log: EventLog,
        budgets: Budgets,
        queue: Queue,
        max_crashes: int,
        clock: Callable[[], datetime],
    ) -> None:
        """``runner``, ``approvals``, ``log`` and ``budgets`` are over the same database, and nobody else's."""
        self._database = database
        self._runner = runner
        self.approvals = approvals
        self._log = log
        self._budgets = budgets
        self._queue = queue
        self._max_crashes = max_crashes
        self._clock = clock
        self._controls = Controls(database=database, cancel=self.cancel, approvals=self.approvals)
        self._accepting = True
        #: What is on its way into the store, with the message if it is one.
        self._writing: dict[asyncio.Task[Any], Inbound | None] = {}
        #: Control words that are being obeyed. A /stop may wait for as long as a tool takes to tidy up.
        self._obeying: set[asyncio.Task[Submitted]] = set()
        self._isolating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up what an earlier process left unfinished, in order.

        A turn over which two processes died runs alone, the others after it, until it has settled a step or
        ended: a poisonous message is found out, and its neighbours live.
        """
        for turn in await self._database.run(rows.interrupted):
            await self._end(turn, endings.cut_off(turn, await self._settled_text(turn), self._clock()))
        unfinished = await self._database.run(rows.recover)
        for turn in unfinished:
            self._runner.expect(turn, settled=await self._settled_text(turn))
        alive = [turn for turn in unfinished if not await self._given_up(turn)]
        suspects = [turn for turn in alive if turn.crashes >= _SUSPECT]
        if suspects:
            self._runner.holding = True
            # One of each session at most: what waits behind it comes in its order.
            sessions = dict.fromkeys(turn.session_id for turn in suspects)
            self._isolating = asyncio.create_task(self._isolate(sessions))
        else:
            await self._release()

    async def stop(self, *, grace: float) -> None:
        """Take no more messages, give running turns ``grace`` seconds, and leave the rest to the next start."""
        self._accepting = False
        while self._writing:
            await asyncio.wait(self._writing)
        if self._isolating is not None:
            self._isolating.cancel()
        await self._runner.stop(grace=grace)
        if self._obeying:  # whom they wait for has ended, or does so after the next start
            await asyncio.wait(self._obeying)
        with suppress(StoreUnavailable):
            await self._database.run(rows.requeue)

    @property
    def draining(self) -> bool:
        """Whether no more messages are taken."""
        return not self._accepting

    def check_accepting(self) -> None:
        """Raise ``Draining`` when no more messages are taken."""
        if not self._accepting:
            raise Draining(headers={"Retry-After": "5"})

    async def accept(self, inbound: Inbound) -> Turn:
        """The turn of a message: see ``submit``."""
        return (await self.submit(inbound)).turn

    async def submit(
        self, inbound: Inbound, *, rates: Sequence[Standing] = (), also: Also | None = None
    ) -> Submitted:
        """Write a message down and see to it that it is answered. When this returns, it is durable.

        Without a channel the turn gets one of its own. A message with a key that was accepted before is that
        turn, and no other is made. Raises ``Draining``, ``StoreUnavailable``, ``QueueFull``, ``Overloaded``,
        ``SessionBusy``, ``KeyReused`` or ``BudgetSpent``; then nothing was accepted. Cancelling the call does
        not take the message back: it may still be answered. ``rates`` are limits that were tested before, for
        the headers of the answer and of a refusal. ``also`` is done in the same transaction once the message
        is written down, and what it raises undoes both; such a message is no control word, and nobody's yes.
        """
        self.check_accepting()
        if also is None and (word := self._controls.word(inbound.content)):
            task = asyncio.create_task(self._obey(word, inbound))
            self._obeying.add(task)
            task.add_done_callback(self._obeying.discard)
            return await asyncio.shield(task)  # it is carried out also when its caller goes away
        if (
            also is None
            and read_answer(inbound.content) is not None
            and (answer := await self._carried_out(self._answer(inbound)))
        ):
            return answer
        await self._database.check_kept()
        self.check_accepting()  # it may have begun to stop since
        arriving = [message for message in self._writing.values() if message is not None]
        self._queue.check(inbound, [*self._runner.live, *arriving])
        return await self._carried_out(self._submit(inbound, rates, also), inbound)

    async def say(self, inbound: Inbound, text: str, *, also: Also) -> Turn:
        """Write a message down together with its answer, which takes no agent, and have that delivered.

        It is said at once, whatever runs in its session, and the model is shown both from then on. ``also`` is
        as in ``submit``. Raises ``Draining`` or ``StoreUnavailable``; then nothing was kept.
        """
        self.check_accepting()
        return await self._carried_out(self._say(inbound, text, also))

    async def known(self, inbound: Inbound) -> Turn | None:
        """The turn that a message with the same key became, if there is one.

        Raises ``KeyReused`` where the key was used with another message.
        """
        if inbound.key is None:
            return None
        return await self._database.run(partial(keys.find, inbound=inbound, now=self._clock()))

    async def heard(self, account: str, message: str) -> Turn | None:
        """The turn that a connector's account made of a platform's message before."""
        return await self._database.run(partial(rows.heard, account=account, message=message))

    @property
    def live(self) -> Sequence[Turn]:
        """The turns that have not ended, as they were when they were accepted or taken up."""
        return self._runner.live

    def counts(self) -> dict[str, int]:
        """How many turns run at this moment, wait for somebody's approval, and wait for their turn."""
        running, waiting = self._runner.running, self._runner.waiting
        queued = len(self._runner.live) - running
        return {"running": running - waiting, "waiting": waiting, "queued": queued}

    @property
    def stuck(self) -> int:
        """The number of sessions in which nothing runs until the end of a turn can be written."""
        return self._runner.stuck

    def asking(self, session_id: str) -> str | None:
        """The turn of a session that waits for somebody's approval, and with it all that stand behind it."""
        return self._runner.asking(session_id)

    async def get(self, owner: str, turn_id: str) -> Turn:
        """The owner's turn as its row says.

        Raises ``NotFound``, also for another owner's, and ``Erased`` for one that was deleted.
        """
        turn = await self._database.run(partial(rows.get, owner=owner, turn_id=turn_id))
        return turn or await self._missing(owner, turn_id)

    async def cancel(self, owner: str, turn_id: str, *, act: Act | None = None) -> Turn:
        """Stop a turn, whether it runs or waits; returns it as it ended. One that has ended is left as it is.

        A message that a running turn took as a further input is cancelled with that turn. An operator's act is
        written down where the turn is a user's own. Raises ``NotFound``.
        """
        turn = await self._carried_out(self._cancel(owner, turn_id, act))
        return turn if turn.ended else await self.ended(turn)

    async def retry(self, owner: str, turn_id: str, *, act: Act | None = None) -> Turn:
        """Put a failed turn at its session's tail again, with its journal: what was settled is not repeated.

        An operator's act is written down where the turn is a user's own. Raises ``NotFound``, ``NotFailed`` for
        a turn that did not fail, ``QueueFull`` and ``BudgetSpent``.
        """
        await self._database.check_kept()
        self.check_accepting()
        return await self._carried_out(self._retry(owner, turn_id, act))

    async def ended(self, turn: Turn) -> Turn:
        """Wait until the turn has ended. Cancelling the wait does nothing to the turn.

        Raises ``Draining`` when the gateway stops before that, ``StoreUnavailable`` where its end cannot be
        written, and ``NotFound`` as ``get`` does.
        """
        ending = self._runner.ending(turn.id)
        if ending is not None:
            return await asyncio.shield(ending)
        found = await self.get(turn.owner, turn.id)
        if not found.ended:
            raise self._runner.why_unanswered(found.session_id)
        return found

    async def delay(self, turn: Turn) -> None:
        """Wait until the turn is held up because the disk cannot be written; it ends when it can be again."""
        await self._runner.delay(turn.id)

    def forget(self, turn_ids: Iterable[str]) -> None:
        """Drop what is kept of the events of ended turns, which were deleted."""
        for turn_id in turn_ids:
            self._log.forget(turn_id)

    async def events(self, turn: Turn, *, after: str | None = None) -> AsyncGenerator[TurnEvent]:
        """What happens in the turn, from the event behind ``after`` to its end: replay, then follow.

        The first event says that it was accepted; a turn that nobody follows any more is told from its row.
        """
        if not self._log.knows(turn.id):
            for event in _told_from_row(await self.get(turn.owner, turn.id)):
                yield event
            return
        async for event in self._log.follow(turn.id, after=after):
            yield event

    async def _carried_out(self, work: Coroutine[Any, Any, T], inbound: Inbound | None = None) -> T:
        """What the work returns; it goes on when its caller goes away.

        The store may keep what it wrote, and then somebody has to run it, or to tell the end.
        """
        task = asyncio.create_task(work)
        self._writing[task] = inbound
        task.add_done_callback(self._writing.pop)
        return await asyncio.shield(task)

    async def _submit(self, inbound: Inbound, rates: Sequence[Standing], also: Also | None) -> Submitted:
        new = replace(self._new(inbound), title=title_of(inbound.content))
        work = partial(self._accept, inbound=inbound, new=new, rates=rates, also=also)
        accepted, admitted = await self._database.run(work)
        turn = accepted.turn
        if admitted is None:
            return Submitted(turn=turn, new=False)  # somebody else's request with the same key came first
        self._budgets.tell(admitted.warned)
        _log.info("turn accepted", extra={"turn_id": turn.id, "session_id": turn.session_id})
        self._begin(turn, request=admitted.request)
        if accepted.interrupts is not None:
            self._runner.cancel(accepted.interrupts)
        if accepted.steers is not None:
            self._runner.steer(accepted.steers)
        return Submitted(turn=turn, new=True, standings=admitted.standings)

    def _accept(
        self,
        connection: Connection,
        inbound: Inbound,
        new: NewTurn,
        rates: Sequence[Standing],
        also: Also | None,
    ) -> tuple[Accepted, Admitted | None]:
        accepted = keys.accept(connection, inbound, new, hold=self._runner.holding)
        if accepted.turn.id != new.turn_id:
            return accepted, None
        self._runner.check_runs(accepted.turn.session_id)
        admitted = self._budgets.admit(connection, accepted.turn, rates=rates)
        if also is not None:
            also(connection, accepted.turn)
        return accepted, admitted

    async def _say(self, inbound: Inbound, text: str, also: Also) -> Turn:
        new = self._new(inbound)
        kept = history.dump(history.exchange(inbound.content, text), speaker=inbound.user)

        def said(connection: Connection) -> Turn:
            turn = rows.answer_at_once(connection, inbound, new, text, history=kept)
            also(connection, turn)
            return turn

        turn = await self._database.run(said)
        self._runner.tell_ends([turn])
        return turn

    async def _cancel(self, owner: str, turn_id: str, act: Act | None) -> Turn:
        work = partial(endings.cancel, owner=owner, turn_id=turn_id, act=act, at=self._clock())
        turn, ended = await self._database.run(work)
        turn = turn or await self._missing(owner, turn_id)
        self._runner.tell_ends(ended)
        self._runner.cancel(turn.id)
        return await self.get(owner, turn_id)

    async def _retry(self, owner: str, turn_id: str, act: Act | None) -> Turn:
        turn = await self.get(owner, turn_id)
        # What it settled is read before it runs again: from then on its events belong to whoever runs it.
        settled = await self._settled_text(turn)
        work = partial(self._taken_up, owner=owner, turn_id=turn_id, hold=self._runner.holding)
        again = await self._database.run(recorded(work, on_a_users(turn.owner, act), "turn.retry", turn_id))
        again = again or await self._missing(owner, turn_id)
        self._begin(again, settled=settled)
        return again

    def _taken_up(self, connection: Connection, owner: str, turn_id: str, *, hold: bool) -> Turn | None:
        turn = rows.retry(connection, owner, turn_id, hold=hold)
        if turn is not None:
            self._runner.check_runs(turn.session_id)
            self._budgets.admit(connection, turn, messages=0)
        return turn

    async def _missing(self, owner: str, turn_id: str) -> NoReturn:
        """Say that there is no such turn, or none any more."""
        if await self._database.run(partial(deletion.is_erased, owner=owner, turn_id=turn_id)):
            raise Erased(f"the turn {turn_id!r} was erased")
        raise NotFound(f"there is no turn {turn_id!r}")

    def _begin(self, turn: Turn, *, settled: str = "", request: RequestTokens | None = None) -> None:
        self._runner.expect(turn, settled=settled, request=request)
        if turn.state == "running":
            self._runner.start(turn)

    async def _obey(self, word: str, inbound: Inbound) -> Submitted:
        """Do what a control word says, and write it down as a turn that is over already.

        One that is known is not obeyed again: by now it would hit something else.
        """
        new = self._new(inbound)
        known = await self._database.run(partial(keys.find, inbound=inbound, now=new.at))
        if known is not None:
            return Submitted(turn=known, new=False)
        text = await self._controls.obey(word, owner=inbound.owner, channel=new.channel)
        work = partial(keys.answer_at_once, inbound=inbound, new=new, text=text)
        return self._answered(await self._database.run(work), new)

    async def _answer(self, inbound: Inbound) -> Submitted | None:
        """What became of a yes or a no that somebody waits for; None for any other message."""
        new = self._new(inbound)
        turn = await self._controls.answer(inbound, new)
        return turn and self._answered(turn, new)

    def _answered(self, turn: Turn, new: NewTurn) -> Submitted:
        """What became of a message that took no agent; a known one has ended before."""
        is_new = turn.id == new.turn_id
        if is_new:
            self._runner.tell_ends([turn])
        return Submitted(turn=turn, new=is_new)

    def _new(self, inbound: Inbound) -> NewTurn:
        return NewTurn(
            turn_id=new_id("turn"),
            session_id=new_id("ses"),
            channel=inbound.channel or new_id("ch"),
            at=self._clock(),
        )

    async def _given_up(self, turn: Turn) -> bool:
        """End a turn that is not to run again: waited too long, or killed too many processes."""
        if turn.crashes >= _SUSPECT + self._max_crashes:
            ending = endings.failed(CrashedRepeatedly(), self._clock())
        elif turn.attempt == 0 and turn.merged_into is None and self._clock() - turn.created_at > _STALE:
            ending = endings.failed(Expired(), self._clock())
        else:
            return False
        await self._end(turn, ending)
        return True

    async def _settled_text(self, turn: Turn) -> str:
        """What ``settled_text`` gives; the database is asked only for a turn that was begun."""
        return await self._database.run(partial(settled_text, turn=turn)) if turn.attempt else ""

    async def _end(self, turn: Turn, ending: Ending) -> None:
        """End a turn that nobody runs."""
        self._runner.tell_ends(await self._database.run(partial(rows.end_queued, turn=turn, ending=ending)))

    async def _isolate(self, sessions: Iterable[str]) -> None:
        """Run the next turn of each session, one after the other, while everything else waits."""
        for session_id in sessions:
            try:
                turn = await self._runner.persist(partial(rows.claim_next, session_id=session_id))
                if turn is not None:  # it was not cancelled meanwhile
                    _log.warning("turn runs alone: processes died over it", extra={"turn_id": turn.id})
                    await self._runner.start_alone(turn)
            except Exception:  # noqa: BLE001 - everything else waits for this to end
                _log.exception("session_not_isolated", extra={"session_id": session_id})
        self._runner.holding = False
        await self._release()

    async def _release(self) -> None:
        """Run the first turn of every session that runs none."""
        for turn in await self._runner.persist(rows.claim_all):
            _log.info("turn taken up again", extra={"turn_id": turn.id})
            self._runner.start(turn)


def _told_from_row(turn: Turn) -> list[TurnEvent]:
    """The events of an ended turn whose log is gone."""
    attempt = max(turn.attempt, 1)
    events = [TurnEvent(f"{attempt}-1", "turn.accepted", {"id": turn.id, "channelId": turn.channel})]
    if turn.reply:
        events.append(TurnEvent(f"{attempt}-2", "message.snapshot", {"text": turn.reply}))
    if turn.ended:
        events.append(TurnEvent(f"{attempt}-{len(events) + 1}", turn.last_event, {}))
    return events
