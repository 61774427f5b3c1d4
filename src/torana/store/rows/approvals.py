"""Rows of approvals: tool calls that wait, or waited, for approval.

::

    open -> approved | denied | expired          open -> withdrawn (its turn ended) -> open (run again)

While one of its approvals is open, a turn is ``waiting``. A decision changes only an open row, so only the
first of several decisions counts. A question whose approval is closed is not sent.

The id identifies one call with one set of arguments: a call that is asked again gets a new approval id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import GATEWAY_MODEL, SCHEDULE_PRINCIPAL, Inbound
from torana.paging import read_until_full
from torana.store.engine.tables import approvals, deliveries, newest_first, owned_by, sessions, turns
from torana.store.rows.approval_questions import arguments_text, call_digest, question_text

ApprovalState = Literal["open", "approved", "denied", "expired", "withdrawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """An approval of a call. ``edited`` are the arguments that the approver changed.

    ``said`` is the length of the turn's reply before the question. ``delivery`` is the number of the delivery
    with the question in a chat, if there is one. ``replied_at`` is the time of the last HTTP response that
    contained the question, ``streamed`` whether an event stream has sent it to the turn's sender, and
    ``decided_in`` the turn of the yes or no that decided it.
    """

    id: str
    turn_id: str
    step: int
    call_id: str
    owner: str
    tool: str
    arguments: Mapping[str, Any]
    said: int
    created_at: datetime
    expires_at: datetime
    delivery: int | None = None
    state: ApprovalState = "open"
    edited: Mapping[str, Any] | None = None
    reason: str | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None
    replied_at: datetime | None = None
    streamed: bool = False
    decided_in: str | None = None
    #: True if its readers may not see the arguments; ``turns.approval_replies`` has the rule. Not stored.
    hidden: bool = False

    @property
    def digest(self) -> str:
        """Return the digest of the call (``call_digest``)."""
        return call_digest(self.tool, self.arguments)

    @property
    def arguments_text(self) -> str:
        """Return the arguments with which the call runs if it is approved, as JSON for people."""
        return arguments_text(self.arguments if self.edited is None else self.edited)

    def at(self, now: datetime) -> Approval:
        """Return the approval as of this time: an open one that has expired counts as expired."""
        return replace(self, state="expired") if self.state == "open" and self.expires_at <= now else self


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalVerdict:
    """The decision on an approval, by a person or by expiry."""

    state: Literal["approved", "denied", "expired"]
    at: datetime
    by: str
    edited: Mapping[str, Any] | None = None
    reason: str | None = None
    #: The turn of the yes or no.
    decided_in: str | None = None


class Proposal(NamedTuple):
    """Changed arguments of a call that another replica runs."""

    id: str
    arguments: Mapping[str, Any]


class CheckAnswer(NamedTuple):
    """The result of a check of changed arguments. ``detail`` is None if the tool accepts them.

    ``faults`` are pairs of a JSON pointer and what is wrong there.
    """

    proposal_id: str
    detail: str | None
    faults: Sequence[tuple[str, str]]


def ask(connection: Connection, asked: Approval) -> Approval:
    """Return the approval of a call; create an open one if there is none, and set its turn waiting.

    An existing approval of the same tool and arguments is returned; it is expired if its time has passed. An
    approval that was withdrawn, or was for another tool or other arguments, is replaced.
    """
    known = _one(connection, asked)
    if known is None:
        connection.execute(_INSERT, _values(asked))
    elif known.state == "withdrawn" or known.digest != asked.digest:
        connection.execute(_UPDATE, _key(asked) | _values(asked))
    else:
        found = look(connection, known, asked.created_at)
        if found.state == "open":
            connection.execute(_WAIT, {"of_turn": asked.turn_id})
        return found
    connection.execute(_WAIT, {"of_turn": asked.turn_id})
    return asked


def look(connection: Connection, approval: Approval, now: datetime) -> Approval:
    """Return the current approval; set it expired if its time has passed."""
    found = _one(connection, approval) or approval
    if found.state == "open" and found.expires_at <= now:
        return _close_with(connection, found, ApprovalVerdict(state="expired", at=now, by="time"))
    return found


def expire_at(connection: Connection, approval: Approval, at: datetime) -> Approval:
    """Change when an open approval expires, and return it."""
    connection.execute(_UPDATE, _key(approval) | {"expires_at": at})
    return replace(approval, expires_at=at)


def decide(connection: Connection, approval: Approval, verdict: ApprovalVerdict) -> tuple[Approval, bool]:
    """Decide an open approval; return the current approval and whether this call decided it.

    If the call was asked again after ``approval`` was read, the new approval is returned, undecided.
    """
    found = look(connection, approval, verdict.at)
    if found.state != "open" or found.id != approval.id:
        return found, False
    return _close_with(connection, found, verdict), True


def propose(connection: Connection, approval: Approval, proposal: Proposal) -> None:
    """Store changed arguments of an open approval, to be checked where its turn runs. The last ones count."""
    values = {"proposed": _encode(proposal), "checked": None}
    connection.execute(_PROPOSE, {"key": approval.id} | values)


def unchecked_proposal(connection: Connection, approval: Approval) -> Proposal | None:
    """Return the changed arguments of an open approval that were not checked yet."""
    row = connection.execute(_UNCHECKED, {"key": approval.id}).scalar()
    return None if row is None else Proposal(*json.loads(row))


def answer_proposal(
    connection: Connection, approval: Approval, proposal: Proposal, answer: CheckAnswer
) -> None:
    """Store the result of a check, unless other arguments have been proposed meanwhile."""
    values = {"key": approval.id, "of": _encode(proposal), "checked": json.dumps(answer).encode()}
    connection.execute(_ANSWER, values)


def read_answer(connection: Connection, approval: Approval, proposal: Proposal) -> CheckAnswer | None:
    """Return the result of the check of changed arguments, if there is one.

    A call that is no longer open needs no check, because it cannot be approved.
    """
    row = connection.execute(_CHECKED, {"key": approval.id}).one_or_none()
    if row is None:
        return CheckAnswer(proposal.id, None, [])
    answer = None if row.checked is None else CheckAnswer(*json.loads(row.checked))
    return answer if answer is not None and answer.proposal_id == proposal.id else None


def _encode(proposal: Proposal) -> bytes:
    return json.dumps(proposal).encode()


def expire_unsent(connection: Connection, turn_id: str, now: datetime) -> None:
    """Expire the turn's questions that were not sent yet, because its last question was not answered."""
    connection.execute(_LAPSE, {"of_turn": turn_id, "now": now})
    connection.execute(_GO_ON, {"of_turn": turn_id})


