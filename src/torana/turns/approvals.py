"""Calls of tools that wait for somebody's yes: asked, decided once, and expired to a no."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from torana.agent.approval import Decision, Question
from torana.errors import AlreadyDecided, ApprovalChanged, NotFound, NotWaiting
from torana.lasting import either
from torana.messages import Inbound, Turn, new_id, utc_now
from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.store import approvals as rows
from torana.store import deliveries
from torana.store import turns as turn_rows
from torana.store.approvals import Approval, Verdict
from torana.store.audit import Act, record
from torana.store.database import Connection, Database, Work
from torana.store.questions import question_text
from torana.turns.journal import Persists

#: Seconds between two looks at the clock and the row while nobody decides.
_LOOK = 60.0

_NOBODY = "it needs somebody's approval, and here is nobody who can be asked"
_NO_ANSWER = "it needs somebody's approval, and nobody answered in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What somebody decides about a call: approved, perhaps with other arguments, or denied.

    With a ``digest`` it is decided about the call of that digest alone (``call_digest``).
    """

    approve: bool
    arguments: Mapping[str, Any] | None = None
    reason: str | None = None
    digest: str | None = None


@dataclass(slots=True)
class _Waiting:
    """A call that waits in this process."""

    question: Question
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Approvals:
    """Asks about calls and takes the answers.

    The rows say how everything stands: what is decided while nobody waits here, is found when its turn comes
    past the call again.
    """

    def __init__(
        self,
        *,
        database: Database,
        lasts: timedelta = timedelta(hours=1),
        clock: Callable[[], datetime] = utc_now,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        can_ask: Callable[[str], bool] = lambda _: True,
        question_changed: Callable[[Turn], None] = lambda _: None,
    ) -> None:
        """After ``lasts`` a question is a no. ``can_ask`` tells whether people see questions on an account;
        ``question_changed`` is told the turn in whose chat another question may be to say, or none any more.
        """
        self._database = database
        self._lasts = lasts
        self._clock = clock
        self._pause = pause
        self._can_ask = can_ask
        self._question_changed = question_changed
        self._waiting: dict[tuple[str, int, str], _Waiting] = {}
        #: The ids of approvals that calls wait for, and whether a reader of the turn's events was sent each.
        self._streamed: dict[str, bool] = {}
        self._deciding: set[asyncio.Task[Any]] = set()

    async def ask(
        self,
        turn: Turn,
        question: Question,
        *,
        said: str,
        keep: Persists,
        run: Persists,
        away: Callable[[], AbstractAsyncContextManager[None]],
        opened: Callable[[Approval], None],
    ) -> Decision:
        """Have somebody decide about a call, and wait for it inside of ``away``.

        ``said`` is what the reply is so far. ``keep`` keeps the step that called it together with the question;
        where nobody is there to ask, the answer is no at once, and it keeps the step alone. After that
        ``opened`` is told of a question that is open.
        """
        if not self._is_there(turn):
            await keep(lambda _: None)
            return Decision(approved=False, reason=_NOBODY)
        key = (turn.id, question.step, question.call_id)
        waiting = self._waiting[key] = _Waiting(question)
        try:
            new = self._new(turn, question, said)
            approval = await keep(partial(_open, turn=turn, new=new, said=said))
            self._question_changed(turn)
            if approval.state == "open":
                asked_by = approval.id
                self._streamed[asked_by] = False
                try:
                    opened(approval)
                    async with away():
                        approval = await self._until_decided(turn, approval, waiting, run)
                finally:
                    del self._streamed[asked_by]
        finally:
            del self._waiting[key]
        return _decision(approval)

    async def get(self, owner: str, approval_id: str) -> Approval:
        """Return the owner's approval, decided or not. Raises ``NotFound``."""
        found = await self._find(owner, approval_id)
        is_over = found.state == "open" and found.expires_at <= self._clock()
        return replace(found, state="expired") if is_over else found

    async def decide_by_id(self, owner: str, approval_id: str, choice: Choice, act: Act) -> Approval:
        """Decide about a call; recorded as an act where it decides. Deciding the same again changes nothing.

        Raises ``NotFound``, ``ApprovalChanged`` for the digest of another call, ``AlreadyDecided``,
        ``InvalidField`` for arguments that the tool would not take, and ``NotWaiting`` where it cannot be asked
        about them yet.
        """
        return await self._decide_on(await self._find(owner, approval_id), choice, act)

    async def decide(self, owner: str, turn_id: str, call_id: str, choice: Choice, act: Act) -> Approval:
        """Decide about a call of a turn, as ``decide_by_id`` does.

        Raises ``ApprovalChanged`` also where the turn has several calls of that id.
        """
        work = partial(rows.of_call, owner=owner, turn_id=turn_id, call_id=call_id)
        found = await self._database.run(work)
        if not found:
            raise NotFound(f"the turn {turn_id!r} has no approval {call_id!r}")
        if len(found) > 1:
            ids = ", ".join(one.id for one in found)
            raise ApprovalChanged(f"The turn has several calls {call_id!r}. Decide by approval id: {ids}.")
        return await self._decide_on(found[0], choice, act)

    def note_streamed(self, approval_id: str) -> None:
        """Note that a reader of the turn's events was sent an approval; from then on a word may answer it."""
        if approval_id in self._streamed:
            self._streamed[approval_id] = True

    def streamed_ids(self) -> Set[str]:
        """Return the ids of the approvals that are waited for and that an event stream has carried."""
        return {approval_id for approval_id, was_sent in self._streamed.items() if was_sent}

    async def open_of(self, owner: str, turn_id: str) -> Sequence[Approval]:
        """What the owner's turn asks at this moment, in the order of asking."""
        work = partial(rows.open_of, owner=owner, turn_id=turn_id, now=self._clock())
        return await self._database.run(work)

    async def listed(self, owner: str, *, limit: int, after: str | None = None) -> Page[Approval]:
        """The owner's open approvals, the newest first.

        Raises ``InvalidField`` for a cursor that no page gave.
        """
        before = read_cursor(after, TIME_KEY)
        work = partial(rows.listed, owner=owner, now=self._clock(), before=before, limit=limit + 1)
        return cut(await self._database.run(work), limit, _place, TIME_KEY)

    def wake(self, approval: Approval) -> None:
        """Let the call go on that waits for this; called after the commit."""
        waiting = self._waiting.get((approval.turn_id, approval.step, approval.call_id))
        if waiting is not None:
            waiting.woken.set()

    def _is_there(self, turn: Turn) -> bool:
        """Whether there is anybody to ask: who sent it over HTTP or can read along on a platform."""
        if turn.account is not None:
            return turn.place is not None and self._can_ask(turn.account)
        return not turn.scheduled

    def _new(self, turn: Turn, question: Question, said: str) -> Approval:
        now = self._clock()
        return Approval(
            id=new_id("apr"),
            turn_id=turn.id,
            step=question.step,
            call_id=question.call_id,
            owner=turn.owner,
            tool=question.tool,
            arguments=question.arguments,
            said=len(said),
            created_at=now,
            expires_at=now + self._lasts,
        )

    async def _until_decided(
        self, turn: Turn, approval: Approval, waiting: _Waiting, run: Persists
    ) -> Approval:
        """The approval once it is not open any more; where somebody decided it, its chat is asked the next."""
        while True:
            left = (approval.expires_at - self._clock()).total_seconds()
            await either(waiting.woken, self._pause(min(_LOOK, max(0.0, left))))
            work = partial(_look, turn=turn, approval=approval, now=self._clock(), lasts=self._lasts)
            approval = await run(work)
            if approval.state != "open":
                self._question_changed(turn)
                return approval

    async def _find(self, owner: str, approval_id: str) -> Approval:
        found = await self._database.run(partial(rows.get, owner=owner, approval_id=approval_id))
        if found is None:
            raise NotFound(f"there is no approval {approval_id!r}")
        return found

    async def _decide_on(self, found: Approval, choice: Choice, act: Act) -> Approval:
        if choice.digest not in (None, found.digest):
            raise ApprovalChanged
        if choice.arguments is not None and found.state == "open":
            await self._check(found, choice.arguments)
        verdict = _verdict(choice, by=act.principal, at=self._clock())
        approval = await self._carried_out(partial(_decide, approval=found, verdict=verdict, act=act))
        if approval.id != found.id:
            raise ApprovalChanged
        if (approval.state, approval.edited) != (verdict.state, verdict.edited):
            raise AlreadyDecided(f"The call {found.call_id!r} is {approval.state} already.")
        return approval

    async def _check(self, approval: Approval, arguments: Mapping[str, Any]) -> None:
        waiting = self._waiting.get((approval.turn_id, approval.step, approval.call_id))
        if waiting is None:
            raise NotWaiting
        await waiting.question.check(arguments)

    async def _carried_out(self, work: Work[Approval]) -> Approval:
        """What the decision made of it; it is carried to its end when its caller goes away."""

        async def both() -> Approval:
            approval = await self._database.run(work)
            self.wake(approval)
            return approval

        return await asyncio.shield(self._kept(both()))

    def _kept(self, work: Coroutine[Any, Any, Approval]) -> asyncio.Task[Approval]:
        task = asyncio.create_task(work)
        self._deciding.add(task)
        task.add_done_callback(self._deciding.discard)
        return task


