"""Tool calls that wait for approval: create, decide and expire their approvals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from torana.agent.approval import ApprovalDecision, Question
from torana.aio import complete, wait_first
from torana.errors import (
    AlreadyDecided,
    ApprovalChanged,
    FieldFault,
    InvalidField,
    NotFound,
    NotWaiting,
    StoreUnavailable,
)
from torana.messages import Inbound, Turn, new_id, utc_now
from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.store.engine.database import Connection, Database, Work
from torana.store.rows import approvals as rows
from torana.store.rows import deliveries
from torana.store.rows import turns as turn_rows
from torana.store.rows.approval_questions import LONGEST_ARGUMENTS, are_too_long, question_text
from torana.store.rows.approvals import Approval, ApprovalVerdict
from torana.store.rows.audit import Act, record
from torana.turns.approval_replies import with_visible_arguments
from torana.turns.journal import Persists

_log = logging.getLogger(__name__)

#: Seconds between two checks of the clock and the row while an approval is open.
_CHECK_INTERVAL = 60.0

_NO_PERSON = "it needs approval, and there is no person to ask"
_TOO_LONG = (
    "it needs approval, and its arguments are too long for a person to review: they have more than "
    f"{LONGEST_ARGUMENTS:,} characters"
)
_NO_ANSWER = "it needs approval, and no answer came in time"

_NOT_CHECKED = (
    "The replica that runs the turn has not checked the changed arguments in time. Send the decision again, or "
    "approve the call without changed arguments."
)
#: Seconds between two looks for the answer of the replica that checks changed arguments, and their maximum.
_ANSWER_GAP, _ANSWER_LOOKS = 0.1, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A decision on a call: approved, possibly with changed arguments, or denied.

    If ``digest`` is set, the decision applies only to the call with that digest (``call_digest``).
    """

    approve: bool
    arguments: Mapping[str, Any] | None = None
    reason: str | None = None
    digest: str | None = None


@dataclass(slots=True)
class _Waiting:
    question: Question
    woken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(kw_only=True, eq=False)
