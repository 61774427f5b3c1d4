"""Accept messages as turns: durable when ``submit`` returns, and answered in the order of acceptance."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from torana.aio import complete
from torana.errors import Draining, NotFailed, StoreUnavailable
from torana.limits.budgets import Admitted, Budgets, log_warnings
from torana.limits.rate_limit_status import LimitStatus
from torana.limits.request_tokens import RequestTokens
from torana.messages import Inbound, Turn, new_id
from torana.sessions import history
from torana.sessions.titles import title_of
from torana.store.engine.database import Connection, Database, T
from torana.store.rows import idempotency_keys, session_forks
from torana.store.rows import turns as rows
from torana.store.rows.audit import Act, auditable_act, with_record
from torana.store.rows.shared_turns import list_unfinished
from torana.store.rows.turns import Accepted, NewTurn
from torana.turns import outcomes
from torana.turns.approval_replies import read_answer
from torana.turns.approvals import Approvals
from torana.turns.commands import Commands
from torana.turns.journal import settled_text
from torana.turns.open_approvals import OpenApprovals
from torana.turns.queue import Queue
from torana.turns.reader import TurnReader
from torana.turns.recovery import Recovery
from torana.turns.replicas import ReplicaWatch
from torana.turns.runner import Runner

_log = logging.getLogger(__name__)

#: Seconds that a stop waits, at least, for transactions that the database may never answer.
_UNWRITTEN = 5.0

#: A change in the transaction that accepts the message: both are stored or neither.
InTransaction: TypeAlias = Callable[[Connection, Turn], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The turn of a message, and the state of the limits that counted it.

    ``new`` is false for a turn that an earlier message with the same key created; no limit counts it again.
    """

    turn: Turn
    new: bool
    limit_statuses: Sequence[LimitStatus] = ()


