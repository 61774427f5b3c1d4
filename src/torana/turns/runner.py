"""Runs turns: one task each, its end written down, the session's next turn started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from torana.agent import Answer, Emit
from torana.agent.approval import Decision, Question
from torana.agent.journal import Journal, settled_messages
from torana.agent.watch import text_of
from torana.errors import Draining, GatewayError, QueueFull, StoreUnavailable, TurnCancelled, TurnTimeout
from torana.limits.budgets import Budgets, Warned
from torana.messages import EventType, Failure, Turn
from torana.sessions import history
from torana.store import turns as rows
from torana.store.approvals import Approval
from torana.store.database import Connection, Database, Work
from torana.store.turns import Ending
from torana.telemetry import bind
from torana.turns.approvals import Approvals
from torana.turns.journal import Asking, Persists, TurnJournal
from torana.turns.log.base import EventLog
from torana.turns.place import Place
from torana.turns.questions import asked_of

#: Pauses before a turn's end is written again, while the database cannot be written; the last one repeats.
_RETRY_PAUSES = (0.1, 0.5, 2.0, 5.0)

_log = logging.getLogger(__name__)

T = TypeVar("T")


class RunsTurns(Protocol):
    """The agent, as far as turns know it."""

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        """Answer one turn, behind what its journal says is settled."""
        ...


class Runner:
    """Holds the task of every running turn, and a future for the end of every turn that has not ended."""

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
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Those of the tasks that wait for the agent, and may be cancelled without losing an end.
        self._answering: dict[str, asyncio.Task[Any]] = {}
        #: Where those of them are.
        self._places: dict[str, Place] = {}
        self._cancelled: set[str] = set()
        self._steered: set[str] = set()
        self._live: dict[str, Turn] = {}
        self._endings: dict[str, asyncio.Future[Turn]] = {}
        self._settled: dict[str, asyncio.Event] = {}
        #: Sessions in which nothing runs before the next start: a turn's end could not be written.
        self._stuck: set[str] = set()
        #: While a suspect runs alone nothing else is started.
        self.holding = False

    @property
    def live(self) -> Mapping[str, Turn]:
        """The turns that have not ended, as they were when they were accepted or taken up."""
        return self._live

    @property
    def running(self) -> int:
        """How many turns run at this moment."""
        return len(self._live.keys() & self._tasks.keys())

    @property
    def waiting(self) -> int:
        """How many of them wait for somebody's approval."""
        return sum(place.away > 0 for place in self._places.values())

    def asking(self, session_id: str) -> str | None:
        """The turn of a session that waits for somebody's approval."""
        for turn_id, place in self._places.items():
            turn = self._live.get(turn_id)
            if place.away and turn is not None and turn.session_id == session_id:
                return turn_id
        return None

    def ending(self, turn_id: str) -> asyncio.Future[Turn] | None:
        """The end of a turn that has not ended; do not cancel it."""
        return self._endings.get(turn_id)

    def expect(self, turn: Turn, *, settled: str = "") -> None:
        """Let others wait for the turn's end, and begin the events of the attempt it is in or comes to.

        ``settled`` is the text that earlier attempts settled.
        """
        self._live[turn.id] = turn
        self._endings[turn.id] = asyncio.get_running_loop().create_future()
        attempt = turn.attempt + (turn.state == "queued")
        self._log.open(turn.id, attempt=attempt)
        if attempt == 1:
            self._log.append(turn.id, "turn.accepted", {"id": turn.id, "channelId": turn.channel})
        else:
            self._log.append(turn.id, "turn.resumed", {"attempt": attempt, "text": settled})

    def start(self, turn: Turn, *, context: Context | None = None) -> None:
        """Run a turn that the database holds as running; once stopping, leave it to the next start."""
        if self._stopping:
            return
        task = asyncio.create_task(self._run(turn), name=turn.id, context=context)
        self._tasks[turn.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(turn.id, None))

    async def start_alone(self, turn: Turn) -> None:
        """Run a turn and return when it has settled a step or ended."""
        settled = self._settled[turn.id] = asyncio.Event()
        self.start(turn)
        try:
            await settled.wait()
        finally:
            del self._settled[turn.id]

    def cancel(self, turn_id: str) -> None:
        """Stop a running turn's model call and tools; it ends as cancelled, unless its end is being written."""
        if turn_id not in self._live or turn_id not in self._tasks or turn_id in self._cancelled:
            return
        self._cancelled.add(turn_id)
        if turn_id in self._answering:
            self._answering[turn_id].cancel()

    def steer(self, turn_id: str) -> None:
        """Have a running turn look for what its speaker added, before it asks the model again."""
        if turn_id in self._live:
            self._steered.add(turn_id)

    async def stop(self, *, grace: float) -> None:
        """Give running turns ``grace`` seconds, and leave the rest to the next start.

        Those that only wait for somebody's approval do so after the next start.
        """
        self._stopping = True
        at_rest = {turn_id for turn_id, place in self._places.items() if place.rests}
        busy = [task for turn_id, task in self._tasks.items() if turn_id not in at_rest]
        if busy:
            await asyncio.wait(busy, timeout=grace)
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._log.close()
        for ending in self._endings.values():
            ending.set_exception(stopped())
            ending.exception()  # so that nobody has to have waited for it
        self._endings.clear()

    async def settled_text(self, turn: Turn) -> str:
        """The text of what earlier attempts of the turn settled."""
        return text_of(settled_messages(await self._journal(turn, self._database.run)))

    def tell_ends(self, ended: Sequence[Turn]) -> None:
        """Let those who wait or watch know."""
        for turn in ended:
            self._tell_end(turn)

    def _tell_end(self, ended: Turn) -> None:
        ending = self._forget(ended)
        if ending is not None:
            ending.set_result(ended)
            if ended.merged_into is not None and ended.reply:  # the deltas were those of the other turn
                self._log.append(ended.id, "message.snapshot", {"text": ended.reply})
            self._log.append(ended.id, "turn.completed" if ended.failure is None else "turn.failed", {})
        self._note_settled(ended.id)
        if self._ended is not None:
            self._ended(ended)
        _log.info("turn ended", extra={"state": ended.state, "model": ended.model})

    def check_runs(self, session_id: str) -> None:
        """Raise ``QueueFull`` where what waits in a session would not be run before the next start."""
        if session_id in self._stuck:
            raise QueueFull(
                "Nothing runs in this session until the gateway is started again: the end of a turn could not "
                "be written, and the gateway's log says why.",
                headers={"Retry-After": "60"},
            )

    def _give_up_on(self, turn: Turn, error: Exception) -> None:
        """Leave a turn whose end cannot be written to the next start, with those that stand behind it in its
        session, and let nobody wait for them or watch.
        """
        self._stuck.add(turn.session_id)
        for left in [one for one in self._live.values() if one.session_id == turn.session_id]:
            ending = self._forget(left)
            if ending is not None:
                ending.set_exception(error)
                ending.exception()
                self._log.append(left.id, "turn.failed", {})
        self._note_settled(turn.id)

    def _forget(self, turn: Turn) -> asyncio.Future[Turn] | None:
        """Run it no more; returns what others may wait for."""
        self._live.pop(turn.id, None)
        self._cancelled.discard(turn.id)
        self._steered.discard(turn.id)
        return self._endings.pop(turn.id, None)

    async def _run(self, turn: Turn) -> None:
        with bind(turn_id=turn.id):
            try:
                ended, following = await self._record(turn, await self._answer(turn))
            except Exception as error:  # noqa: BLE001 - nobody else would see it
                _log.exception("a turn's end could not be written; the next start runs it again")
                self._give_up_on(turn, error)
                return
            self.tell_ends(ended)
        if following is not None:
            # In a context of its own: the request that this turn's ended one came with is not its own.
            self.start(following, context=Context())

    async def _answer(self, turn: Turn) -> Ending:
        """Ask the agent; whatever goes wrong becomes the turn's failure."""
        limit = asyncio.timeout(self._turn_timeout)
        place = Place(slots=self._slots, limit=limit)
        told = _Told(self._log, turn.id, place)
        if turn.id in self._cancelled:  # before its task had taken a step
            return self.cut_off(turn, told.text)
        try:
            answer = await self._asked(turn, told, place, limit)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                return told.paid(self.failed(error))  # the agent let a cancellation of its own through
            if turn.id not in self._cancelled:
                raise  # the gateway stops
            task.uncancel()
            return told.paid(self.cut_off(turn, told.text), stopped=True)
        except TimeoutError as error:
            stopped = limit.expired()
            return told.paid(self.failed(TurnTimeout() if stopped else error), stopped=stopped)
        except Exception as error:  # noqa: BLE001 - a bug must not leave its turn unanswered
            return told.paid(self.failed(error))
        return Ending(at=self._clock(), reply=answer.reply, history=answer.history, spent=answer.spent)

    async def _asked(self, turn: Turn, told: _Told, place: Place, limit: asyncio.Timeout) -> Answer:
        """What the agent answers, once there is room; only here the turn's task may be cancelled."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this runs in one
        self._answering[turn.id] = task
        try:
            self._places[turn.id] = place
            async with place, limit:
                asking = partial(self._ask, turn, told, place)
                journal = await self._journal(turn, self.persist, asking)
                if turn.attempt > 1:
                    await journal.resume()
                told.begin(journal)
                return await self._agent.run(turn, told, journal)
        finally:
            del self._answering[turn.id]
            del self._places[turn.id]

    async def _ask(self, turn: Turn, told: _Told, place: Place, question: Question, keep: Persists) -> Decision:
        """Have somebody decide about a call; meanwhile others may run in the turn's place."""

        def opened(approval: Approval) -> None:
            self._note_settled(turn.id)  # nobody is held up for as long as it waits
            told("approval.required", asked_of(approval))

        return await self._approvals.ask(
            turn, question, said=told.text, keep=keep, run=self.persist, away=place.left, opened=opened
        )

    def cut_off(self, turn: Turn, text: str) -> Ending:
        """The end of a turn that was cancelled when it had begun; what it had said is kept."""
        kept = history.dump(history.cut_off(turn.content, text), speaker=turn.user)
        return replace(self.cancelled(), text=text, history=kept)

    def cancelled(self) -> Ending:
        """The end of a turn that somebody cancelled."""
        failure = TurnCancelled()
        why = Failure(code=failure.code, detail=failure.detail)
        return Ending(at=self._clock(), state="cancelled", failure=why)

    def failed(self, error: BaseException) -> Ending:
        """The end of a turn on which something went wrong; a bug's own words are for the log alone."""
        if isinstance(error, GatewayError):
            _log.warning("turn failed", extra={"code": error.code, "detail": error.detail})
        else:
            _log.error("turn failed on a bug", exc_info=error)
            error = GatewayError()
        seconds = error.headers.get("Retry-After")
        failure = Failure(
            code=error.code,
            detail=error.detail,
            retry_after=int(seconds) if seconds else None,
            policies=tuple(error.extra.get("violatedPolicies", ())),
        )
        return Ending(at=self._clock(), state="failed", failure=failure)

    async def _record(self, turn: Turn, ending: Ending) -> tuple[list[Turn], Turn | None]:
        """Write the end down; an answer that no database would take is a failure of the turn."""
        try:
            return await self._written(turn, ending)
        except Exception as error:  # noqa: BLE001 - as in _answer
            return await self._written(turn, replace(self.failed(error), spent=ending.spent))

    async def _written(self, turn: Turn, ending: Ending) -> tuple[list[Turn], Turn | None]:
        outcome, warned = await self.persist(partial(self._finish, turn=turn, ending=ending))
        self._budgets.tell(warned)
        return outcome

    def _finish(
        self, connection: Connection, turn: Turn, ending: Ending
    ) -> tuple[tuple[list[Turn], Turn | None], list[Warned]]:
        held = self._budgets.held(connection, turn)
        if ending.stopped_at is not None:
            self._budgets.stop(connection, turn, ending.stopped_at)
        # Asked at each try. What is claimed once stopping is not begun, and would be blamed for a kill.
        ended, following = rows.finish(connection, turn, ending, hold=self.holding or self._stopping)
        return (ended, following), self._budgets.warnings(connection, ended[0], held)

    async def persist(self, work: Work[T]) -> T:
        """Execute ``work`` as ``Database.run`` does, for however long the database cannot be written.

        For what has happened already and must not be lost.
        """
        pauses = iter(_RETRY_PAUSES)
        pause = 0.0
        while True:
            try:
                return await self._database.run(work)
            except StoreUnavailable:
                pause = next(pauses, pause)
                await self._pause(pause)

    async def _journal(self, turn: Turn, run: Persists, asking: Asking | None = None) -> TurnJournal:
        return await TurnJournal.open(
            run=run,
            turn=turn,
            budgets=self._budgets,
            is_steered=lambda: turn.attempt > 1 or turn.id in self._steered,
            on_settled=partial(self._note_settled, turn.id),
            asking=asking,
        )

    def _note_settled(self, turn_id: str) -> None:
        settled = self._settled.get(turn_id)
        if settled is not None:
            settled.set()


class _Told:
    """Passes the agent's events on, and keeps what the end of a turn needs that breaks off."""

    def __init__(self, log: EventLog, turn_id: str, place: Place) -> None:
        self._log = log
        self._turn_id = turn_id
        self._place = place
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
        """The end of a turn that broke off, with what it has to pay for; ``stopped`` while it asks."""
        if self._journal is None:
            return ending
        asked = "".join(self._pieces[self._asked_at :]) if stopped and self._journal.was_asking else None
        return replace(ending, spent=self._journal.owed, stopped_at=asked)

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None:
        if type_ == "message.delta":
            self._pieces.append(data["text"])
        elif type_ in ("tool.started", "tool.finished"):
            self._place.count(1 if type_ == "tool.started" else -1)
            self._asked_at = len(self._pieces)
        self._log.append(self._turn_id, type_, data)


def stopped() -> Draining:
    """What those are told who wait for a turn when the gateway stops."""
    return Draining("The gateway was stopped; the message is answered after its next start.")