class Approvals:
    """Creates approvals and stores the decisions on them.

    The rows are the only state: a turn that starts again finds a decision that was stored before.
    """

    database: Database
    #: A call that has no decision after this time is denied.
    lasts: timedelta = timedelta(hours=1)
    clock: Callable[[], datetime] = utc_now
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    #: Returns whether people can answer on an account.
    can_ask: Callable[[str], bool] = lambda _: True
    #: Receives a turn when the open question in its chat may have changed.
    question_changed: Callable[[Turn], None] = lambda _: None
    _waiting: dict[tuple[str, int, str], _Waiting] = field(default_factory=dict, init=False)
    _deciding: set[asyncio.Task[Any]] = field(default_factory=set, init=False)

    async def ask(
        self,
        turn: Turn,
        question: Question,
        *,
        said: str,
        keep: Persists,
        run: Persists,
        while_waiting: Callable[[], AbstractAsyncContextManager[None]],
        opened: Callable[[Approval], None],
    ) -> ApprovalDecision:
        """Create an approval for a call and wait for the decision inside ``while_waiting``.

        ``said`` is the reply so far. ``keep`` stores the step of the call and the approval in one transaction.
        If there is no person to ask, or the arguments are too long to review, the call is denied at once and
        only the step is stored. ``opened`` receives the approval if it is open.
        """
        if (reason := self._denial(turn, question)) is not None:
            await keep(lambda _: None)
            return ApprovalDecision(approved=False, reason=reason)
        key = (turn.id, question.step, question.call_id)
        waiting = self._waiting[key] = _Waiting(question)
        try:
            new = self._new(turn, question, said)
            approval = await keep(partial(_open, turn=turn, new=new, said=said))
            self.question_changed(turn)
            if approval.state == "open":
                opened(approval)
                async with while_waiting():
                    approval = await self._until_decided(turn, approval, waiting, run)
        finally:
            del self._waiting[key]
        return _decision(approval)

    async def get(self, owner: str, approval_id: str) -> Approval:
        """Return the owner's approval, decided or not, as it may be shown. Raises ``NotFound``."""
        return await self._hide_private((await self._find(owner, approval_id)).at(self.clock()))

    async def decide_by_id(self, owner: str, approval_id: str, choice: Choice, act: Act) -> Approval:
        """Decide an approval and write an audit record. The same decision again changes nothing.

        Raises ``NotFound``, ``ApprovalChanged`` if the digest is another call's, ``AlreadyDecided``,
        ``InvalidField`` for arguments that the tool does not accept, and ``NotWaiting`` if arguments cannot be
        checked yet because the call waits in no process.
        """
        return await self._hide_private(
            await self._decide_on(await self._find(owner, approval_id), choice, act)
        )

    async def decide(self, owner: str, turn_id: str, call_id: str, choice: Choice, act: Act) -> Approval:
        """Decide the approval of a turn's call, as ``decide_by_id`` does.

        Raises ``ApprovalChanged`` also if several calls of the turn have that id.
        """
        work = partial(rows.of_call, owner=owner, turn_id=turn_id, call_id=call_id)
        found = await self.database.run(work)
        if not found:
            raise NotFound(f"the turn {turn_id!r} has no approval {call_id!r}")
        if len(found) > 1:
            ids = ", ".join(one.id for one in found)
            raise ApprovalChanged(f"The turn has several calls {call_id!r}. Decide by approval id: {ids}.")
        return await self._hide_private(await self._decide_on(found[0], choice, act))

    async def note_streamed(self, approval_id: str) -> None:
        """Store that an event stream has sent an approval to the turn's sender, who can now answer it.

        While the database is unavailable, an answer does not count, and its reply repeats the question.
        """
        with suppress(StoreUnavailable):
            await self.database.run(partial(rows.note_streamed, approval_id=approval_id))

    async def open_of(self, owner: str, turn_id: str) -> Sequence[Approval]:
        """Return the open approvals of the owner's turn, oldest first."""
        work = partial(rows.open_of, owner=owner, turn_id=turn_id, now=self.clock())
        return await self.database.run(work)

    async def list_open(self, owner: str, *, limit: int, after: str | None = None) -> Page[Approval]:
        """Return the owner's open approvals, newest first. Raises ``InvalidField`` for an invalid cursor."""
        before = read_cursor(after, TIME_KEY)
        work = partial(rows.list_open, owner=owner, now=self.clock(), before=before, limit=limit + 1)
        found = await self.database.run(work)
        return cut(found, limit, lambda one: (one.created_at, one.id), TIME_KEY, size=rows.size_of)

    def wake(self, approval: Approval) -> None:
        """Continue the call that waits for this approval. Call it after the commit."""
        self.wake_call((approval.turn_id, approval.step, approval.call_id))

    def wake_call(self, call: tuple[str, int, str]) -> None:
        """Continue a call, named by its turn, step and id, if it waits in this process."""
        if (waiting := self._waiting.get(call)) is not None:
            waiting.woken.set()

    def _denial(self, turn: Turn, question: Question) -> str | None:
        """Return the reason to deny a call without a question, or None."""
        if turn.account is None:
            has_person = not turn.is_scheduled
        else:
            has_person = turn.place is not None and self.can_ask(turn.account)
        if not has_person:
            return _NO_PERSON
        return _TOO_LONG if are_too_long(question.arguments) else None

    def _new(self, turn: Turn, question: Question, said: str) -> Approval:
        now = self.clock()
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
            expires_at=now + self.lasts,
        )

    async def _until_decided(
        self, turn: Turn, approval: Approval, waiting: _Waiting, run: Persists
    ) -> Approval:
        """Wait until the approval is decided or has expired, and return it."""
        while True:
            left = (approval.expires_at - self.clock()).total_seconds()
            await wait_first(waiting.woken, self.pause(min(_CHECK_INTERVAL, max(0.0, left))))
            waiting.woken.clear()
            work = partial(_look, turn=turn, approval=approval, now=self.clock(), lasts=self.lasts)
            approval, proposal = await run(work)
            if proposal is not None:
                answer = await _answer_to(proposal, waiting.question)
                work = partial(rows.answer_proposal, approval=approval, proposal=proposal, answer=answer)
                await run(work)
            if approval.state != "open":
                self.question_changed(turn)
                return approval

    async def _find(self, owner: str, approval_id: str) -> Approval:
        found = await self.database.run(partial(rows.get, owner=owner, approval_id=approval_id))
        if found is None:
            raise NotFound(f"there is no approval {approval_id!r}")
        return found

    async def _hide_private(self, approval: Approval) -> Approval:
        shared = await self.database.run(partial(rows.is_in_shared_session, approval=approval))
        return with_visible_arguments(approval, shared=shared)

    async def _decide_on(self, found: Approval, choice: Choice, act: Act) -> Approval:
        if choice.digest not in (None, found.digest):
            raise ApprovalChanged
        if choice.arguments is not None and found.state == "open":
            await self._check(found, choice.arguments)
        verdict = _verdict(choice, by=act.principal, at=self.clock())
        approval = await self._complete_decision(partial(_decide, approval=found, verdict=verdict, act=act))
        if approval.id != found.id:
            raise ApprovalChanged
        if (approval.state, approval.edited) != (verdict.state, verdict.edited):
            raise AlreadyDecided(f"The call {found.call_id!r} is already {approval.state}.")
        return approval

    async def _check(self, approval: Approval, arguments: Mapping[str, Any]) -> None:
        if are_too_long(arguments):
            fault = FieldFault("/arguments", f"must have at most {LONGEST_ARGUMENTS:,} characters")
            raise InvalidField(f"`arguments` {fault.detail}", faults=[fault])
        waiting = self._waiting.get((approval.turn_id, approval.step, approval.call_id))
        if waiting is not None:
            await waiting.question.check(arguments)
        elif self.database.replica is None:
            raise NotWaiting
        else:
            await _check_elsewhere(self.database, approval, arguments, pause=self.pause)

    async def _complete_decision(self, work: Work[Approval]) -> Approval:
        """Return the decided approval; the decision completes even if the caller is cancelled."""

        async def decide() -> Approval:
            approval = await self.database.run(work)
            self.wake(approval)
            return approval

        return await complete(decide(), self._deciding)