def withdraw(connection: Connection, turn_id: str, now: datetime) -> None:
    """Close the open approvals of a turn that ends."""
    connection.execute(_WITHDRAW, {"of_turn": turn_id})
    drop_closed_questions(connection, turn_id, now)


def drop_closed_questions(connection: Connection, turn_id: str, now: datetime) -> None:
    """Remove questions that can no longer be answered from a turn's pending deliveries.

    A question stays if its beginning is sent or being sent.
    """
    for number in connection.execute(_DEAD, {"of_turn": turn_id}).scalars().all():
        change = {"state": "dropped", "ended_at": now, "reason": "it can no longer be answered"}
        connection.execute(sa.update(deliveries).where(_is_delivery_of(turn_id, number)).values(change))
        connection.execute(_UNSAID, {"of_turn": turn_id, "said_by": number})


def count_delivered_characters(connection: Connection, turn_id: str, *, but: Approval | None = None) -> int:
    """Return the number of characters of a reply that were sent with questions, except the question ``but``."""
    return connection.execute(
        _DELIVERED_CHARACTERS, {"of_turn": turn_id, "but": but.id if but else ""}
    ).scalar_one()


def next_question(connection: Connection, turn_id: str, now: datetime) -> Approval | None:
    """Return the next question for a turn's chat; None while a question in the chat is open."""
    query = _open_at(now).where(approvals.c.turn_id == turn_id).order_by(approvals.c.created_at, approvals.c.id)
    asked = [_approval(row) for row in connection.execute(query).mappings()]
    return asked[0] if asked and all(one.delivery is None for one in asked) else None


def record_question(connection: Connection, approval: Approval, delivery: int, expires_at: datetime) -> None:
    """Store the delivery of a question and its expiry; the questions behind it do not expire before it."""
    connection.execute(_UPDATE, _key(approval) | {"delivery": delivery, "expires_at": expires_at})
    connection.execute(_POSTPONE, {"of_turn": approval.turn_id, "until": expires_at})


