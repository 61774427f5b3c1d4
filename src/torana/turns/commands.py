"""Messages to the gateway itself: control words, and answers to approval questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from torana.errors import GatewayError
from torana.messages import Inbound, Turn
from torana.store.engine.database import Connection, Database
from torana.store.rows import idempotency_keys
from torana.store.rows import sessions as session_rows
from torana.store.rows import turns as rows
from torana.store.rows.approval_questions import question_text
from torana.store.rows.approvals import Approval, may_be_unsent, open_of, were_shown_to
from torana.store.rows.audit import Act
from torana.store.rows.turns import NewTurn
from torana.turns import outcomes
from torana.turns.approval_replies import read_answer
from torana.turns.approvals import Approvals, Choice, answer, ask_again, find_meant, find_unanswered

#: A message is a command if it consists of one of these words and nothing else.
WORDS = ("/stop", "/status", "/new", "/help")

_HELP = (
    "/new starts a new conversation, /stop cancels the running messages, /status shows the "
    "running and waiting messages. All other text is a message to the agent."
)

_TOO_EARLY = (
    "You wrote that before my question was shown, so it does not count as an answer. Please answer again."
)
_NOT_SHOWN = (
    "That does not count as an answer: another message followed this question, or I cannot confirm that it was "
    "shown to you."
)
_UNCLEAR = (
    "Another message followed my question, or you replied to another message. I cannot know what you answer, "
    "so your answer does not count. I ask again."
)
_BY_ID = "The question is still open. Answer it where it is shown, not with a message."
_UNCONFIRMED = (
    "I cannot confirm that my question was shown to you, so that does not count as an answer. I ask again."
)


class Commands:
    """Handles the messages that need no agent: control words, and answers to approval questions."""

    def __init__(
        self, *, database: Database, cancel: Callable[[str, str], Awaitable[Turn]], approvals: Approvals
    ) -> None:
        self._database = database
        self._cancel = cancel
        self._approvals = approvals
        #: The number of answers that are being stored, by owner, user and channel.
        self._answering: Counter[tuple[str, str | None, str]] = Counter()

    @staticmethod
    def word_of(content: str) -> str | None:
        """Return the control word that a message consists of, or None for a message to the agent."""
        word = content.strip().casefold()
        return word if word in WORDS else None

    async def execute(self, word: str, inbound: Inbound, new: NewTurn) -> Turn:
        """Execute a control word, and store it as a turn that has ended.

        A message that was accepted before is not executed again: it would hit later turns. After ``/stop`` the
        call returns when the cancelled turns have ended.
        """
        work = partial(_execute, word=word, inbound=inbound, new=new)
        turn, stopped = await self._database.run(work)
        for one in stopped:
            with suppress(GatewayError):  # its session was deleted, or the gateway stops
                await self._cancel(one.owner, one.id)
        return turn

    async def answer_question(self, inbound: Inbound, new: NewTurn) -> Turn | None:
        """Return the turn of a yes or a no to an approval question, or None for any other message.

        The answer decides one question, once, in the transaction that stores the message; a repeated message
        returns the same turn. If its sender cannot have seen the open question, the answer does not count and
        the reply says so. Over HTTP the reply also repeats the question, and the next answer counts.
        """
        approve = read_answer(inbound.content)
        if approve is None or inbound.channel is None:
            return None
        place = (inbound.owner, inbound.user, inbound.channel)
        # Of HTTP answers at the same time the first decides: its response has the next question.
        is_read = inbound.account is not None or not self._answering[place]
        may_decide = is_read and (inbound.may_approve or not approve)
        choice = Choice(approve=approve) if may_decide else None
        self._answering[place] += 1
        try:
            # Another replica may be storing the first answer, after which the next question is the open one.
            find = partial(find_meant, inbound=inbound, now=new.at)
            meant = await self._database.read(find) if inbound.account is None else None
            work = partial(_answer_question, inbound=inbound, new=new, choice=choice, meant=meant)
            answered = await self._database.run(work)
        finally:
            self._answering[place] -= 1
            if not self._answering[place]:
                del self._answering[place]
        if answered is None:
            return None
        turn, approval = answered
        if approval is not None:
            self._approvals.wake(approval)
        return turn


def _execute(connection: Connection, word: str, inbound: Inbound, new: NewTurn) -> tuple[Turn, Sequence[Turn]]:
    """Execute a control word and store its answer; return its turn, and the turns that it stops."""
    known = idempotency_keys.find(connection, inbound, new.at)
    if known is not None:
        return known, ()
    live = rows.unfinished_in_channel(connection, inbound.owner, new.channel)
    running = [turn for turn in live if turn.state in ("running", "waiting")]
    match word:
        case "/stop":
            for turn in running:
                outcomes.cancel(connection, inbound.owner, turn.id, act=None, at=new.at)
            text = "Stopped." if running else "Nothing is running here."
        case "/new":
            session_rows.start_afresh(connection, inbound.owner, new.channel)
            text = "This is a new conversation. The agent no longer sees the earlier messages."
            text += " Messages that still run or wait are answered first; /stop cancels them." if live else ""
        case "/help":
            text = _HELP
        case _:
            text = _status(connection, running, waiting=len(live) - len(running), now=new.at)
    turn = idempotency_keys.answer_at_once(connection, inbound, new, text)
    return turn, running if word == "/stop" else ()


def _status(connection: Connection, running: Sequence[Turn], *, waiting: int, now: datetime) -> str:
    asked = [one for turn in running for one in open_of(connection, turn.owner, turn.id, now)]
    questions = (f"Asked: may I run `{one.tool}`?" for one in asked)
    return " ".join([f"Running here: {len(running)}. Waiting: {waiting}.", *questions])


def _answer_question(
    connection: Connection, inbound: Inbound, new: NewTurn, choice: Choice | None, meant: Approval | None
) -> tuple[Turn, Approval | None] | None:
    """Store a yes or a no. Without ``choice`` it decides nothing: its sender cannot have seen the question.

    Over HTTP, ``meant`` is the question that it answered when it arrived, and it decides no other.
    """
    known = idempotency_keys.find(connection, inbound, new.at)
    if known is not None:
        return known, None
    act = Act(principal=inbound.principal, source=f"channel {new.channel}", at=new.at)
    decided = choice and answer(connection, inbound, choice, act=act, meant=meant, decided_in=new.turn_id)
    if choice is None or decided is None:
        return _explain_not_counted(connection, inbound, new)
    approval, more = decided
    text = f"I run `{approval.tool}`." if choice.approve else f"I do not run `{approval.tool}`."
    text = "\n\n".join([text, *(question_text(one.tool, one.arguments) for one in more[:1])])
    return idempotency_keys.answer_at_once(connection, inbound, new, text), approval


def _explain_not_counted(connection: Connection, inbound: Inbound, new: NewTurn) -> tuple[Turn, None] | None:
    """Return the turn of a yes or no that does not count as the answer to an open question."""
    approval = find_unanswered(connection, inbound, new.at)
    if approval is None:
        return None
    if inbound.account is None and not inbound.may_approve:
        return idempotency_keys.answer_at_once(connection, inbound, new, _BY_ID), None
    if inbound.account is None:
        text = f"{_NOT_SHOWN}\n\n{question_text(approval.tool, approval.arguments)}"
        return idempotency_keys.answer_at_once(connection, inbound, new, text), None
    if may_be_unsent(connection, approval):
        reason = _UNCONFIRMED
    else:
        reason = _UNCLEAR if were_shown_to(connection, inbound, now=new.at) else _TOO_EARLY
    turn = idempotency_keys.answer_at_once(connection, inbound, new, reason)
    if reason is not _TOO_EARLY:
        ask_again(connection, approval, new.at)
    return turn, None