def answer(
    connection: Connection,
    inbound: Inbound,
    choice: Choice,
    act: Act,
    *,
    streamed: Set[str],
) -> tuple[Approval, Sequence[Approval]] | None:
    """Decide the call that this message's speaker was shown in the channel when it was said, and return it with
    what else they were asked there; None where there is none, or it cannot be told.

    A chat is shown one question at a time. Over HTTP the speaker was shown the question that the last reply to
    them put, or else the only one that they can mean, where it is among those that were ``streamed``.
    """
    asked = rows.open_to(connection, inbound, now=act.at)
    if inbound.account is None:
        asked = _questions_meant(connection, inbound, asked, streamed)
    if not asked:
        return None
    return _decide(connection, asked[0], _verdict(choice, by=act.principal, at=act.at), act), asked[1:]


def _questions_meant(
    connection: Connection, inbound: Inbound, asked: list[Approval], streamed: Set[str]
) -> list[Approval]:
    """Return the questions, first the one that a word over HTTP answers; none where it answers none of them."""
    put = next((one for one in asked if rows.is_last_reply(connection, inbound, one)), None)
    if put is not None:
        return [put, *(one for one in asked if one is not put)]
    if len(asked) != 1 or (asked[0].delivery is None and asked[0].id not in streamed):
        return []
    return asked if rows.is_unmistakable(connection, inbound, asked[0]) else []


