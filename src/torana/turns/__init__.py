"""Accept, order, run, record: the durable inbox and the only writer of history."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextvars import Context
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from torana.agent import Answer, Emit
from torana.errors import Draining, GatewayError, NotFound, StoreUnavailable, TurnTimeout
from torana.messages import EventType, Failure, Inbound, Turn, TurnEvent, new_id, utc_now
from torana.store import turns as rows
from torana.store.database import Database
from torana.store.turns import Ending, NewTurn
from torana.telemetry import bind
from torana.turns.log.base import EventLog

#: Pauses before a turn's end is written again, while the database cannot be written; the last one repeats.
_RETRY_PAUSES = (0.1, 0.5, 2.0, 5.0)

_log = logging.getLogger(__name__)


class RunsTurns(Protocol):
    """The agent, as far as turns know it."""

    async def run(self, turn: Turn, emit: Emit) -> Answer:
        """Answer one turn."""
        ...


class Turns:
    """Takes messages in, runs each session's turns one at a time in the order of acceptance, keeps the answers.

    One process owns the database; the tasks that run turns live here.
    """

    def __init__(
        self,
        *,
        database: Database,
        agent: RunsTurns,
        log: EventLog,
        turn_timeout: float,
        clock: Callable[[], datetime] = utc_now,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database = database
        self._agent = agent
        self._log = log
        self._turn_timeout = turn_timeout
        self._clock = clock
        self._pause = pause
        self._accepting = True
        #: Messages on their way into the store.
        self._writing: set[asyncio.Task[Turn]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        #: One per turn that has not ended, for those who wait for it.
        self._endings: dict[str, asyncio.Future[Turn]] = {}

    async def start(self) -> None:
        """Take up what an earlier process left unfinished."""
        for turn in await self._database.run(rows.recover):
            self._await_end_of(turn)
            if turn.state == "running":
                _log.info("turn taken up again", extra={"turn_id": turn.id})
                self._start(turn)

    async def stop(self, *, grace: float) -> None:
        """Take no more messages, give running turns ``grace`` seconds, and leave the rest to the next start."""
        self._accepting = False
        if self._writing:
            await asyncio.wait(self._writing)
        if self._running:
            await asyncio.wait(self._running.values(), timeout=grace)
        left = list(self._running.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._log.close()
        for ending in self._endings.values():
            ending.set_exception(_stopped())
            ending.exception()  # so that nobody has to have waited for it
        self._endings.clear()

    @property
    def draining(self) -> bool:
        """Whether no more messages are taken."""
        return not self._accepting

    def check_accepting(self) -> None:
        """Raise ``Draining`` when no more messages are taken."""
        if not self._accepting:
            raise Draining(headers={"Retry-After": "5"})

    async def accept(self, inbound: Inbound) -> Turn:
        """Write a message down and see to it that it is answered. When this returns, it is durable.

        Without a channel the turn gets one of its own. Raises ``Draining`` or ``StoreUnavailable``; then
        nothing was accepted. Cancelling the call does not take the message back: it may still be answered.
        """
        self.check_accepting()
        # The store may keep the message after its caller went away, and then somebody has to run it.
        writing = asyncio.create_task(self._accept(inbound))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return await asyncio.shield(writing)

    async def _accept(self, inbound: Inbound) -> Turn:
        new = NewTurn(
            turn_id=new_id("turn"),
            session_id=new_id("ses"),
            channel=inbound.channel or new_id("ch"),
            at=self._clock(),
        )
        turn = await self._database.run(partial(rows.accept, inbound=inbound, new=new))
        _log.info("turn accepted", extra={"turn_id": turn.id, "session_id": turn.session_id})
        self._await_end_of(turn)
        if turn.state == "running":
            self._start(turn)
        return turn

    async def get(self, owner: str, turn_id: str) -> Turn:
        """The owner's turn as its row says. Raises ``NotFound``, also for another owner's."""
        turn = await self._database.run(partial(rows.get, owner=owner, turn_id=turn_id))
        if turn is None:
            raise NotFound(f"there is no turn {turn_id!r}")
        return turn

    async def ended(self, turn: Turn) -> Turn:
        """Wait until the turn has ended. Cancelling the wait does nothing to the turn.

        Raises ``Draining`` when the gateway stops before that, and ``NotFound`` as ``get`` does.
        """
        ending = self._endings.get(turn.id)
        if ending is not None:
            return await asyncio.shield(ending)
        found = await self.get(turn.owner, turn.id)
        if not found.ended:
            raise _stopped()
        return found

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

    def _await_end_of(self, turn: Turn) -> None:
        """Let others wait for the turn's end, and begin the log of its attempt: its first event is number 1."""
        self._endings[turn.id] = asyncio.get_running_loop().create_future()
        attempt = max(turn.attempt, 1)
        if attempt == 1:
            first = TurnEvent("1-1", "turn.accepted", {"id": turn.id, "channelId": turn.channel})
        else:
            first = TurnEvent(f"{attempt}-1", "turn.resumed", {"attempt": attempt, "text": ""})
        self._log.append(turn.id, first)

    def _start(self, turn: Turn, *, context: Context | None = None) -> None:
        """Run a turn that the database holds as running; once stopping, leave it to the next start."""
        if not self._accepting:
            return
        task = asyncio.create_task(self._run(turn), name=turn.id, context=context)
        self._running[turn.id] = task
        task.add_done_callback(lambda _: self._running.pop(turn.id, None))

    async def _run(self, turn: Turn) -> None:
        """Run a turn that the database holds as running, record its end, and start the session's next one."""
        with bind(turn_id=turn.id):
            await self._run_bound(turn)

    async def _run_bound(self, turn: Turn) -> None:
        emit = _Emitter(log=self._log, turn=turn)
        ending = await self._answer(turn, emit)
        ended, following = await self._record(turn, ending)
        self._endings.pop(turn.id).set_result(ended)
        emit("turn.completed" if ended.failure is None else "turn.failed", {})
        _log.info("turn ended", extra={"state": ended.state, "model": ended.model})
        if following is not None:
            # In a context of its own: the request that this turn's ended one came with is not its own.
            self._start(following, context=Context())

    async def _answer(self, turn: Turn, emit: Emit) -> Ending:
        """Ask the agent; whatever goes wrong becomes the turn's failure."""
        limit = asyncio.timeout(self._turn_timeout)
        try:
            async with limit:
                answer = await self._agent.run(turn, emit)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this task: the agent let one of its own tasks' cancellation through.
            return self._failed(error)
        except TimeoutError as error:
            return self._failed(TurnTimeout() if limit.expired() else error)
        except Exception as error:  # noqa: BLE001 - a bug must not leave its turn unanswered
            return self._failed(error)
        return Ending(at=self._clock(), reply=answer.reply, history=answer.history)

    def _failed(self, error: BaseException) -> Ending:
        """The end of a turn on which something went wrong; a bug's own words are for the log alone."""
        if isinstance(error, GatewayError):
            _log.warning("turn failed", extra={"code": error.code, "detail": error.detail})
        else:
            _log.error("turn failed on a bug", exc_info=error)
            error = GatewayError()
        return Ending(at=self._clock(), failure=Failure(code=error.code, detail=error.detail))

    async def _record(self, turn: Turn, ending: Ending) -> tuple[Turn, Turn | None]:
        """Write the end down; an answer that no database would take is a failure of the turn."""
        try:
            return await self._written(turn, ending)
        except Exception as error:  # noqa: BLE001 - as in _answer
            return await self._written(turn, self._failed(error))

    async def _written(self, turn: Turn, ending: Ending) -> tuple[Turn, Turn | None]:
        """Try for however long the database cannot be written: the answer is there and is kept."""
        pauses = iter(_RETRY_PAUSES)
        pause = 0.0
        while True:
            try:
                return await self._database.run(partial(rows.finish, turn=turn, ending=ending))
            except StoreUnavailable:
                pause = next(pauses, pause)
                await self._pause(pause)


class _Emitter:
    """Numbers the events of one attempt, behind the one that opened its log."""

    def __init__(self, *, log: EventLog, turn: Turn) -> None:
        self._log = log
        self._turn = turn
        self._number = 1

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None:
        self._number += 1
        self._log.append(self._turn.id, TurnEvent(f"{self._turn.attempt}-{self._number}", type_, data))


def _told_from_row(turn: Turn) -> list[TurnEvent]:
    """The events of an ended turn whose log is gone."""
    attempt = max(turn.attempt, 1)
    events = [TurnEvent(f"{attempt}-1", "turn.accepted", {"id": turn.id, "channelId": turn.channel})]
    if turn.reply:
        events.append(TurnEvent(f"{attempt}-2", "message.snapshot", {"text": turn.reply}))
    if turn.ended:
        last = "turn.completed" if turn.state == "completed" else "turn.failed"
        events.append(TurnEvent(f"{attempt}-{len(events) + 1}", last, {}))
    return events


def _stopped() -> Draining:
    return Draining("The gateway was stopped; the message is answered after its next start.")