def get(connection: Connection, owner: str, approval_id: str) -> Approval | None:
    query = sa.select(approvals).where(owned_by(approvals, owner), approvals.c.id == approval_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _approval(row)


def is_in_shared_session(connection: Connection, approval: Approval) -> bool:
    """Return whether several users have sent messages in the session of an approval."""
    return bool(connection.execute(_SHARED, {"of_turn": approval.turn_id}).scalar())


def of_call(connection: Connection, owner: str, turn_id: str, call_id: str) -> list[Approval]:
    """Return the owner's approvals of a call.

    There is at most one, except in turns from versions in which call ids were not unique within a turn.
    """
    query = sa.select(approvals).where(
        owned_by(approvals, owner), approvals.c.turn_id == turn_id, approvals.c.call_id == call_id
    )
    return [_approval(row) for row in connection.execute(query).mappings()]


def of_turn(connection: Connection, turn_id: str) -> list[Approval]:
    """Return the approvals of a turn, decided or not, oldest first."""
    query = sa.select(approvals).where(approvals.c.turn_id == turn_id)
    rows = connection.execute(query.order_by(approvals.c.created_at, approvals.c.id))
    return [_approval(row) for row in rows.mappings()]


def open_of(connection: Connection, owner: str, turn_id: str, now: datetime) -> list[Approval]:
    """Return the open approvals of the owner's turn, oldest first."""
    query = _open_at(now).where(owned_by(approvals, owner), approvals.c.turn_id == turn_id)
    rows = connection.execute(query.order_by(approvals.c.created_at, approvals.c.id))
    return [_approval(row) for row in rows.mappings()]


def decided_by_message(connection: Connection, turn_id: str) -> Approval | None:
    """Return the approval that the message of this turn decided, or None."""
    row = connection.execute(sa.select(approvals).where(approvals.c.decided_in == turn_id)).mappings().first()
    return None if row is None else _approval(row)


def note_reply(connection: Connection, approval: Approval, at: datetime) -> None:
    """Store that an HTTP response of this time contains the question."""
    connection.execute(_UPDATE, _key(approval) | {"replied_at": at})


def note_streamed(connection: Connection, approval_id: str) -> None:
    """Store that an event stream has sent an open approval to the turn's sender."""
    connection.execute(_NOTE_STREAMED, {"key": approval_id})


def open_to(connection: Connection, inbound: Inbound, *, now: datetime) -> list[Approval]:
    """Return the open approvals that a message's sender may answer in its channel, oldest first.

    In a chat these are the questions that were completely shown when the message was sent, and that its sender
    answers with it: the sender wrote nothing else since, and the message replies to the question, or no text of
    the agent or a reminder followed it. A reply to a notice of the gateway is like a message without reply.
    Over HTTP they also include questions that were asked over HTTP and may not have been shown.
    """
    query = _shown_to(inbound, now)
    if inbound.account is not None:
        spoke = _to_speaker(inbound, _saying), _saying.c.created_at > _shown_at, _answers_nothing(_saying)
        is_last = ~_in_line(inbound).where(~_is_of_question, ~_is_notice, _may_be_shown | _is_refusal)
        if inbound.in_reply_to is not None:
            replied_to = _in_line(inbound).where(deliveries.c.shown_as == inbound.in_reply_to)
            is_last = replied_to.where(_is_of_question) | (replied_to.where(_is_notice) & is_last)
        query = query.where(~sa.exists().where(*spoke), is_last)
    return [_approval(row) for row in connection.execute(query).mappings()]


def were_shown_to(connection: Connection, inbound: Inbound, *, now: datetime) -> bool:
    """Return whether a question to a message's sender was shown when the message was sent."""
    return connection.execute(_shown_to(inbound, now).limit(1)).first() is not None


def _shown_to(inbound: Inbound, now: datetime) -> sa.Select[Any]:
    was_shown = _shown_at <= (inbound.said_at or now)
    in_chat = inbound.account is not None
    return _open_to(inbound, now).where(was_shown if in_chat else turns.c.account.is_(None) | was_shown)


def _in_line(inbound: Inbound) -> sa.Exists:
    """Return the condition that the message's chat has a delivery of the question, or one sent after it."""
    # An operator may retry an older text.
    is_unsure = (deliveries.c.state == "pending") & (deliveries.c.unsure > 0)
    is_retried = (deliveries.c.state == "sending") | is_unsure | (deliveries.c.ended_at > _shown_at)
    return sa.exists().where(
        deliveries.c.account == inbound.account,
        deliveries.c.line == inbound.channel,
        (_position >= approvals.c.delivery) | is_retried,
    )


def _is_fixed(answered: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition for turns whose replies are fixed texts of the gateway: they end as they begin."""
    # The name of the model is not enough, because a provider may report any name.
    at_once = answered.c.ended_at.is_not_distinct_from(answered.c.created_at)
    return at_once & answered.c.model.is_not_distinct_from(GATEWAY_MODEL) & ~_is_scheduled(answered)


def _answers_nothing(said: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition for messages of people that are no yes or no. Control words contain a slash."""
    return ~_is_scheduled(said) & (~_is_fixed(said) | said.c.content.contains("/"))


def _is_scheduled(turn: sa.FromClause) -> sa.ColumnElement[bool]:
    return turn.c.principal.startswith(SCHEDULE_PRINCIPAL)


def is_unmistakable(connection: Connection, inbound: Inbound, approval: Approval) -> bool:
    """Return whether an open question is the only one in the channel that a message can mean.

    This is true if no other question to the sender was open in the channel since the asking turn was accepted,
    and if no message of the sender, no reply and no reminder came after the question.
    """
    at = approval.created_at
    in_channel = (turns.c.owner == inbound.owner) & (turns.c.channel == inbound.channel)
    replies = in_channel & (turns.c.ended_at >= at) & turns.c.reply.is_not(None) & ~_is_fixed(turns)
    messages = _to_speaker(inbound) & (turns.c.created_at >= at) & _answers_nothing(turns)
    if connection.execute(sa.select(turns.c.id).where(replies | messages).limit(1)).first() is not None:
        return False
    closed_at = sa.func.coalesce(approvals.c.decided_at, turns.c.ended_at)
    others = (
        sa.select(approvals.c.id)
        .join(turns, turns.c.id == approvals.c.turn_id)
        .join(_asking, _asking.c.session_id == turns.c.session_id)
        .where(
            _asking.c.id == approval.turn_id,
            _to_speaker(inbound),
            approvals.c.id != approval.id,
            sa.or_(is_open, closed_at >= _asking.c.created_at),
        )
    )
    return connection.execute(others.limit(1)).first() is None


def is_last_reply(connection: Connection, inbound: Inbound, approval: Approval) -> bool:
    """Return whether the last response to a message's sender in its channel ends with the question."""
    return _is_in_last_response(connection, inbound, approval) or _ends_last_reply(
        connection, inbound, approval
    )


def _is_in_last_response(connection: Connection, inbound: Inbound, approval: Approval) -> bool:
    """Return whether a response contained the question, and no later message, question or reply came."""
    if approval.replied_at is None:
        return False
    at = approval.replied_at
    later = sa.or_(turns.c.created_at > at, turns.c.ended_at > at, approvals.c.replied_at > at)
    query = sa.select(turns.c.id).outerjoin(approvals, approvals.c.turn_id == turns.c.id)
    query = query.where(_to_speaker(inbound, reminders=True), later)
    return connection.execute(query.limit(1)).first() is None


def _ends_last_reply(connection: Connection, inbound: Inbound, approval: Approval) -> bool:
    """Return whether the last reply of the asking turn's session is the gateway's, and ends with the question.

    A later message of the sender that waits for its reply counts as a reply without the question. The text of a
    reminder, or of the agent, may imitate a question.
    """
    replies = (
        sa.select(sa.case((_is_fixed(turns), turns.c.reply)))
        .join(_asking, _asking.c.session_id == turns.c.session_id)
        .where(_asking.c.id == approval.turn_id, turns.c.seq > _asking.c.seq)
        .where(_to_speaker(inbound, reminders=True))
    )
    at = sa.func.coalesce(turns.c.ended_at, turns.c.created_at)
    last_first = replies.order_by(at.desc(), turns.c.seq.desc()).limit(1)
    reply = connection.execute(last_first).scalar() or ""
    return reply.endswith(question_text(approval.tool, approval.arguments))


def oldest_sent_to(connection: Connection, inbound: Inbound, *, now: datetime) -> Approval | None:
    """Return the oldest open question to a message's sender that has a delivery, whether shown or not."""
    query = _open_to(inbound, now).where(turns.c.account.is_not(None), approvals.c.delivery.is_not(None))
    row = connection.execute(query).mappings().first()
    return None if row is None else _approval(row)


def may_be_unsent(connection: Connection, approval: Approval) -> bool:
    """Return whether a part of a question may never be sent."""
    query = sa.select(deliveries.c.number).where(
        _is_delivery_of(approval.turn_id, approval.delivery),
        deliveries.c.state.not_in(("pending", "sending", "sent")),
    )
    return connection.execute(query).first() is not None


def list_open(
    connection: Connection, owner: str, *, now: datetime, before: tuple[datetime, str] | None = None, limit: int
) -> list[Approval]:
    """Return the owner's open approvals older than ``before``, newest first.

    The result has fewer than ``limit`` approvals if their arguments are long.
    """
    query = _open_at(now).where(owned_by(approvals, owner))
    page = newest_first(query, approvals.c.created_at, before=before, limit=limit)
    found = map(_approval, connection.execute(page).mappings())
    return list(read_until_full(found, size_of))


def size_of(approval: Approval) -> int:
    """Return the approximate number of characters of an approval in a response."""
    # The readable text is about as long as the JSON, and takes longer to make.
    return 2 * len(json.dumps([approval.arguments, approval.edited]))


def _open_at(now: datetime) -> sa.Select[Any]:
    return sa.select(approvals).where(is_open, approvals.c.expires_at > now)


def _open_to(inbound: Inbound, now: datetime) -> sa.Select[Any]:
    return (
        _open_at(now)
        .join(turns, turns.c.id == approvals.c.turn_id)
        .where(_to_speaker(inbound))
        .order_by(approvals.c.created_at, approvals.c.id)
    )


def _to_speaker(
    inbound: Inbound, of: sa.FromClause = turns, *, reminders: bool = False
) -> sa.ColumnElement[bool]:
    """Return the condition for turns of a message's sender in its channel, or also for all reminders there."""
    # A sender without a user is identified by the token.
    without_user = of.c.user.is_(None) & of.c.token.is_not_distinct_from(inbound.token)
    of_speaker = without_user if inbound.user is None else of.c.user == inbound.user
    if reminders:
        of_speaker |= _is_scheduled(of)
    return (of.c.owner == inbound.owner) & (of.c.channel == inbound.channel) & of_speaker


def _is_delivery_of(turn_id: Any, number: Any) -> sa.ColumnElement[bool]:
    """Return the condition for the deliveries of this text of the turn."""
    return (deliveries.c.turn_id == turn_id) & ((deliveries.c.number == number) | (deliveries.c.root == number))


def _close_with(connection: Connection, approval: Approval, verdict: ApprovalVerdict) -> Approval:
    """Store a verdict, and set the turn running if no other approval is open."""
    values = {
        "state": verdict.state,
        "edited": None if verdict.edited is None else json.dumps(verdict.edited).encode(),
        "reason": verdict.reason,
        "decided_by": verdict.by,
        "decided_at": verdict.at,
        "decided_in": verdict.decided_in,
        "proposed": None,
        "checked": None,
    }
    connection.execute(_UPDATE, _key(approval) | values)
    connection.execute(_GO_ON, {"of_turn": approval.turn_id})
    drop_closed_questions(connection, approval.turn_id, verdict.at)
    closed = _one(connection, approval)
    assert closed is not None  # noqa: S101 - it was just written
    return closed


def _one(connection: Connection, approval: Approval) -> Approval | None:
    row = connection.execute(_GET, _key(approval)).mappings().first()
    return None if row is None else _approval(row)


def _key(approval: Approval) -> dict[str, Any]:
    return {"of_turn": approval.turn_id, "at": approval.step, "call": approval.call_id}


def _values(approval: Approval) -> dict[str, Any]:
    values = {name: getattr(approval, name) for name in _STORED}
    return values | {"arguments": json.dumps(approval.arguments).encode(), "edited": None}


def _approval(row: RowMapping) -> Approval:
    edited = row["edited"]
    decoded = {"arguments": json.loads(row["arguments"]), "edited": edited and json.loads(edited)}
    return Approval(**{name: row[name] for name in _STORED} | decoded)


#: The fields of an approval that have columns.
_STORED = [one.name for one in fields(Approval) if one.name != "hidden"]

#: The turn that asks, in queries for other turns of its session.
_asking = turns.alias("asking")
is_open = sa.text("approvals.state = 'open'")
_is_sent = sa.case((deliveries.c.state == "sent", 1), else_=0)
#: The time at which the last part of a question was sent; NULL if a part was not sent.
_shown_at = (
    sa.select(sa.case((sa.func.min(_is_sent) == 1, sa.func.max(deliveries.c.ended_at))))
    .where(_is_delivery_of(approvals.c.turn_id, approvals.c.delivery))
    .correlate(approvals)
    .scalar_subquery()
)
#: The number of a text's first part. The others get theirs when the text is cut, maybe after later texts.
_position = sa.func.coalesce(deliveries.c.root, deliveries.c.number)
_is_of_question = _position == approvals.c.delivery
_saying = turns.alias("saying")
#: True for a notice that refuses a message, shown or not: the message could be a no.
_is_refusal = deliveries.c.turn_id.is_(None)
#: True for the gateway's reply to a message.
_is_notice = sa.exists().where(_saying.c.id == deliveries.c.turn_id, _is_fixed(_saying))
_may_be_shown = deliveries.c.state.in_(("preview", "sending", "sent", "ambiguous")) | (deliveries.c.unsure > 0)
_ONE = (
    (approvals.c.turn_id == sa.bindparam("of_turn"))
    & (approvals.c.step == sa.bindparam("at"))
    & (approvals.c.call_id == sa.bindparam("call"))
)
_GET = sa.select(approvals).where(_ONE)
_SHARED = (
    sa.select(sessions.c.shared)
    .join(turns, turns.c.session_id == sessions.c.id)
    .where(turns.c.id == sa.bindparam("of_turn"))
)
_INSERT = sa.insert(approvals)
_UPDATE = sa.update(approvals).where(_ONE)
_open_one = (approvals.c.id == sa.bindparam("key")) & is_open
_NOTE_STREAMED = sa.update(approvals).where(_open_one).values(streamed=True)
_PROPOSE = sa.update(approvals).where(_open_one)
_ANSWER = _PROPOSE.where(approvals.c.proposed == sa.bindparam("of"))
_UNCHECKED = sa.select(approvals.c.proposed).where(_open_one, approvals.c.checked.is_(None))
_CHECKED = sa.select(approvals.c.checked).where(_open_one)
_DELIVERED_CHARACTERS = sa.select(sa.func.coalesce(sa.func.max(approvals.c.said), 0)).where(
    approvals.c.turn_id == sa.bindparam("of_turn"), approvals.c.id != sa.bindparam("but")
)
_unsaid = (
    (approvals.c.turn_id == sa.bindparam("of_turn"))
    & (approvals.c.state == "open")
    & approvals.c.delivery.is_(None)
)
_POSTPONE = (
    sa.update(approvals)
    .where(_unsaid, approvals.c.expires_at < sa.bindparam("until"))
    .values(expires_at=sa.bindparam("until"))
)
_LAPSE = (
    sa.update(approvals)
    .where(_unsaid)
    .values(state="expired", decided_by="time", decided_at=sa.bindparam("now"))
)
_WITHDRAW = (
    sa.update(approvals)
    .where(approvals.c.turn_id == sa.bindparam("of_turn"), approvals.c.state == "open")
    .values(state="withdrawn")
)
_parts = _is_delivery_of(approvals.c.turn_id, approvals.c.delivery)
#: The deliveries of closed questions of which no part was sent.
_DEAD = sa.select(approvals.c.delivery).where(
    approvals.c.turn_id == sa.bindparam("of_turn"),
    approvals.c.state != "open",
    sa.exists().where(_parts),
    ~sa.exists().where(_parts, deliveries.c.state != "pending"),
)
_UNSAID = (
    sa.update(approvals)
    .where(approvals.c.turn_id == sa.bindparam("of_turn"), approvals.c.delivery == sa.bindparam("said_by"))
    .values(delivery=None)
)
_WAIT = (
    sa.update(turns)
    .where(turns.c.id == sa.bindparam("of_turn"), turns.c.state == "running")
    .values(state="waiting")
)
_asks = sa.exists().where(approvals.c.turn_id == sa.bindparam("of_turn"), approvals.c.state == "open")
_GO_ON = (
    sa.update(turns)
    .where(turns.c.id == sa.bindparam("of_turn"), turns.c.state == "waiting", ~_asks)
    .values(state="running")
)
