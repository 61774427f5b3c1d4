"""Rows of approvals: calls of tools that wait, or waited, for somebody's yes.

::

    open -> approved | denied | expired          open -> withdrawn (its turn ended) -> open (run again)

While one of its approvals is open a turn is ``waiting``. Whatever decides changes an open row alone, so of
several deciders one counts. A question that is not open any more is not said either.

An approval's id stands for one call with one set of arguments: a question that is open again has a new id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import Inbound
from torana.store.questions import before_question, call_digest, question_text
from torana.store.tables import approvals, deliveries, owned, turns

ApprovalState = Literal["open", "approved", "denied", "expired", "withdrawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A call that somebody is asked about. ``edited`` are the arguments of whoever approved it with others.

    ``said`` is how many characters of the turn's reply stood before the question, ``delivery`` the number of
    the delivery that says it in a chat, while there is one.
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

    @property
    def digest(self) -> str:
        """The digest of the call: see ``call_digest``."""
        return call_digest(self.tool, self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What somebody, or the time, decided."""

    state: Literal["approved", "denied", "expired"]
    at: datetime
    by: str
    edited: Mapping[str, Any] | None = None
    reason: str | None = None


def ask(connection: Connection, asked: Approval) -> Approval:
    """The row of a call; made where there is none.

    A turn that asks waits from then on. A question that was asked before is not asked again: its row tells how
    it stands, and one whose time has come while nobody looked is expired. What was decided about a call with
    another tool or other arguments does not hold for this one.
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
    """The approval as it stands; expired from its time on."""
    found = _one(connection, approval) or approval
    if found.state == "open" and found.expires_at <= now:
        return _closed(connection, found, Verdict(state="expired", at=now, by="time"))
    return found


def expire_at(connection: Connection, approval: Approval, at: datetime) -> Approval:
    """Change when an open approval expires, and return it."""
    connection.execute(_UPDATE, _key(approval) | {"expires_at": at})
    return replace(approval, expires_at=at)


def decide(connection: Connection, approval: Approval, verdict: Verdict) -> tuple[Approval, bool]:
    """Decide an approval that is open: it as it stands then, and whether this decided it.

    Where the call was asked about anew since ``approval`` was read, the other approval is returned, undecided.
    """
    found = look(connection, approval, verdict.at)
    if found.state != "open" or found.id != approval.id:
        return found, False
    return _closed(connection, found, verdict), True


def lapse(connection: Connection, turn_id: str, now: datetime) -> None:
    """Let what a turn's chat was to hear next expire too: nobody was there to answer what it had heard."""
    connection.execute(_LAPSE, {"of_turn": turn_id, "now": now})
    connection.execute(_GO_ON, {"of_turn": turn_id})


def withdraw(connection: Connection, turn_id: str, now: datetime) -> None:
    """Close what a turn that ends still asks."""
    connection.execute(_WITHDRAW, {"of_turn": turn_id})
    unsay(connection, turn_id, now)


def unsay(connection: Connection, turn_id: str, now: datetime) -> None:
    """Take out of what a turn's chat is still to be told the questions that nobody can answer any more.

    What stands before one of the reply is said all the same. One of which a part is shown, or is being sent
    at this moment, stays as it is.
    """
    for question in connection.execute(_DEAD, {"of_turn": turn_id}).mappings().all():
        query = sa.select(deliveries.c.number, deliveries.c.state, deliveries.c.text)
        of_it = query.where(_says(turn_id, question["delivery"])).order_by(deliveries.c.part)
        parts = connection.execute(of_it).mappings().all()
        if any(part["state"] != "pending" for part in parts):
            continue
        kept = before_question(question["tool"], [part["text"] for part in parts])
        for part, text in zip_longest(parts, kept):
            change = (
                {"state": "dropped", "ended_at": now, "reason": _CLOSED} if text is None else {"text": text}
            )
            connection.execute(_SAY, {"key": part["number"]} | change)
        connection.execute(_UNSAID, {"of_turn": turn_id, "said_by": question["delivery"]})


def told(connection: Connection, turn_id: str, *, but: Approval | None = None) -> int:
    """How many characters of a turn's reply were told before or with its questions, ``but`` for one of them."""
    return connection.execute(_TOLD, {"of_turn": turn_id, "but": but.id if but else ""}).scalar_one()