def answer(
    connection: Connection,
    inbound: Inbound,
    choice: Choice,
    *,
    act: Act,
    meant: Approval | None,
    decided_in: str,
) -> tuple[Approval, Sequence[Approval]] | None:
    """Decide the open approval that a message answers. Return it and the sender's other open approvals.

    Returns None if the message answers no question or the question is ambiguous. A chat shows one question at a
    time. Over HTTP the message answers the question in the last response to its sender. If that response has no
    question, the message answers the sender's only open question, provided that a chat, a response or an event
    stream has shown it, and only if it is the question ``meant`` that the message answered when it arrived
    (``find_meant``). ``decided_in`` is the turn of the message.
    """
    asked = rows.open_to(connection, inbound, now=act.at)
    if inbound.account is None:
        asked = _questions_meant(connection, inbound, asked)
        if asked and (meant is None or meant.id != asked[0].id):
            return None
    if not asked:
        return None
    verdict = replace(_verdict(choice, by=act.principal, at=act.at), decided_in=decided_in)
    return _decide(connection, asked[0], verdict, act), asked[1:]


def find_meant(connection: Connection, inbound: Inbound, now: datetime) -> Approval | None:
    """Return the open question that an HTTP message answers, or None."""
    asked = rows.open_to(connection, inbound, now=now)
    return next(iter(_questions_meant(connection, inbound, asked)), None)


def _questions_meant(connection: Connection, inbound: Inbound, asked: list[Approval]) -> list[Approval]:
    """Return the questions, starting with the one that an HTTP message answers; none if it answers none."""
    answered = next((one for one in asked if rows.is_last_reply(connection, inbound, one)), None)
    if answered is not None:
        return [answered, *(one for one in asked if one is not answered)]
    if len(asked) != 1:
        return []
    was_shown = asked[0].delivery is not None or asked[0].replied_at is not None or asked[0].streamed
    if not was_shown:
        return []
    return asked if rows.is_unmistakable(connection, inbound, asked[0]) else []


def find_unanswered(connection: Connection, inbound: Inbound, now: datetime) -> Approval | None:
    """Return the open question that a message does not answer because its sender has not seen all of it.

    In a chat it is the chat's open question; over HTTP, the oldest one for the sender in the channel.
    """
    if inbound.account is None:
        return next(iter(rows.open_to(connection, inbound, now=now)), None)
    return rows.oldest_sent_to(connection, inbound, now=now)


