"""The journal of one turn, in the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from torana.agent.approval import Decision, Question
from torana.agent.journal import Call, Step, responses_of
from torana.agent.texts import text_of
from torana.errors import BudgetSpent
from torana.limits.budgets import Budgets, RequestTokens, Settled
from torana.messages import Turn, Usage
from torana.sessions import history
from torana.store import journal as rows
from torana.store.database import Connection, Work
from torana.store.turns import take_steers

T = TypeVar("T")


class Persists(Protocol):
    """Executes transactions: ``Database.run``, or one that waits while the database cannot be written."""

    def __call__(self, work: Work[T], /) -> Awaitable[T]:
        """Return what the work returns, after the commit."""
        ...


#: Has somebody decide about a call of a turn's, and waits for it; what the second one executes is kept
#: together with the step that called.
Asking: TypeAlias = Callable[[Question, Persists], Awaitable[Decision]]


class TurnJournal:
    """See ``agent.journal.Journal``. ``on_settled`` is called whenever something of the turn is settled."""

    def __init__(
        self,
        *,
        run: Persists,
        turn: Turn,
        steps: Sequence[Step],
        calls: Sequence[Call],
        budgets: Budgets,
        is_steered: Callable[[], bool],
        on_settled: Callable[[], None],
        asking: Asking,
        request: RequestTokens | None = None,
    ) -> None:
        """``request`` is the next request to the model, as far as something is known to be held back for it."""
        self.steps = steps
        self._run = run
        self._turn = turn
        self._calls = {(call.step, call.id): call for call in calls}
        self._is_steered = is_steered
        self._budgets = budgets
        self._on_settled = on_settled
        self._asking = asking
        self._refusal: BudgetSpent | None = None
        self._request = request
        #: How many tokens the request likely has that was made last.
        self.asked: int | None = None
        #: As a run that broke off has left it.
        self.owed = Usage()
        self.was_asking = False

    @classmethod
    async def open(
        cls,
        *,
        run: Persists,
        turn: Turn,
        budgets: Budgets,
        is_steered: Callable[[], bool],
        on_settled: Callable[[], None],
        asking: Asking,
        request: RequestTokens | None = None,
    ) -> TurnJournal:
        """The journal with what earlier attempts wrote; a first attempt has none to read."""
        earlier = turn.attempt - (turn.state == "running")
        steps, calls = await run(partial(rows.load, turn_id=turn.id)) if earlier else ([], [])
        return cls(
            run=run,
            turn=turn,
            steps=[Step(number=row["number"], messages=history.load(row["body"])) for row in steps],
            calls=[
                Call(
                    step=row["step"],
                    id=row["id"],
                    tool=row["tool"],
                    idempotent=row["idempotent"],
                    state=row["state"],
                    result=row["result"],
                )
                for row in calls
            ],
            budgets=budgets,
            is_steered=is_steered,
            on_settled=on_settled,
            asking=asking,
            request=request,
        )

    def call(self, step: int, call_id: str) -> Call | None:
        """See ``Journal``."""
        return self._calls.get((step, call_id))

    async def steers(self, step: int) -> Sequence[Turn]:
        """See ``Journal``. The database is asked only where there may be something."""
        if not self._is_steered():
            return ()
        return await self._run(partial(take_steers, turn=self._turn, step=step))

    async def settle(self, step: Step) -> None:
        """See ``Journal``."""
        await self._keep(step, lambda _: None)

    async def start(self, call: Call, step: Step | None) -> None:
        """See ``Journal``."""
        self._note(await self._run(partial(self._start, call=call, step=step)))

    async def finish(self, call: Call) -> None:
        """See ``Journal``."""
        self._note(await self._run(partial(self._finish, call=call)))
        self._on_settled()

    async def ask(self, question: Question, step: Step | None) -> Decision:
        """See ``Journal``."""
        return await self._asking(question, partial(self._keep, step))

    async def resume(self) -> None:
        """Have something held back for the next model call of a turn that goes on after a crash."""
        self._note(await self._run(partial(self._budgets.resume, turn=self._turn)))

    async def hold(self, request: RequestTokens) -> None:
        """See ``Journal``. The database is asked only where less is known to be held back."""
        self.asked = request.likely
        if (self._request is None or request.most > self._request.most) and self._refusal is None:
            self._note(await self._run(partial(self._hold, request=request)))

    def check_budgets(self) -> None:
        """See ``Journal``."""
        if self._refusal is not None:
            raise self._refusal

    def leave(self, *, owed: Usage, asking: bool) -> None:
        """See ``Journal``."""
        self.owed, self.was_asking = owed, asking

    async def _keep(self, step: Step | None, work: Work[T]) -> T:
        """Settle a step, where there is one, and do ``work`` in the same transaction."""
        if step is None:
            return await self._run(work)

        def both(connection: Connection) -> tuple[Settled, T]:
            return self._settle(connection, step), work(connection)

        settled, result = await self._run(both)
        self._note(settled)
        self._on_settled()
        return result

    def _settle(self, connection: Connection, step: Step) -> Settled:
        rows.settle(connection, self._step(step))
        return self._requested(self._budgets.settle(connection, self._turn, responses_of(step.messages)))

    def _start(self, connection: Connection, call: Call, step: Step | None) -> Settled:
        rows.start(connection, self._call(call), step and self._step(step))
        if step is None:
            return Settled()
        return self._requested(self._budgets.settle(connection, self._turn, responses_of(step.messages)))

    def _finish(self, connection: Connection, call: Call) -> Settled:
        rows.finish(connection, self._call(call))
        likely = self._request.likely if self._request else None
        return self._requested(self._budgets.add_result(connection, self._turn, call.result, likely=likely))

    def _hold(self, connection: Connection, request: RequestTokens) -> Settled:
        return self._requested(self._budgets.hold(connection, self._turn, request))

    def _requested(self, settled: Settled) -> Settled:
        """Note the request for which something is held back now, before the next transaction begins."""
        self._request = settled.request
        return settled

    def _note(self, settled: Settled) -> None:
        self._budgets.tell(settled.warned)
        self._refusal = self._refusal or settled.refusal

    def _step(self, step: Step) -> dict[str, Any]:
        body, _ = history.dump(step.messages, speaker=self._turn.user)
        return {
            "turn_id": self._turn.id,
            "number": step.number,
            "attempt": self._turn.attempt,
            "body": body,
        }

    def _call(self, call: Call) -> dict[str, Any]:
        return {
            "turn_id": self._turn.id,
            "step": call.step,
            "id": call.id,
            "attempt": self._turn.attempt,
            "tool": call.tool,
            "idempotent": call.idempotent,
            "state": call.state,
            "result": call.result,
        }


def settled_text(connection: Connection, turn: Turn) -> str:
    """The text of what earlier attempts settled of a turn that does not run."""
    steps, _ = rows.load(connection, turn.id)
    return text_of([message for row in steps for message in history.load(row["body"])])