def to_say(connection: Connection, turn_id: str, now: datetime) -> Approval | None:
    """The question that a turn's chat is to hear next; None while one that was said there is open."""
    query = _open_at(now).where(approvals.c.turn_id == turn_id).order_by(approvals.c.created_at, approvals.c.id)
    asked = [_approval(row) for row in connection.execute(query).mappings()]
    return asked[0] if asked and all(one.delivery is None for one in asked) else None


def say(connection: Connection, approval: Approval, delivery: int, expires_at: datetime) -> None:
    """Keep which delivery says a question, and when it expires then; those that wait behind it, not before."""
    connection.execute(_UPDATE, _key(approval) | {"delivery": delivery, "expires_at": expires_at})
    connection.execute(_POSTPONE, {"of_turn": approval.turn_id, "until": expires_at})


def get(connection: Connection, owner: str, approval_id: str) -> Approval | None:
    """Return the owner's approval of that id."""
    query = sa.select(approvals).where(owned(approvals, owner), approvals.c.id == approval_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _approval(row)


def of_call(connection: Connection, owner: str, turn_id: str, call_id: str) -> list[Approval]:
    """Return the owner's approvals of that call.

    There is one at most, except in turns from before call ids were unique within a turn.
    """
    query = sa.select(approvals).where(
        owned(approvals, owner), approvals.c.turn_id == turn_id, approvals.c.call_id == call_id
    )
    return [_approval(row) for row in connection.execute(query).mappings()]


def open_of(connection: Connection, owner: str, turn_id: str, now: datetime) -> list[Approval]:
    """What the owner's turn asks at this moment, in the order of asking."""
    query = _open_at(now).where(owned(approvals, owner), approvals.c.turn_id == turn_id)
    rows = connection.execute(query.order_by(approvals.c.created_at, approvals.c.id))
    return [_approval(row) for row in rows.mappings()]


def open_to(connection: Connection, inbound: Inbound, *, now: datetime) -> list[Approval]:
    """What a message's speaker had been asked in its channel when it was said, and is at this moment.

    In a chat that is what was shown in it by then, whole; who speaks over HTTP may know what was asked there,
    too, but need not have been shown it. In the order of asking.
    """
    was_shown = _shown_at <= (inbound.said_at or now)
    in_chat = inbound.account is not None
    query = _open_to(inbound, now).where(was_shown if in_chat else turns.c.account.is_(None) | was_shown)
    return [_approval(row) for row in connection.execute(query).mappings()]


def is_unmistakable(connection: Connection, inbound: Inbound, approval: Approval) -> bool:
    """Return whether a message's speaker can mean no other question in its channel than this open one.

    That is so where no other question to the speaker was open there since the turn that asks was accepted.
    """
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
    """Return whether the last reply to a message's speaker in its channel ends with the question itself."""
    replies = (
        sa.select(turns.c.reply)
        .join(_asking, _asking.c.session_id == turns.c.session_id)
        .where(
            _asking.c.id == approval.turn_id,
            _to_speaker(inbound),
            turns.c.seq > _asking.c.seq,
            turns.c.ended_at.is_not(None),
        )
    )
    last_first = replies.order_by(turns.c.ended_at.desc(), turns.c.seq.desc()).limit(1)
    reply = connection.execute(last_first).scalar() or ""
    return reply.endswith(question_text(approval.tool, approval.arguments))


def said_to(connection: Connection, inbound: Inbound, *, now: datetime) -> Approval | None:
    """The oldest open question to a message's speaker that was given to its chat to be said, shown or not."""
    query = _open_to(inbound, now).where(turns.c.account.is_not(None), approvals.c.delivery.is_not(None))
    row = connection.execute(query).mappings().first()
    return None if row is None else _approval(row)


def is_lost(connection: Connection, approval: Approval) -> bool:
    """Whether a part of a question that was to be said may never be shown."""
    query = sa.select(deliveries.c.number).where(
        _says(approval.turn_id, approval.delivery), deliveries.c.state.not_in(("pending", "sending", "sent"))
    )
    return connection.execute(query).first() is not None


def listed(
    connection: Connection, owner: str, *, now: datetime, before: tuple[datetime, str] | None = None, limit: int
) -> list[Approval]:
    """The owner's open approvals, the newest first; behind a place in that order."""
    query = _open_at(now).where(owned(approvals, owner))
    if before is not None:
        at, approval_id = before
        same_time = (approvals.c.created_at == at) & (approvals.c.id < approval_id)
        query = query.where((approvals.c.created_at < at) | same_time)
    newest_first = query.order_by(approvals.c.created_at.desc(), approvals.c.id.desc()).limit(limit)
    return [_approval(row) for row in connection.execute(newest_first).mappings()]


def _open_at(now: datetime) -> sa.Select[Any]:
    return sa.select(approvals).where(is_open, approvals.c.expires_at > now)


def _open_to(inbound: Inbound, now: datetime) -> sa.Select[Any]:
    return (
        _open_at(now)
        .join(turns, turns.c.id == approvals.c.turn_id)
        .where(_to_speaker(inbound))
        .order_by(approvals.c.created_at, approvals.c.id)
    )


def _to_speaker(inbound: Inbound) -> sa.ColumnElement[bool]:
    """Whether a row of turns answers a message's speaker in its channel."""
    # Who names nobody is known by the token alone.
    nobody = turns.c.user.is_(None) & turns.c.token.is_not_distinct_from(inbound.token)
    of_speaker = nobody if inbound.user is None else turns.c.user == inbound.user
    return (turns.c.owner == inbound.owner) & (turns.c.channel == inbound.channel) & of_speaker


def _says(turn_id: Any, number: Any) -> sa.ColumnElement[bool]:
    """Whether a row of deliveries is a part of what this one of the turn's says."""
    return (deliveries.c.turn_id == turn_id) & ((deliveries.c.number == number) | (deliveries.c.root == number))


def _closed(connection: Connection, approval: Approval, verdict: Verdict) -> Approval:
    """Write a verdict down, and let the turn run where it asks nothing else."""
    values = {
        "state": verdict.state,
        "edited": None if verdict.edited is None else json.dumps(verdict.edited).encode(),
        "reason": verdict.reason,
        "decided_by": verdict.by,
        "decided_at": verdict.at,
    }
    connection.execute(_UPDATE, _key(approval) | values)
    connection.execute(_GO_ON, {"of_turn": approval.turn_id})
    unsay(connection, approval.turn_id, verdict.at)
    closed = _one(connection, approval)
    assert closed is not None  # noqa: S101 - it was just written
    return closed


def _one(connection: Connection, approval: Approval) -> Approval | None:
    row = connection.execute(_GET, _key(approval)).mappings().first()
    return None if row is None else _approval(row)


def _key(approval: Approval) -> dict[str, Any]:
    return {"of_turn": approval.turn_id, "at": approval.step, "call": approval.call_id}


def _values(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "turn_id": approval.turn_id,
        "step": approval.step,
        "call_id": approval.call_id,
        "owner": approval.owner,
        "tool": approval.tool,
        "arguments": json.dumps(approval.arguments).encode(),
        "said": approval.said,
        "delivery": approval.delivery,
        "state": approval.state,
        "edited": None,
        "reason": approval.reason,
        "decided_by": approval.decided_by,
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
        "decided_at": approval.decided_at,
    }


def _approval(row: RowMapping) -> Approval:
    edited = row["edited"]
    decoded = {"arguments": json.loads(row["arguments"]), "edited": edited and json.loads(edited)}
    return Approval(**{**row, **decoded})


#: Why a question is not said any more.
_CLOSED = "nobody can answer it any more"

#: The turn that asks, beside the other turns of its session.
_asking = turns.alias("asking")
is_open = sa.text("approvals.state = 'open'")
_is_sent = sa.case((deliveries.c.state == "sent", 1), else_=0)
#: When the last part of a question was shown in its chat; NULL where one was not, or there is none.
_shown_at = (
    sa.select(sa.case((sa.func.min(_is_sent) == 1, sa.func.max(deliveries.c.ended_at))))
    .where(_says(approvals.c.turn_id, approvals.c.delivery))
    .correlate(approvals)
    .scalar_subquery()
)
_ONE = (
    (approvals.c.turn_id == sa.bindparam("of_turn"))
    & (approvals.c.step == sa.bindparam("at"))
    & (approvals.c.call_id == sa.bindparam("call"))
)
_GET = sa.select(approvals).where(_ONE)
_INSERT = sa.insert(approvals)
_UPDATE = sa.update(approvals).where(_ONE)
_TOLD = sa.select(sa.func.coalesce(sa.func.max(approvals.c.said), 0)).where(
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
#: Questions that are not open, and of which the first part has not been sent.
_DEAD = (
    sa.select(approvals.c.delivery, approvals.c.tool)
    .join(deliveries, deliveries.c.number == approvals.c.delivery)
    .where(
        approvals.c.turn_id == sa.bindparam("of_turn"),
        approvals.c.state != "open",
        deliveries.c.state == "pending",
    )
)
_SAY = sa.update(deliveries).where(deliveries.c.number == sa.bindparam("key"))
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
