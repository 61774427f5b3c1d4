"""Run turns: one task for each turn, which writes its end and starts the session's next turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import Context
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from torana.agent import Answer, Emit
from torana.agent.approval import ApprovalDecision, Question
from torana.agent.journal import Journal
from torana.errors import ModelResponseTooLarge, TurnTimeout
from torana.limits.budgets import Budgets
from torana.messages import Turn
from torana.store.engine.database import Connection
from torana.store.rows import turns as rows
from torana.store.rows.approvals import Approval
from torana.store.rows.turns import Ending
from torana.telemetry import bind
from torana.tracing import SpanDetails, SpanPlace
from torana.turns.approval_replies import approval_event_data
from torana.turns.approvals import Approvals
from torana.turns.event_recorder import EventRecorder
from torana.turns.journal import Persists, TurnJournal, settled_text
from torana.turns.live import LiveTurn, LiveTurns
from torana.turns.outcomes import cut_off, failed_outcome
from torana.turns.slots import Slot
from torana.turns.writer import RecordedEnd, TurnWriter
from torana.workers.fair_slots import FairSlots

#: Seconds that the tools of a cancelled turn have to end when the gateway stops.
_CANCELLING = 5.0

_log = logging.getLogger(__name__)

#: The number of turns with files that run at a time, of all users and of one, and the number that is kept for
#: users without one: a running turn holds the files of its message in memory, more than twice.
_TURNS_WITH_FILES, _USERS_TURNS_WITH_FILES, _KEPT_WITH_FILES = 16, 4, 6

#: One in this number of slots is kept for users without a running turn: a few users with long turns must not
#: delay all others.
_KEPT = 10


class RunsTurns(Protocol):
    """The agent's interface to turns."""

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        """Answer one turn, after the steps that its journal has settled."""
        ...


