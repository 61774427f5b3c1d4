"""Runs turns: one task each, its end written down, the session's next turn started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain, repeat
from typing import Any, Protocol, TypeVar

from torana.agent import Answer, Emit
from torana.agent.approval import Decision, Question
from torana.agent.journal import Journal, settled_messages
from torana.agent.texts import text_of
from torana.errors import GatewayError, ModelResponseTooLarge, QueueFull, StoreUnavailable, TurnTimeout
from torana.limits.budgets import Budgets, RequestTokens, Warned
from torana.messages import EventType, Turn
from torana.store import turns as rows
from torana.store.approvals import Approval
from torana.store.database import Connection, Database, Work
from torana.store.turns import Ending
from torana.telemetry import bind
from torana.turns.approvals import Approvals
from torana.turns.endings import cut_off, failed, stopped
from torana.turns.journal import Asking, Persists, TurnJournal, settled_text
from torana.turns.log.base import EventLog
from torana.turns.questions import asked_of
from torana.turns.slot import Slot

_STUCK = (
    "Nothing runs in this session for the moment: the end of a turn could not be written, and the gateway's "
    "log says why. The gateway tries again by itself; send the message again later."
)

#: Seconds between two tries to write the end of a turn that could not be written; the last one repeats.
_PAUSES = (0.5, 2.0, 10.0, 30.0)

_log = logging.getLogger(__name__)

T = TypeVar("T")


class RunsTurns(Protocol):
    """The agent, as far as turns know it."""

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        """Answer one turn, behind what its journal says is settled."""
        ...


@dataclass(slots=True, kw_only=True)
class _Live:
    """A turn that has not ended, as it was when it was accepted or taken up."""

    turn: Turn
    ending: asyncio.Future[Turn]
    task: asyncio.Task[None] | None = None
    #: While it asks the agent; only then its task may be cancelled without losing an end.
    slot: Slot | None = None
    cancelled: bool = False
    #: Whether its speaker added something.
    steered: bool = False
    #: Set while what happened in it cannot be written for a while.
    delayed: asyncio.Event = field(default_factory=asyncio.Event)
    #: Its first request to the model, for which something was held back when it was accepted.
    request: RequestTokens | None = None
    #: Set when it has settled a step, or waits for somebody, or has ended.
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class Runner:
    """Holds every turn that has not ended: who waits for its end, and the task that runs it."""

    def __init__(
        self,
        *,
        database: Database,
        agent: RunsTurns,
        log: EventLog,
        budgets: Budgets,
        turn_timeout: float,
        concurrency: int,
        clock: Callable[[], datetime],
        pause: Callable[[float], Awaitable[None]],
        approvals: Approvals,
        ended: Callable[[Turn], None] | None = None,
    ) -> None:
        """``ended`` is called with every turn that has ended; it must not wait or raise."""
        self._database = database
        self._approvals = approvals
        self._agent = agent
        self._log = log
        self._budgets = budgets
        self._turn_timeout = turn_timeout
        self._clock = clock
        self._pause = pause
        self._ended = ended
        self._slots = asyncio.Semaphore(concurrency)
        self._stopping = False
        self._live: dict[str, _Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Sessions in which nothing runs, because the end of a turn could not be written, until it is.
        self._stuck: set[str] = set()
        self._reviving: set[asyncio.Task[None]] = set()
        #: While a suspect runs alone nothing else is started.
        self.holding = False

    @property
    def live(self) -> Sequence[Turn]:
        """The turns that have not ended, as they were when they were accepted or taken up."""
        return [one.turn for one in self._live.values()]

    @property
    def running(self) -> int:
        """How many turns run at this moment."""
        return sum(one.task is not None for one in self._live.values())

    @property
    def waiting(self) -> int:
        """How many of them wait for somebody's approval."""
        return sum(one.slot is not None and one.slot.away > 0 for one in self._live.values())

    @property
    def stuck(self) -> int:
        """The number of sessions in which nothing runs until the end of a turn can be written."""
        return len(self._stuck)

    def asking(self, session_id: str) -> str | None:
        """The turn of a session that waits for somebody's approval."""
        for turn_id, one in self._live.items():
            if one.turn.session_id == session_id and one.slot is not None and one.slot.away:
                return turn_id
        return None

    def ending(self, turn_id: str) -> asyncio.Future[Turn] | None:
        """The end of a turn that has not ended; do not cancel it."""
        one = self._live.get(turn_id)
        return one and one.ending

    async def delay(self, turn_id: str) -> None:
        """Wait until something that happened in a live turn has not been written for a while."""
        one = self._live.get(turn_id)
        await (one.delayed if one is not None else asyncio.Event()).wait()

    def expect(self, turn: Turn, *, settled: str = "", request: RequestTokens | None = None) -> None:
        """Let others wait for the turn's end, and begin the events of the attempt it is in or comes to.

        ``settled`` is the text that earlier attempts settled; ``request`` is the turn's first request to the
        model, where something was just held back for it.
        """
        ending = asyncio.get_running_loop().create_future()
        self._live[turn.id] = _Live(turn=turn, ending=ending, request=request)
        attempt = turn.attempt + (turn.state == "queued")
        self._log.open(turn.id, attempt=attempt)
        if attempt == 1:
            self._log.append(turn.id, "turn.accepted", {"id": turn.id, "channelId": turn.channel})
        else:
            self._log.append(turn.id, "turn.resumed", {"attempt": attempt, "text": settled})

    def start(self, turn: Turn, *, context: Context | None = None) -> None:
        """Run an expected turn, running in the database; once stopping, leave it to the next start."""
        if self._stopping:
            return
        one = self._live[turn.id]
        one.task = asyncio.create_task(self._run(turn, one), name=turn.id, context=context)
        self._tasks.add(one.task)
        one.task.add_done_callback(self._tasks.discard)

    async def start_alone(self, turn: Turn) -> None:
        """Run a turn and return when it has settled a step or ended."""
        one = self._live[turn.id]
        self.start(turn)
        await one.settled.wait()

    def cancel(self, turn_id: str) -> None:
        """Stop a running turn's model call and tools; it ends as cancelled, unless its end is being written."""
        one = self._live.get(turn_id)
        if one is None or one.task is None or one.cancelled:
            return
        one.cancelled = True
        if one.slot is not None:
            one.task.cancel()

    def steer(self, turn_id: str) -> None:
        """Have a running turn look for what its speaker added, before it asks the model again."""
        if turn_id in self._live:
            self._live[turn_id].steered = True

    async def stop(self, *, grace: float) -> None:
        """Give running turns ``grace`` seconds, and leave the rest to the next start.

        Those that only wait for somebody's approval do so after the next start.
        """
        self._stopping = True
        for reviving in self._reviving:
            reviving.cancel()
        await asyncio.gather(*self._reviving, return_exceptions=True)
        at_rest = {one.task for one in self._live.values() if one.slot is not None and one.slot.rests}
        if busy := self._tasks - at_rest:
            await asyncio.wait(busy, timeout=grace)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._log.close()
        for one in self._live.values():
            _let_go(one, stopped())
        self._live.clear()

    def tell_ends(self, ended: Sequence[Turn]) -> None:
        """Let those who wait or watch know."""
        for turn in ended:
            self._tell_end(turn)

    def _tell_end(self, ended: Turn) -> None:
        one = self._live.pop(ended.id, None)
        if one is not None:
            one.ending.set_result(ended)
            one.settled.set()
            if ended.merged_into is not None and ended.reply:  # the deltas were those of the other turn
                self._log.append(ended.id, "message.snapshot", {"text": ended.reply})
            self._log.append(ended.id, ended.last_event, {})
        if self._ended is not None:
            try:
                self._ended(ended)
            except Exception:  # noqa: BLE001 - the session goes on, whatever a listener does
                _log.exception("turn_end_listener_failed")
        _log.info("turn ended", extra={"state": ended.state, "model": ended.model})

    def check_runs(self, session_id: str) -> None:
        """Raise ``QueueFull`` where nothing runs in a session until the end of a turn can be written."""
        if session_id in self._stuck:
            raise QueueFull(_STUCK, headers={"Retry-After": "60"})

    def why_unanswered(self, session_id: str) -> GatewayError:
        """What is said of a turn of the session that has not ended and that nobody runs."""
        return StoreUnavailable(_STUCK) if session_id in self._stuck else stopped()

    async def _run(self, turn: Turn, one: _Live) -> None:
        with bind(turn_id=turn.id):
            try:
                ending = await self._answer(turn, one)
            except Exception as error:  # noqa: BLE001 - as in _answer
                ending = self._failed(error)
            try:
                ended, following, claimed = await self._record(turn, ending)
            except Exception:  # noqa: BLE001 - nothing else would report it
                _log.exception("turn_end_not_written", extra={"session_id": turn.session_id})
                self._let_session_go(turn.session_id)
                self._begin_reviving(partial(self._write_end, turn, ending))
                return
            self.tell_ends(ended)
        if not claimed:
            self._begin_reviving(partial(self._revive, turn.session_id))
        elif following is not None:
            # In a context of its own: the request that this turn's ended one came with is not its own.
            self.start(following, context=Context())

    def _let_session_go(self, session_id: str) -> None:
        """Tell those who wait for a session's turns, or watch them, that nothing runs there for the moment."""
        self._stuck.add(session_id)
        for left in [one for one in self._live.values() if one.turn.session_id == session_id]:
            del self._live[left.turn.id]
            _let_go(left, StoreUnavailable(_STUCK))
            self._log.append(left.turn.id, "turn.failed", {})

    def _begin_reviving(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._stopping:  # the next start goes on
            return
        task = asyncio.create_task(work(), context=Context())
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    async def _write_end(self, turn: Turn, ending: Ending) -> None:
        """Write the end of a turn, tried again until it can be written, and let its session go on."""
        with bind(turn_id=turn.id):
            ended, following, _ = await self._until_done(partial(self._record, turn, ending))
            _log.info("turn_end_written_late", extra={"session_id": turn.session_id})
            self.tell_ends(ended)
        await self._revive(turn.session_id, following)

    async def _revive(self, session_id: str, claimed: Turn | None = None) -> None:
        """Run what waits in a session in which nothing runs: the ``claimed`` turn, or else the first one."""

        def take_up(connection: Connection) -> tuple[list[tuple[Turn, str]], Turn | None]:
            waiting = rows.unfinished_of(connection, session_id)
            settled = [(turn, settled_text(connection, turn) if turn.attempt else "") for turn in waiting]
            runs = any(turn.state != "queued" for turn in waiting)
            if runs or self.holding or self._stopping:
                return settled, claimed
            return settled, rows.claim_next(connection, session_id)

        waiting, following = await self._until_done(partial(self.persist, take_up))
        self._stuck.discard(session_id)
        for turn, settled in waiting:
            if turn.id not in self._live:
                self.expect(turn, settled=settled)
        if following is not None:
            self.start(following)

    async def _until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what ``work`` returns; after an error it is tried again, with pauses."""
        for seconds in chain(_PAUSES, repeat(_PAUSES[-1])):
            try:
                return await work()
            except Exception:  # noqa: BLE001 - it is tried again
                _log.exception("session_not_revived")
            await self._pause(seconds)
        raise AssertionError("the pauses do not end")

    async def _answer(self, turn: Turn, one: _Live) -> Ending:
        """Ask the agent; whatever goes wrong becomes the turn's failure."""
        slot = Slot(slots=self._slots, timeout=self._turn_timeout)
        told = _Told(self._log, turn.id, slot)
        try:
            journal = await self._journal(turn, one, partial(self._ask, turn, one, told, slot))
        except Exception as error:  # noqa: BLE001 - as below
            return self._failed(error)
        told.begin(journal)
        if one.cancelled:  # before its task could be
            return cut_off(turn, told.text, self._clock())
        try:
            answer = await self._asked(turn, one, told, slot, journal)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                return told.paid(self._failed(error))  # the agent let a cancellation of its own through
            if not one.cancelled:
                raise  # the gateway stops
            task.uncancel()
            return told.paid(cut_off(turn, told.text, self._clock()), stopped=True)
        except TimeoutError as error:
            return told.paid(self._failed(TurnTimeout() if slot.expired else error), stopped=slot.expired)
        except ModelResponseTooLarge as error:  # the provider charges for it, and its usage is not known
            return told.paid(self._failed(error), stopped=True)
        except Exception as error:  # noqa: BLE001 - a bug must not leave its turn unanswered
            return told.paid(self._failed(error))
        return told.paid(
            Ending(at=self._clock(), reply=answer.reply, model=answer.model, history=answer.history)
        )

    async def _asked(self, turn: Turn, one: _Live, told: _Told, slot: Slot, journal: TurnJournal) -> Answer:
        """What the agent answers, once there is room."""
        one.slot = slot
        try:
            async with slot:
                if turn.attempt > 1:
                    await journal.resume()
                return await self._agent.run(turn, told, journal)
        finally:
            one.slot = None

    async def _ask(
        self, turn: Turn, one: _Live, told: _Told, slot: Slot, question: Question, keep: Persists
    ) -> Decision:
        """Have somebody decide about a call; meanwhile others may run in the turn's slot."""

        def opened(approval: Approval) -> None:
            one.settled.set()  # nobody is held up for as long as it waits
            told("approval.required", asked_of(approval))

        return await self._approvals.ask(
            turn, question, said=told.text, keep=keep, run=self.persist, away=slot.left, opened=opened
        )

    def _failed(self, error: BaseException) -> Ending:
        return failed(error, self._clock())

    async def _record(self, turn: Turn, ending: Ending) -> tuple[list[Turn], Turn | None, bool]:
        """Write the end of a turn, and tell whether the session's next turn was claimed, if there is one.

        Where the database refuses it, the turn fails instead, and where it refuses that too, the failure is
        written without what it cost, and no turn is claimed.
        """
        try:
            return *await self._written(turn, ending), True
        except Exception as error:  # noqa: BLE001 - as in _answer
            failure = self._failed(error)
        try:
            return *await self._written(turn, replace(failure, spent=ending.spent)), True
        except Exception:  # noqa: BLE001 - as in _answer
            _log.exception("turn_cost_not_written")
        return await self.persist(partial(rows.fail_bare, turn=turn, ending=failure)), None, False

    async def _written(self, turn: Turn, ending: Ending) -> tuple[list[Turn], Turn | None]:
        work = partial(self._finish, turn=turn, ending=ending)
        outcome, warned = await self._persist(self._live.get(turn.id), work)
        self._budgets.tell(warned)
        return outcome

    def _finish(
        self, connection: Connection, turn: Turn, ending: Ending
    ) -> tuple[tuple[list[Turn], Turn | None], list[Warned]]:
        held = self._budgets.held(connection, turn)
        if ending.stopped_at is not None:
            self._budgets.stop(connection, turn, ending.stopped_at, asked=ending.stopped_request)
        # Asked at each try. What is claimed once stopping is not begun, and would be blamed for a kill.
        ended, following = rows.finish(connection, turn, ending, hold=self.holding or self._stopping)
        return (ended, following), self._budgets.warnings(connection, ended[0], held)

    async def persist(self, work: Work[T]) -> T:
        """Execute ``work`` as ``Database.run`` does, for however long the database cannot be written.

        For what has happened already and must not be lost.
        """
        return await self._persist(None, work)

    async def _persist(self, one: _Live | None, work: Work[T]) -> T:
        return await self._database.persist(work, pause=self._pause, delayed=one and one.delayed)

    async def _journal(self, turn: Turn, one: _Live, asking: Asking) -> TurnJournal:
        return await TurnJournal.open(
            run=partial(self._persist, one),
            turn=turn,
            budgets=self._budgets,
            is_steered=lambda: turn.attempt > 1 or one.steered,
            on_settled=one.settled.set,
            asking=asking,
            request=one.request,
        )


class _Told:
    """Passes the agent's events on, and keeps what the end of a turn needs that breaks off."""

    def __init__(self, log: EventLog, turn_id: str, slot: Slot) -> None:
        self._log = log
        self._turn_id = turn_id
        self._slot = slot
        self._journal: TurnJournal | None = None
        self._pieces: list[str] = []
        #: Where among them the model began that was asked last.
        self._asked_at = 0

    def begin(self, journal: TurnJournal) -> None:
        """Begin behind what earlier attempts settled."""
        self._journal = journal
        self._pieces = [text_of(settled_messages(journal))]
        self._asked_at = 1

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def paid(self, ending: Ending, *, stopped: bool = False) -> Ending:
        """The turn's end with what it has to pay for; ``stopped`` while it asks."""
        if self._journal is None:
            return ending
        asked = "".join(self._pieces[self._asked_at :]) if stopped and self._journal.was_asking else None
        return replace(ending, spent=self._journal.owed, stopped_at=asked, stopped_request=self._journal.asked)

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None:
        if type_ == "message.delta":
            self._pieces.append(data["text"])
        elif type_ in ("tool.started", "tool.finished"):
            self._slot.count(1 if type_ == "tool.started" else -1)
            self._asked_at = len(self._pieces)
        self._log.append(self._turn_id, type_, data)


def _let_go(one: _Live, error: Exception) -> None:
    """Tell those who wait that the turn does not end in this process."""
    one.ending.set_exception(error)
    one.ending.exception()  # so that nobody has to have waited for it
    one.settled.set()