def unanswered(connection: Connection, inbound: Inbound, now: datetime) -> Approval | None:
    """The question that is open in the chat in which this message was said, though the message does not answer
    it: its speaker cannot have seen all of it. Over HTTP, the oldest to its speaker in the channel.
    """
    if inbound.account is None:
        return next(iter(rows.open_to(connection, inbound, now=now)), None)
    return rows.said_to(connection, inbound, now=now)


def ask_again(connection: Connection, approval: Approval, at: datetime) -> None:
    """Have a question said once more that may never be shown as it was said; it expires as before."""
    turn = turn_rows.get(connection, approval.owner, approval.turn_id)
    number = turn and deliveries.add_question(
        connection, turn, question_text(approval.tool, approval.arguments), at=at
    )
    if number is not None:
        rows.say(connection, approval, number, approval.expires_at)


def _open(connection: Connection, turn: Turn, new: Approval, said: str) -> Approval:
    approval = rows.ask(connection, new)
    _say_next(connection, turn, new.created_at, expires_at=new.expires_at, said=said)
    return approval


def _look(connection: Connection, turn: Turn, approval: Approval, now: datetime, lasts: timedelta) -> Approval:
    found = rows.look(connection, approval, now)
    if found.state == "open" and found.expires_at > now + lasts:  # the clock was set back
        found = rows.expire_at(connection, found, now + lasts)
    if found.state == "expired" and turn.place is not None:
        rows.lapse(connection, turn.id, now)
    elif found.state in ("approved", "denied"):
        _say_next(connection, turn, now, expires_at=now + lasts)
    return found


def _say_next(
    connection: Connection, turn: Turn, at: datetime, *, expires_at: datetime, said: str = ""
) -> None:
    """Have the turn's chat hear one question at a time, so that nobody has to guess what a yes is said to.

    Its time begins then. What the reply is so far (``said``) is told with the first of them; the others come
    of the same answer.
    """
    if turn.place is None:
        return
    question = rows.to_say(connection, turn.id, at)
    if question is None:
        return
    untold = said[rows.told(connection, turn.id, but=question) :].strip()
    text = "\n\n".join(filter(None, [untold, question_text(question.tool, question.arguments)]))
    number = deliveries.add_question(connection, turn, text, at=at)
    if number is not None:
        rows.say(connection, question, number, expires_at)


def _decide(connection: Connection, approval: Approval, verdict: Verdict, act: Act) -> Approval:
    decided, is_now = rows.decide(connection, approval, verdict)
    if is_now:
        record(
            connection,
            act,
            "approval.approve" if verdict.state == "approved" else "approval.deny",
            decided.turn_id,
            callId=decided.call_id,
            tool=decided.tool,
            edited=decided.edited is not None,
        )
    return decided


def _verdict(choice: Choice, *, by: str, at: datetime) -> Verdict:
    return Verdict(
        state="approved" if choice.approve else "denied",
        at=at,
        by=by,
        edited=choice.arguments if choice.approve else None,
        reason=choice.reason,
    )


def _decision(approval: Approval) -> Decision:
    match approval.state:
        case "approved":
            return Decision(approved=True, arguments=approval.edited)
        case "denied":
            why = f", who said: {approval.reason}" if approval.reason else ""
            return Decision(approved=False, reason=f"it was denied by whoever was asked{why}")
        case _:
            return Decision(approved=False, reason=_NO_ANSWER)


def _place(approval: Approval) -> tuple[datetime, str]:
    return approval.created_at, approval.id
