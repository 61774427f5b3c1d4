"""The journal of one turn, in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from torana.agent.approval import ApprovalDecision, Question
from torana.agent.journal import Call, Step, responses_of
from torana.agent.text import PARAGRAPH, text_of
from torana.errors import BudgetSpent
from torana.limits.budgets import Budgets, Settled, log_warnings
from torana.limits.request_tokens import RequestTokens
from torana.messages import Turn, Usage
from torana.sessions import history
from torana.store.engine.database import Connection, Work
from torana.store.rows import journal as rows
from torana.store.rows.reports import timings
from torana.store.rows.turns import take_steers
from torana.turns.timings import RequestTime, TurnTimings

T = TypeVar("T")


class Persists(Protocol):
    """Executes transactions: ``Database.run``, or one that waits while the database cannot be written."""

    def __call__(self, work: Work[T], /) -> Awaitable[T]:
        """Execute ``work``, and return its result after the commit."""
        ...


#: Asks for a decision on a call and waits for it. The second argument executes the transaction that stores the
#: step of the call and the approval.
Asking: TypeAlias = Callable[[Question, Persists], Awaitable[ApprovalDecision]]


class TurnJournal:
    """The ``Journal`` of a turn in the database; calls ``on_settled`` whenever a step or a call is settled.

    It begins empty, and ``load`` reads what earlier attempts settled.
    """

    def __init__(
        self,
        *,
        run: Persists,
        turn: Turn,
        budgets: Budgets,
        is_steered: Callable[[], Awaitable[bool]],
        on_settled: Callable[[], None],
        asking: Asking,
        request: RequestTokens | None = None,
    ) -> None:
        """``request`` is the next model request, if tokens are reserved for it."""
        self.steps: Sequence[Step] = ()
        self._run = run
        self._turn = turn
        self._calls: dict[tuple[int, str], Call] = {}
        self._is_steered = is_steered
        self._budgets = budgets
        self._on_settled = on_settled
        self._asking = asking
        self._refusal: BudgetSpent | None = None
        self.timings = TurnTimings(turn, usage_of=budgets.prices.usage)
        self._request = request
        #: Held while a step is stored. Its calls are stored after it, also if its transaction is repeated.
        self._storing_step = asyncio.Lock()
        #: Estimated tokens of the last model request.
        self.estimated_request: int | None = None
        #: The values that ``leave`` received when the run was interrupted.
        self.owed = Usage()
        self.was_asking = False
        self.unsaid = 0

    async def load(self) -> None:
        """Read the steps and calls of earlier attempts, if there were any."""
        if self._turn.attempt - (self._turn.state == "running") == 0:
            return
        steps, calls = await self._run(partial(rows.load, turn_id=self._turn.id))
        loaded: list[Step] = []
        for row in steps:
            await history.let_others_run(row["body"])
            loaded.append(Step(number=row["number"], messages=history.load(row["body"])))
        self.steps = loaded
        self._calls = {(call.step, call.id): call for call in map(call_of, calls)}

    def call(self, step: int, call_id: str) -> Call | None:
        return self._calls.get((step, call_id))

    async def steers(self, step: int) -> Sequence[Turn]:
        """Return the messages that were added to the running turn; query the database only if there are any."""
        if not await self._is_steered():
            return ()
        return await self._run(partial(take_steers, turn=self._turn, step=step))

    async def settle(self, step: Step) -> None:
        await self._keep(step, lambda _: None)

    async def start(self, call: Call, step: Step | None) -> None:
        self.timings.begin_call(call.step, call.id, call.tool)
        persist = partial(_persist, self._run, self.timings, partial(self._start, call=call, step=step))
        self._note(await _in_order(self._storing_step, step, persist))

    async def finish(self, call: Call) -> None:
        self.timings.end_call(call.step, call.id, "completed" if call.state == "completed" else "failed")
        self._note(await _persist(self._run, self.timings, partial(self._finish, call=call)))
        self._on_settled()

    async def ask(self, question: Question, step: Step | None) -> ApprovalDecision:
        def keep(work: Work[T]) -> Awaitable[T]:
            def open_and_release(connection: Connection) -> T:
                opened = work(connection)
                self._budgets.release(connection, self._turn)
                return opened

            return self._keep(step, open_and_release)

        decision = await self._asking(question, keep)
        self._refusal = None  # it was that of the time of the question
        return decision

    async def hold(self, request: RequestTokens) -> None:
        """Reserve tokens for a model request, and store that it is sent."""
        self.estimated_request = request.likely
        if self._refusal is None:
            self._note(await self._run(partial(self._hold, request=request)))

    def request(self, step: int) -> AbstractContextManager[RequestTime]:
        return self.timings.request(step)

    def check_budgets(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def leave(self, *, owed: Usage, asking: bool, unsaid: int = 0) -> None:
        self.owed, self.was_asking, self.unsaid = owed, asking, unsaid

    async def _keep(self, step: Step | None, work: Work[T]) -> T:
        """Settle the step, if there is one, and do ``work`` in the same transaction."""
        persist = partial(_persist, self._run, self.timings)
        if step is None:
            return await _in_order(self._storing_step, step, partial(persist, work))

        def both(connection: Connection) -> tuple[Settled, T]:
            rows.settle(connection, _step_row(self._turn, step))
            return self._charge(connection, step), work(connection)

        settled, result = await _in_order(self._storing_step, step, partial(persist, both))
        self._note(settled)
        self._on_settled()
        return result

    def _charge(self, connection: Connection, step: Step) -> Settled:
        return self._requested(self._budgets.settle(connection, self._turn, responses_of(step.messages)))

    def _start(self, connection: Connection, call: Call, step: Step | None) -> Settled:
        rows.start(connection, _call_row(self._turn, call), step and _step_row(self._turn, step))
        return Settled() if step is None else self._charge(connection, step)

    def _finish(self, connection: Connection, call: Call) -> Settled:
        rows.finish(connection, _call_row(self._turn, call))
        likely = self._request.likely if self._request else None
        return self._requested(self._budgets.add_result(connection, self._turn, call.result, likely=likely))

    def _hold(self, connection: Connection, request: RequestTokens) -> Settled:
        return self._requested(self._budgets.hold(connection, self._turn, request))

    def _requested(self, settled: Settled) -> Settled:
        """Note the reserved request before the next transaction begins."""
        self._request = settled.request
        return settled

    def _note(self, settled: Settled) -> None:
        log_warnings(settled.warned)
        self._refusal = self._refusal or settled.refusal


async def _in_order(storing_step: asyncio.Lock, step: Step | None, store: Callable[[], Awaitable[T]]) -> T:
    """Store something with a step, or else after the step that is being stored."""
    if step is not None:
        async with storing_step:
            return await store()
    async with storing_step:
        pass
    return await store()


async def _persist(run: Persists, noted: TurnTimings, work: Work[T]) -> T:
    """Execute a transaction that also stores the times so far."""
    times = noted.unstored()

    def both(connection: Connection) -> T:
        timings.store(connection, times)
        return work(connection)

    result = await run(both)
    noted.note_stored(times)
    return result


def settled_text(connection: Connection, turn: Turn) -> str:
    """Return the text of the settled steps.

    Steps of an older version that the model library cannot read are left out; the turn fails when it runs.
    """
    texts = (
        text_of(history.load_readable(body)) if body else (text or b"").decode()
        for text, body in rows.texts(connection, turn.id)
    )
    return PARAGRAPH.join(filter(None, texts))


def call_of(row: Mapping[Any, Any]) -> Call:
    return Call(
        step=row["step"],
        id=row["id"],
        tool=row["tool"],
        idempotent=row["idempotent"],
        state=row["state"],
        result=row["result"],
    )


def _step_row(turn: Turn, step: Step) -> dict[str, Any]:
    body, _ = history.dump(step.messages, speaker=turn.user, with_usage=True)  # limits count it
    text = text_of(step.messages).encode()
    return {"turn_id": turn.id, "number": step.number, "attempt": turn.attempt, "body": body, "text": text}


def _call_row(turn: Turn, call: Call) -> dict[str, Any]:
    return {
        "turn_id": turn.id,
        "step": call.step,
        "id": call.id,
        "attempt": turn.attempt,
        "tool": call.tool,
        "idempotent": call.idempotent,
        "state": call.state,
        "result": call.result,
    }