class Turns:
    """Accepts, cancels and retries turns. Each session's turns run one at a time, in the order of acceptance.

    Several replicas may share the database; a session's turn runs in one of them.
    """

    def __init__(
        self,
        *,
        database: Database,
        runner: Runner,
        approvals: Approvals,
        budgets: Budgets,
        queue: Queue,
        max_crashes: int,
        clock: Callable[[], datetime],
    ) -> None:
        """``runner``, ``approvals`` and ``budgets`` use the same database and belong to this object alone."""
        self._database = database
        self._runner = runner
        self._budgets = budgets
        self._queue = queue
        self._clock = clock
        self.live = runner.live
        self.approvals = approvals
        self.reader = TurnReader(database=database, live=runner.live, clock=clock)
        self.open_approvals = OpenApprovals(database=database, reader=self.reader, clock=clock)
        self._recovery = Recovery(
            database=database, runner=runner, budgets=budgets, max_crashes=max_crashes, clock=clock
        )
        self.replicas = ReplicaWatch(
            database=database, runner=runner, recovery=self._recovery, approvals=approvals
        )
        self._commands = Commands(database=database, cancel=self.cancel, approvals=approvals)
        self._accepting = True
        #: Tasks that write to the store, each with the message or the failed turn that it queues.
        self._writing: dict[asyncio.Task[Any], Inbound | Turn | None] = {}
        #: Tasks that execute control words. A ``/stop`` waits until the tools of the stopped turns have ended.
        self._commanding: set[asyncio.Task[Submitted]] = set()

    async def start(self) -> None:
        """Continue the turns that an earlier process left unfinished, in order."""
        await self._recovery.start()
        if self._database.replica is not None:
            self.replicas.start()
            self.live.sharing.start()

    async def stop(self, *, grace: float) -> None:
        """Stop accepting, give running turns ``grace`` seconds, and leave the rest to the next start.

        Other replicas continue the rest at once. Callers wait for them until the ``grace`` seconds have passed.
        """
        self._accepting = False
        ends = time.monotonic() + grace
        if self._writing:
            await asyncio.wait(self._writing, timeout=max(grace, _UNWRITTEN))
        self._recovery.stop()
        await self._runner.stop(grace=max(0.0, ends - time.monotonic()))
        if self._database.replica is not None:
            await self.replicas.hand_over(ends - time.monotonic())
        self.live.close()
        if self._commanding:  # their turns have ended, or end after the next start
            await asyncio.wait(self._commanding, timeout=_UNWRITTEN)
        await self.replicas.stop()
        await self.live.sharing.stop()
        with suppress(StoreUnavailable):
            await self._recovery.leave()

    @property
    def draining(self) -> bool:
        return not self._accepting

    def check_accepting(self) -> None:
        """Raise ``Draining`` if the gateway stops and accepts no more messages."""
        if not self._accepting:
            raise Draining(headers={"Retry-After": "5"})

    async def accept(self, inbound: Inbound) -> Turn:
        """Accept a message as ``submit`` does, and return its turn."""
        return (await self.submit(inbound)).turn

    async def submit(
        self,
        inbound: Inbound,
        *,
        rates: Sequence[LimitStatus] = (),
        also: InTransaction | None = None,
    ) -> Submitted:
        """Accept a message as a turn. When this returns, the turn is durable and will be answered.

        A message without a channel gets a new one. A message whose key was accepted before returns the existing
        turn. Raises ``Draining``, ``StoreUnavailable``, ``QueueFull``, ``Overloaded``, ``SessionBusy``,
        ``KeyReused`` or ``BudgetSpent``; then nothing was accepted. Cancelling the call does not withdraw the
        message: it may still be answered. ``rates`` are limits that the caller has counted; they appear in the
        headers of the response. ``also`` runs in the accepting transaction, and its errors roll the transaction
        back; such a message is never a command or an answer to an approval.
        """
        self.check_accepting()
        if also is None and (word := Commands.word_of(inbound.content)):
            return await self._command(word, inbound)
        if also is None and read_answer(inbound.content) is not None:
            answered = await self._shielded(self._answer_question(inbound))
            if answered is not None:
                return answered
        await self._database.check_pending_writes()
        self.check_accepting()  # the gateway may have begun to stop
        self._queue.check(inbound, [*self.live, *filter(None, self._writing.values())])
        return await self._shielded(self._submit(inbound, rates, also), inbound)

    async def store_answered(self, inbound: Inbound, text: str, *, also: InTransaction) -> Turn:
        """Store a message together with its reply, without the agent, and deliver the reply.

        It does not wait for running turns of its session; later turns show both to the model. ``also`` is as in
        ``submit``. Raises ``Draining`` or ``StoreUnavailable``; then nothing was stored.
        """
        self.check_accepting()
        return await self._shielded(self._store_answered(inbound, text, also))

    async def cancel(self, owner: str, turn_id: str, *, act: Act | None = None) -> Turn:
        """Stop a queued or running turn, and return it after its end. A turn that has ended stays as it is.

        A message that was merged into a running turn is cancelled with that turn. ``act`` is recorded in the
        audit record if the turn belongs to a user. Raises ``NotFound``.
        """
        turn = await self._shielded(self._cancel(owner, turn_id, act))
        return turn if turn.has_ended else await self.reader.wait_for_end(turn)

    async def retry(self, owner: str, turn_id: str, *, act: Act | None = None) -> Turn:
        """Queue a failed turn again at the end of its session; its journal keeps settled steps from repeating.

        ``act`` is recorded in the audit record if the turn belongs to a user. Raises ``NotFound``,
        ``NotFailed`` for a turn that did not fail, ``QueueFull``, ``Overloaded`` and ``BudgetSpent``.
        """
        await self._database.check_pending_writes()
        self.check_accepting()
        return await self._shielded(self._retry(owner, turn_id, act))

    async def _shielded(self, work: Coroutine[Any, Any, T], inbound: Inbound | None = None) -> T:
        """Return the result of the work, which continues if the caller is cancelled.

        A cancelled caller must not leave a stored turn without a task or without its end announced.
        """
        task = asyncio.create_task(work)
        self._writing[task] = inbound
        task.add_done_callback(self._writing.pop)
        return await asyncio.shield(task)

    async def _submit(
        self, inbound: Inbound, rates: Sequence[LimitStatus], also: InTransaction | None
    ) -> Submitted:
        new = replace(self._new(inbound), title=title_of(inbound.content))

        def accept(connection: Connection) -> tuple[Accepted, Admitted | None]:
            accepted = idempotency_keys.accept(connection, inbound, new, hold=self._runner.holding)
            if accepted.turn.id != new.turn_id:  # an earlier message with the same key
                return accepted, None
            self.live.blocked.check(accepted.turn.session_id)
            if self._database.replica is not None:
                _check_shared_queue(connection, self._queue, inbound, accepted.turn)
            admitted = self._budgets.admit(connection, accepted.turn, rates=rates)
            if also is not None:
                also(connection, accepted.turn)
            return accepted, admitted

        accepted, admitted = await self._database.run(accept)
        turn = accepted.turn
        if admitted is None:
            return Submitted(turn=turn, new=False)
        log_warnings(admitted.warned)
        _log.info("turn_accepted", extra={"turn_id": turn.id, "session_id": turn.session_id})
        self._begin(turn, request=admitted.request)
        if accepted.interrupts is not None:
            self._runner.cancel(accepted.interrupts)
        if accepted.steers is not None:
            self._runner.steer(accepted.steers)
        return Submitted(turn=turn, new=True, limit_statuses=admitted.statuses)

    async def _store_answered(self, inbound: Inbound, text: str, also: InTransaction) -> Turn:
        new = self._new(inbound)
        kept = history.dump(history.exchange(inbound.content, text), speaker=inbound.user)

        def store_reply(connection: Connection) -> Turn:
            turn = rows.answer_at_once(connection, inbound, new, text, history=kept)
            also(connection, turn)
            return turn

        turn = await self._database.run(store_reply)
        self.live.end([turn])
        return turn

    async def _cancel(self, owner: str, turn_id: str, act: Act | None) -> Turn:
        work = partial(outcomes.cancel, owner=owner, turn_id=turn_id, act=act, at=self._clock())
        turn, ended = await self._database.run(work)
        turn = turn or await self.reader.raise_missing(owner, turn_id)
        self.live.end(ended)
        self._runner.cancel(turn.id)
        return await self.reader.get(owner, turn_id)

    async def _retry(self, owner: str, turn_id: str, act: Act | None) -> Turn:
        failed = await self.reader.get(owner, turn_id)
        if failed.state != "failed":
            raise NotFailed
        self._queue.check(failed, [*self.live, *filter(None, self._writing.values())])
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._writing[task] = failed
        # The settled text is read before the turn runs again: the new attempt adds to it.
        settled = await self._database.run(partial(settled_text, turn=failed)) if failed.attempt else ""

        def queue_again(connection: Connection) -> Turn | None:
            turn = rows.retry(connection, owner, failed.id, hold=self._runner.holding)
            if turn is not None:
                self.live.blocked.check(turn.session_id)
                if self._database.replica is not None:
                    _check_shared_queue(connection, self._queue, failed, turn)
                # A message was counted when it was sent, but its copy in a fork was not.
                self._budgets.admit(connection, turn, messages=int(session_forks.is_copied(connection, turn)))
            return turn

        work = with_record(queue_again, auditable_act(failed.owner, act), "turn.retry", failed.id)
        again = await self._database.run(work) or await self.reader.raise_missing(owner, failed.id)
        self._begin(again, settled=settled)
        return again

    def _begin(self, turn: Turn, *, settled: str = "", request: RequestTokens | None = None) -> None:
        self.live.add(turn, settled=settled, request=request)
        if turn.state == "running":
            self._runner.start(turn)

    async def _command(self, word: str, inbound: Inbound) -> Submitted:
        """Execute a control word; execution continues if the caller is cancelled."""

        async def execute() -> Submitted:
            new = self._new(inbound)
            return self._announce_end(await self._commands.execute(word, inbound, new), new)

        return await complete(execute(), self._commanding)

    async def _answer_question(self, inbound: Inbound) -> Submitted | None:
        new = self._new(inbound)
        turn = await self._commands.answer_question(inbound, new)
        return turn and self._announce_end(turn, new)

    def _announce_end(self, turn: Turn, new: NewTurn) -> Submitted:
        """Announce the end of a turn that was stored with its reply, unless an earlier message created it."""
        is_new = turn.id == new.turn_id
        if is_new:
            self.live.end([turn])
        return Submitted(turn=turn, new=is_new)

    def _new(self, inbound: Inbound) -> NewTurn:
        return NewTurn(
            turn_id=new_id("turn"),
            session_id=new_id("ses"),
            channel=inbound.channel or new_id("ch"),
            at=self._clock(),
        )


def _check_shared_queue(connection: Connection, queue: Queue, queued: Inbound | Turn, turn: Turn) -> None:
    """Raise ``Overloaded`` or ``QueueFull`` if the turns of all replicas leave no room for this one."""
    queue.check(queued, list_unfinished(connection, without=turn.id))