def ask_again(connection: Connection, approval: Approval, at: datetime) -> None:
    """Send a question again. Its expiry time does not change."""
    turn = turn_rows.get(connection, approval.owner, approval.turn_id)
    number = turn and deliveries.add_question(
        connection, turn, question_text(approval.tool, approval.arguments), at=at
    )
    if number is not None:
        rows.record_question(connection, approval, number, approval.expires_at)


async def _check_elsewhere(
    database: Database,
    approval: Approval,
    arguments: Mapping[str, Any],
    *,
    pause: Callable[[float], Awaitable[None]],
) -> None:
    """Have the replica of the turn check changed arguments. Raises ``InvalidField`` and ``NotWaiting``."""
    proposal = rows.Proposal(new_id("prp"), arguments)
    await database.run(partial(rows.propose, approval=approval, proposal=proposal))
    for _ in range(_ANSWER_LOOKS):
        await pause(_ANSWER_GAP)
        answer = await database.read(partial(rows.read_answer, approval=approval, proposal=proposal))
        if answer is not None:
            if answer.detail is not None:
                raise InvalidField(answer.detail, faults=[FieldFault(*fault) for fault in answer.faults])
            return
    raise NotWaiting(_NOT_CHECKED)


async def _answer_to(proposal: rows.Proposal, question: Question) -> rows.CheckAnswer:
    """Check changed arguments for another replica."""
    try:
        await question.check(proposal.arguments)
    except InvalidField as error:
        faults = [(fault.pointer, fault.detail) for fault in error.faults]
        return rows.CheckAnswer(proposal.id, error.detail, faults)
    except Exception:  # noqa: BLE001 - a fault of the tool must not end the turn that waits
        _log.exception("arguments_not_checked", extra={"tool": question.tool})
        return rows.CheckAnswer(proposal.id, f"{question.tool} failed to check the arguments.", [])
    return rows.CheckAnswer(proposal.id, None, [])


def _open(connection: Connection, turn: Turn, new: Approval, said: str) -> Approval:
    approval = rows.ask(connection, new)
    _send_next_question(connection, turn, new.created_at, expires_at=new.expires_at, said=said)
    return approval


def _look(
    connection: Connection, turn: Turn, approval: Approval, now: datetime, lasts: timedelta
) -> tuple[Approval, rows.Proposal | None]:
    """Return the current approval, and changed arguments that another replica wants checked."""
    found = rows.look(connection, approval, now)
    if found.state == "open" and found.expires_at > now + lasts:  # the clock was set back
        found = rows.expire_at(connection, found, now + lasts)
    if found.state == "expired" and turn.place is not None:
        rows.expire_unsent(connection, turn.id, now)
    elif found.state in ("approved", "denied"):
        _send_next_question(connection, turn, now, expires_at=now + lasts)
    return found, rows.unchecked_proposal(connection, found)


def _send_next_question(
    connection: Connection, turn: Turn, at: datetime, *, expires_at: datetime, said: str = ""
) -> None:
    """Send the turn's chat its next question. A chat has one question at a time, so that a yes is unambiguous.

    The approval's time limit starts then. The message begins with the part of the reply so far (``said``) that
    was not delivered.
    """
    if turn.place is None:
        return
    question = rows.next_question(connection, turn.id, at)
    if question is None:
        return
    undelivered = said[rows.count_delivered_characters(connection, turn.id, but=question) :].strip()
    text = question_text(question.tool, question.arguments)
    number = deliveries.add_question(connection, turn, text, at=at, reply=undelivered)
    if number is not None:
        rows.record_question(connection, question, number, expires_at)


def _decide(connection: Connection, approval: Approval, verdict: ApprovalVerdict, act: Act) -> Approval:
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


def _verdict(choice: Choice, *, by: str, at: datetime) -> ApprovalVerdict:
    return ApprovalVerdict(
        state="approved" if choice.approve else "denied",
        at=at,
        by=by,
        edited=choice.arguments if choice.approve else None,
        reason=choice.reason,
    )


def _decision(approval: Approval) -> ApprovalDecision:
    match approval.state:
        case "approved":
            return ApprovalDecision(approved=True, arguments=approval.edited)
        case "denied":
            why = f", with the reason: {approval.reason}" if approval.reason else ""
            return ApprovalDecision(approved=False, reason=f"it was denied{why}")
        case _:
            return ApprovalDecision(approved=False, reason=_NO_ANSWER)