class Runner:
    """Runs live turns, at most ``concurrency`` at a time."""

    def __init__(
        self,
        *,
        live: LiveTurns,
        writer: TurnWriter,
        agent: RunsTurns,
        approvals: Approvals,
        budgets: Budgets,
        turn_timeout: float,
        concurrency: int,
        clock: Callable[[], datetime],
    ) -> None:
        self.live = live
        self.writer = writer
        self._agent = agent
        self._approvals = approvals
        self._budgets = budgets
        self._turn_timeout = turn_timeout
        self._clock = clock
        self._slots = FairSlots(total=concurrency, per_user=concurrency, kept=concurrency // _KEPT)
        self._file_slots = FairSlots(
            total=_TURNS_WITH_FILES, per_user=_USERS_TURNS_WITH_FILES, kept=_KEPT_WITH_FILES
        )
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: Tasks that write the end of a turn which the database refused, and continue its session.
        self._unblocking: set[asyncio.Task[None]] = set()
        #: While true no turn is claimed: a suspect turn runs alone.
        self.holding = False

    def start(self, turn: Turn) -> None:
        """Start a live turn whose state is ``running``; while the gateway stops, leave it to the next start."""
        if self._stopping:
            return
        one = self.live.get(turn.id)
        assert one is not None  # noqa: S101 - turns are registered before they are started
        one.task = asyncio.create_task(self._run(turn, one), name=turn.id, context=one.context)
        self._tasks.add(one.task)
        one.task.add_done_callback(self._tasks.discard)

    def claims_nothing(self) -> bool:
        """Return whether no turn may be claimed: a suspect turn runs alone, or the gateway stops."""
        return self.holding or self._stopping

    async def adopt(self, turn: Turn) -> None:
        """Start a claimed turn, which another replica may have accepted or begun."""
        if turn.id not in self.live or turn.attempt > 1:
            settled = await self.writer.persist(partial(settled_text, turn=turn)) if turn.attempt > 1 else ""
            self.live.add(turn, settled=settled)
        self.start(turn)

    async def start_alone(self, turn: Turn) -> None:
        """Run a claimed turn; return when it has settled a step, waits for an approval, or has ended."""
        await self.adopt(turn)
        one = self.live.get(turn.id)
        assert one is not None  # noqa: S101 - as in start
        await one.settled.wait()

    def cancel(self, turn_id: str) -> None:
        """Interrupt a turn's model request and tools. It ends as cancelled unless its end is being written."""
        one = self.live.get(turn_id)
        if one is None or one.cancelled:
            return
        one.cancelled = True  # a turn that was claimed a moment ago ends before its agent starts
        if one.task is not None and one.slot is not None:
            one.task.cancel()

    def steer(self, turn_id: str) -> None:
        """Have a running turn read the user's added messages before its next model request."""
        if (one := self.live.get(turn_id)) is not None:
            one.steered = True

    async def stop(self, *, grace: float) -> None:
        """Give running turns ``grace`` seconds, and leave the rest to the next start.

        Turns that only wait for an approval are left at once.
        """
        self._stopping = True
        for task in self._unblocking:
            task.cancel()
        await asyncio.gather(*self._unblocking, return_exceptions=True)
        waiting = {one.task for one in self.live.entries() if one.slot is not None and one.slot.is_idle}
        if busy := self._tasks - waiting:
            await asyncio.wait(busy, timeout=grace)
        remaining = list(self._tasks)
        for task in remaining:
            task.cancel()
        if remaining:  # a tool may ignore its cancellation; the next start continues its turn
            await asyncio.wait(remaining, timeout=_CANCELLING)

    async def _run(self, turn: Turn, one: LiveTurn) -> None:
        with bind(turn_id=turn.id), self._trace(turn, one) as span:
            try:
                ending = await self._answer(turn, one)
            except Exception as error:  # noqa: BLE001 - a bug must not leave its turn unanswered
                ending = self._failed(error)
            try:
                recorded = await self._record_end(turn, ending)
            except Exception:  # noqa: BLE001 - no caller would report it
                _log.exception("turn_end_not_written", extra={"session_id": turn.session_id})
                self.live.block(turn.session_id)
                self._begin_unblocking(partial(self._write_end, turn, ending))
                return
            ended = recorded.ended[0]
            span.attributes["torana.turn.state"] = ended.state
            span.error = ended.failure and ended.failure.code
            self.live.end(recorded.ended)
        if not recorded.may_claim:
            self._begin_unblocking(partial(self._unblock, turn.session_id))
        elif recorded.following is not None:
            await self.adopt(recorded.following)

    def _trace(self, turn: Turn, one: LiveTurn) -> AbstractContextManager[SpanDetails]:
        """Record the span of the turn since its acceptance, as a child of the span of its request."""
        attributes = {
            "torana.turn.id": turn.id,
            "torana.turn.attempt": turn.attempt,
            "gen_ai.conversation.id": turn.session_id,
        }
        if turn.account is not None:
            attributes["torana.account"] = turn.account
        place = SpanPlace(since=one.since, begins_turn=turn.id)
        return self.live.measurements.tracer.span("turn", place, **attributes)

    async def _record_end(self, turn: Turn, ending: Ending) -> RecordedEnd:
        one = self.live.get(turn.id)
        # While the gateway stops, no turn may be claimed: it would not start, and the next start would count a
        # crash.
        hold = self.claims_nothing
        return await self.writer.record_end(turn, ending, hold=hold, delayed=one and one.delayed)

    def _begin_unblocking(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._stopping:  # the next start continues
            return
        task = asyncio.create_task(work(), context=Context())
        self._unblocking.add(task)
        task.add_done_callback(self._unblocking.discard)

    async def _write_end(self, turn: Turn, ending: Ending) -> None:
        """Repeat writing the end of a turn until the database accepts it, then continue the session."""
        with bind(turn_id=turn.id):
            record = partial(self._record_end, turn, ending)
            recorded = await self.writer.retry_until_done(record)
            _log.info("turn_end_written_late", extra={"session_id": turn.session_id})
            self.live.end(recorded.ended)
        await self._unblock(turn.session_id, recorded.following)

    async def _unblock(self, session_id: str, claimed: Turn | None = None) -> None:
        """Run the queue of a session in which no turn runs: first the ``claimed`` turn, else the oldest."""

        def claim(connection: Connection) -> tuple[list[tuple[Turn, str]], Turn | None]:
            unfinished = rows.unfinished_in_session(connection, session_id)
            settled = [(turn, settled_text(connection, turn) if turn.attempt else "") for turn in unfinished]
            runs = any(turn.state != "queued" for turn in unfinished)
            if runs or self.claims_nothing():
                return settled, claimed
            return settled, rows.claim_next(connection, session_id)

        unfinished, following = await self.writer.retry_until_done(partial(self.writer.persist, claim))
        self.live.blocked.discard(session_id)
        for turn, settled in unfinished:
            if turn.id not in self.live:
                self.live.add(turn, settled=settled)
        if following is not None:
            self.start(following)

    async def _answer(self, turn: Turn, one: LiveTurn) -> Ending:
        """Run the agent and return the turn's end. Errors of the agent become the turn's failure."""
        slots = [self._file_slots, self._slots] if turn.files else [self._slots]
        slot = Slot(slots=slots, user=_sharer(turn), timeout=self._turn_timeout)
        recorder = EventRecorder(self.live.log, self.live.sharing, turn.id, slot)
        journal = await self._open_journal(turn, one, recorder, slot)
        recorder.begin(journal)
        one.timings = journal.timings
        one.timings.begin_queue(waited=time.monotonic() - one.since)
        if one.cancelled:  # cancelled before the agent started
            return cut_off(turn, recorder.text, self._clock())
        ending, stopped = await self._run_agent(turn, one, recorder, slot, journal)
        return recorder.with_costs(ending, stopped=stopped)

    async def _run_agent(
        self, turn: Turn, one: LiveTurn, recorder: EventRecorder, slot: Slot, journal: TurnJournal
    ) -> tuple[Ending, bool]:
        """Return the end of the agent's run, and whether it interrupted a model request."""
        try:
            one.slot = slot
            try:
                async with slot:
                    self.live.begin(one)
                    journal.timings.end_queue()
                    answer = await self._agent.run(turn, recorder, journal)
            finally:
                one.slot = None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # the agent did not handle a cancellation of its own
                return self._failed(error), False
            if not one.cancelled:
                raise  # the gateway stops
            task.uncancel()
            return cut_off(turn, recorder.text, self._clock()), True
        except TimeoutError as error:
            return self._failed(TurnTimeout() if slot.is_expired else error), slot.is_expired
        except ModelResponseTooLarge as error:  # the interrupted request costs money, and its usage is unknown
            return self._failed(error), True
        except Exception as error:  # noqa: BLE001 - a bug must not leave its turn unanswered
            return self._failed(error), False
        ending = Ending(
            at=self._clock(),
            reply=answer.reply,
            model=answer.model,
            history=answer.history,
            opened_tools=answer.opened_tools,
        )
        return ending, False

    async def _ask_approval(
        self,
        turn: Turn,
        one: LiveTurn,
        recorder: EventRecorder,
        slot: Slot,
        question: Question,
        keep: Persists,
    ) -> ApprovalDecision:
        """Ask a person about a call; while the turn waits, other turns may use its slot."""
        call = {"gen_ai.tool.name": question.tool, "gen_ai.tool.call.id": question.call_id}
        activity = self.live.activity
        asked: list[dict[str, str]] = []

        def on_opened(approval: Approval) -> None:
            asked.append({"approvalId": approval.id, "tool": approval.tool, "callId": approval.call_id})
            activity.publish_turn("approval.required", turn, **asked[0])
            one.note_approval_request()  # recovery does not wait for a person
            recorder("approval.required", approval_event_data(approval))
            decide = f"torana approvals approve {approval.id}"
            _log.info("approval_required", extra={"tool": approval.tool, "decide": decide})

        @asynccontextmanager
        async def while_waiting() -> AsyncGenerator[None]:
            measurements = self.live.measurements
            with measurements.time("approval"), measurements.tracer.span("approval", **call):
                async with slot.release_while_waiting():
                    yield

        decision = await self._approvals.ask(
            turn,
            question,
            said=recorder.text,
            keep=keep,
            run=self.writer.persist,
            while_waiting=while_waiting,
            opened=on_opened,
        )
        for ids in asked:
            activity.publish_turn("approval.decided", turn, **ids, approved=decision.approved)
        return decision

    async def _is_steered(self, turn: Turn, one: LiveTurn) -> bool:
        return turn.attempt > 1 or one.steered or await self.writer.was_steered_elsewhere(turn)

    def _failed(self, error: BaseException) -> Ending:
        return failed_outcome(error, self._clock())

    async def _open_journal(
        self, turn: Turn, one: LiveTurn, recorder: EventRecorder, slot: Slot
    ) -> TurnJournal:
        journal = TurnJournal(
            run=partial(self.writer.persist_progress, user=_sharer(turn), delayed=one.delayed),
            turn=turn,
            budgets=self._budgets,
            is_steered=partial(self._is_steered, turn, one),
            on_settled=one.settled.set,
            asking=partial(self._ask_approval, turn, one, recorder, slot),
            request=one.request,
        )
        await journal.load()
        return journal


def _sharer(turn: Turn) -> str:
    """Return the key by which turns share the slots: the user, or the token of a turn without a user."""
    return turn.user or turn.token or ""
