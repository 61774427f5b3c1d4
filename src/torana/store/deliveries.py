"""Rows of deliveries: what is to be said on a platform, where, and how that stands.

::

    preview -> pending <-> sending -> sent | ambiguous | refused     pending -> stale | dropped

What goes to one line (an account's chat and thread) is delivered in its order: by ``number``, where the parts
of a text stand in the place of the first one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import GATEWAY_OWNER, Turn, new_id
from torana.store import approvals
from torana.store.tables import deliveries, owned, subscriptions, undelivered, unsent

DeliveryState = Literal["preview", "pending", "sending", "sent", "ambiguous", "refused", "stale", "dropped"]
DELIVERY_STATES: tuple[DeliveryState, ...] = get_args(DeliveryState)

#: The states in which a delivery waits for the operator, and may be tried again.
HELD: tuple[DeliveryState, ...] = ("ambiguous", "refused", "stale")

#: After so long a reply comes too late to be sent unasked.
FRESH = timedelta(hours=24)

#: Why something waits whose account the settings do not name, or switch off.
_NOT_CONFIGURED = "account is not configured"

#: How long what is done with stays listed.
_KEPT = timedelta(days=30)


#: Added to the numbers of a turn's parts when it is run again: more than a reply has parts.
_ASIDE = 1_000_000
#: Where the numbers of those parts begin that tell others of the turn's end.
_EVENTS = 500_000
#: Where those of its questions begin, and how many are one question's.
_QUESTIONS, _PER_QUESTION = 250_000, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A part of a reply, or a text that is not cut into parts yet, and how its delivery stands.

    ``place`` is where it goes (JSON), ``root`` the number of the reply's first part (None is its own),
    ``unsure`` counts the tries of which nobody knows how they ended, and ``shown_as`` is the platform's id of
    it.
    """

    number: int
    root: int | None
    id: str
    owner: str
    account: str
    line: str
    place: str
    turn_id: str | None
    part: int
    is_cut: bool
    text: str
    state: DeliveryState
    tries: int
    unsure: int
    due_at: datetime
    created_at: datetime
    shown_as: str | None = None
    reason: str | None = None
    ended_at: datetime | None = None


def add(connection: Connection, turn: Turn) -> None:
    """Have the end of a turn told where its message was heard; called in the transaction that ends it.

    A preview that is shown there becomes the reply. What was merged into another turn is told with that one.
    """
    _announce(connection, turn)
    if turn.account is None or turn.place is None or turn.ended_at is None or turn.merged_into is not None:
        return
    text = _text_of(turn, told=approvals.told(connection, turn.id))
    preview = connection.execute(_OF_TURN, {"turn_id": turn.id}).mappings().first()
    if preview is not None:
        values = {"text": text or "–", "state": "pending", "due_at": turn.ended_at}
        connection.execute(_UPDATE, {"key": preview["number"]} | values)
    elif text:
        values = _new(turn.account, turn.channel, turn.place, text, turn.ended_at)
        connection.execute(_INSERT, values | {"owner": turn.owner, "turn_id": turn.id})


def add_question(connection: Connection, turn: Turn, text: str, at: datetime) -> int | None:
    """Have a question of a running turn said where its message was heard, before its reply; returns the
    delivery's number, None for a turn of no chat.

    A preview that is shown there becomes the question, and what is said after it is a message of its own.
    """
    if turn.account is None or turn.place is None:
        return None
    part = _QUESTIONS + _PER_QUESTION * connection.execute(_ASKED, {"turn_id": turn.id}).scalar_one()
    preview = connection.execute(_OF_TURN, {"turn_id": turn.id}).mappings().first()
    if preview is not None:
        values = {"part": part, "text": text, "state": "pending", "due_at": at}
        connection.execute(_UPDATE, {"key": preview["number"]} | values)
        return preview["number"]
    values = _new(turn.account, turn.channel, turn.place, text, at)
    values |= {"owner": turn.owner, "turn_id": turn.id, "part": part}
    return connection.execute(_INSERT_RETURNING, values).mappings().one()["number"]


def subscribe(connection: Connection, account: str, events: Collection[str]) -> None:
    """Tell the account of these events of all turns from now on, and of no others."""
    connection.execute(sa.delete(subscriptions).where(subscriptions.c.account == account))
    if events:
        rows = [{"account": account, "event": event} for event in events]
        connection.execute(sa.insert(subscriptions), rows)


def keep_subscriptions(connection: Connection, accounts: Collection[str]) -> None:
    """Tell no other accounts of anything any more."""
    connection.execute(sa.delete(subscriptions).where(subscriptions.c.account.not_in(accounts)))


def _announce(connection: Connection, turn: Turn) -> None:
    """Have the end of a turn told to those who asked for it, behind all that they were told before."""
    event = turn.last_event
    accounts = connection.execute(_SUBSCRIBED, {"event": event}).scalars().all()
    if not accounts or turn.ended_at is None:
        return
    place = json.dumps({"chat": "events", "thread": None, "reply_to": {"event": event}})
    for number, account in enumerate(accounts):
        values = _new(account, f"{account}/events", place, _told_of(turn), turn.ended_at)
        values |= {"owner": turn.owner, "turn_id": turn.id, "part": _EVENTS + number, "is_cut": True}
        connection.execute(_INSERT, values)


def _told_of(turn: Turn) -> str:
    failure = turn.failure and {"code": turn.failure.code, "detail": turn.failure.detail}
    told = {
        "id": turn.id,
        "sessionId": turn.session_id,
        "channelId": turn.channel,
        "userId": turn.user,
        "status": turn.state,
        "content": turn.content,
        "reply": turn.reply,
        "error": failure,
        "createdAt": turn.created_at.isoformat(),
        "endedAt": turn.ended_at and turn.ended_at.isoformat(),
    }
    return json.dumps(told, ensure_ascii=False)


def set_aside(connection: Connection, turn_id: str) -> None:
    """Make room for the reply of a turn that is run again; what is said of its failure stays as it is.

    A row of it may be just being sent, so none is deleted: its number would go to the reply.
    """
    connection.execute(_SET_ASIDE, {"of_turn": turn_id})


def add_notice(connection: Connection, account: str, line: str, place: str, *, text: str, at: datetime) -> None:
    """Have something said that is no turn's."""
    connection.execute(_INSERT, _new(account, line, place, text, at))


def delete_notices(connection: Connection) -> None:
    """Forget all of those, said or not: no row tells whom it was for."""
    connection.execute(sa.delete(deliveries).where(deliveries.c.turn_id.is_(None)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The row of a reply that is shown while it grows, whether it is new, and what is to be shown of it."""

    row: Delivery
    is_new: bool
    text: str


def preview(connection: Connection, turn: Turn, text: str, at: datetime) -> Preview | None:
    """The preview of a running turn's reply, which is so far ``text``; without what its questions have told.

    None where there is nothing to show, the reply is not a preview any more, or something else is still to be
    said there first. A new one is kept before it is shown.
    """
    text = text[approvals.told(connection, turn.id) :].strip()
    if turn.account is None or turn.place is None or not text:
        return None
    row = connection.execute(_OF_TURN, {"turn_id": turn.id}).mappings().first()
    if row is not None:
        return Preview(row=_delivery(row), is_new=False, text=text) if row["state"] == "preview" else None
    if connection.execute(_WAITING, {"account": turn.account, "line": turn.channel}).first() is not None:
        return None
    values = _new(turn.account, turn.channel, turn.place, text, at)
    values |= {"owner": turn.owner, "turn_id": turn.id, "state": "preview", "tries": 1}
    row = connection.execute(_INSERT_RETURNING, values).mappings().one()
    return Preview(row=_delivery(row), is_new=True, text=text)


def shown(connection: Connection, number: int, shown_as: str) -> Delivery:
    """Keep the platform's id of a preview that arrived."""
    connection.execute(_UPDATE, {"key": number, "shown_as": shown_as})
    return _delivery(connection.execute(_GET, {"key": number}).mappings().one())


def heads(connection: Connection, account: str, now: datetime) -> list[Delivery]:
    """The first open delivery of each of the account's lines, in order. What has become stale is so now."""
    connection.execute(_STALE_OF_ACCOUNT, {"of_account": account, "before": now - FRESH, "now": now})
    return [_delivery(row) for row in connection.execute(_HEADS, {"account": account}).mappings()]


def sweep(connection: Connection, accounts: Collection[str], now: datetime) -> None:
    """Leave to the operator what has become too late, whatever is connected, and say of what is for none of
    these accounts why it waits: nobody else looks after that.
    """
    late = deliveries.c.created_at < now - FRESH
    gone = deliveries.c.account.not_in(accounts)
    waits = undelivered, deliveries.c.state.in_(("pending", "sending"))
    unsaid = deliveries.c.reason.is_distinct_from(_NOT_CONFIGURED)
    connection.execute(_CHANGE.where(*waits, gone, unsaid).values(reason=_NOT_CONFIGURED))
    connection.execute(_CHANGE.where(*waits, ~gone, ~unsaid).values(reason=None))
    for was, becomes in (("pending", "stale"), ("sending", "ambiguous")):
        is_late = undelivered, gone, late, deliveries.c.state == was
        connection.execute(_CHANGE.where(*is_late).values(state=becomes, ended_at=now))
    connection.execute(_STALE, {"before": now - FRESH, "now": now})


def cut(connection: Connection, delivery: Delivery, pieces: Sequence[str]) -> Delivery | None:
    """Put a row per part in the place of one whole text; returns the first, or None where it was dropped or
    says less by now.
    """
    change = {"text": pieces[0], "is_cut": True}
    if not connection.execute(_CUT, {"key": delivery.number, "was": delivery.text} | change).rowcount:
        return None
    first: int = connection.execute(_GET, {"key": delivery.number}).mappings().one()["part"]
    for part, text in enumerate(pieces[1:], start=first + 1):
        values = _new(delivery.account, delivery.line, delivery.place, text, delivery.created_at)
        values |= {"owner": delivery.owner, "turn_id": delivery.turn_id, "part": part, "is_cut": True}
        values["root"] = delivery.number
        connection.execute(_INSERT, values)
    return _delivery(connection.execute(_GET, {"key": delivery.number}).mappings().one())


def begin(connection: Connection, delivery: Delivery, at: datetime) -> bool:
    """Keep that a part is about to be sent; False where it is not to be sent any more, or says less by now."""
    if delivery.turn_id is not None and _QUESTIONS <= delivery.part < _EVENTS:
        approvals.unsay(connection, delivery.turn_id, at)  # one that was being sent when it was closed
    return connection.execute(_BEGIN, {"key": delivery.number, "was": delivery.text}).rowcount > 0


def cut_off(connection: Connection, account: str) -> list[Delivery]:
    """What was being sent when its process ended; nobody knows whether it arrived."""
    was_sending = sa.select(deliveries).where(
        undelivered, deliveries.c.account == account, deliveries.c.state == "sending"
    )
    return [_delivery(row) for row in connection.execute(was_sending).mappings()]


def end(
    connection: Connection, number: int, state: DeliveryState, at: datetime, *, reason: str | None = None
) -> None:
    """Be done with a part, or leave it to the operator."""
    connection.execute(_UPDATE, {"key": number, "state": state, "reason": reason, "ended_at": at})


def sent(connection: Connection, number: int, shown_as: str, at: datetime) -> None:
    """Keep that a part arrived; its text is not needed any more. What was sent long ago is forgotten."""
    values = {"state": "sent", "shown_as": shown_as, "reason": None, "ended_at": at, "text": ""}
    connection.execute(_UPDATE, {"key": number} | values)
    is_done = deliveries.c.state.in_(("sent", "dropped"))
    connection.execute(sa.delete(deliveries).where(deliveries.c.ended_at < at - _KEPT, is_done))


def put_back(connection: Connection, delivery: Delivery, *, due_at: datetime, reason: str) -> None:
    """Have a part tried again then; counts and the platform's id are taken from ``delivery``."""
    values = {"unsure": delivery.unsure, "shown_as": delivery.shown_as}
    values |= {"state": "pending", "due_at": due_at, "reason": reason}
    connection.execute(_UPDATE, {"key": delivery.number} | values)


def get(connection: Connection, owner: str, delivery_id: str) -> Delivery | None:
    """The owner's delivery of that id."""
    query = sa.select(deliveries).where(owned(deliveries, owner), deliveries.c.id == delivery_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _delivery(row)


def listed(
    connection: Connection,
    owner: str,
    *,
    state: DeliveryState | None = None,
    account: str | None = None,
    before: int | None = None,
    limit: int,
) -> list[Delivery]:
    """The owner's deliveries, the newest first; of one state or account, or of any."""
    query = sa.select(deliveries).where(owned(deliveries, owner))
    if state is not None:
        query = query.where(deliveries.c.state == state)
    if account is not None:
        query = query.where(deliveries.c.account == account)
    if before is not None:
        query = query.where(deliveries.c.number < before)
    rows = connection.execute(query.order_by(deliveries.c.number.desc()).limit(limit))
    return [_delivery(row) for row in rows.mappings()]


def retry(connection: Connection, delivery: Delivery, at: datetime) -> None:
    """Have a held part tried again as if it were new: the operator wants it there."""
    values = {"state": "pending", "due_at": at, "created_at": at, "unsure": 0, "ended_at": None}
    connection.execute(_UPDATE, {"key": delivery.number} | values)


def waiting(connection: Connection) -> dict[str, dict[str, int]]:
    """How many deliveries of each account are open or held, by state."""
    counted = (
        sa.select(deliveries.c.account, deliveries.c.state, sa.func.count())
        .where(unsent)
        .group_by(deliveries.c.account, deliveries.c.state)
    )
    found: dict[str, dict[str, int]] = {}
    for account, state, count in connection.execute(counted):
        found.setdefault(account, {})[state] = count
    return found


def _text_of(turn: Turn, *, told: int) -> str:
    """What is told of a turn's end, behind so many characters of its reply."""
    reply = (turn.reply or "")[told:].strip() if told else turn.reply or ""
    if turn.failure is None or turn.state == "cancelled":
        return reply
    said = f"{reply}\n\n" if reply else ""
    return f"{said}This message could not be answered: {turn.failure.detail}"


def _new(account: str, line: str, place: str, text: str, at: datetime) -> dict[str, Any]:
    return {
        "id": new_id("dlv"),
        "root": None,
        "owner": GATEWAY_OWNER,
        "account": account,
        "line": line,
        "place": place,
        "turn_id": None,
        "part": 0,
        "is_cut": False,
        "text": text,
        "state": "pending",
        "tries": 0,
        "unsure": 0,
        "due_at": at,
        "created_at": at,
    }


def _delivery(row: RowMapping) -> Delivery:
    return Delivery(**{**row, "part": row["part"] % _ASIDE})


_SUBSCRIBED = (
    sa.select(subscriptions.c.account)
    .where(subscriptions.c.event == sa.bindparam("event"))
    .order_by(subscriptions.c.account)
)
_OF_TURN = sa.select(deliveries).where(deliveries.c.turn_id == sa.bindparam("turn_id"), deliveries.c.part == 0)
_ASKED = sa.select(sa.func.count(sa.distinct(deliveries.c.part / _PER_QUESTION))).where(
    deliveries.c.turn_id == sa.bindparam("turn_id"),
    deliveries.c.part.between(_QUESTIONS, _EVENTS - 1),
)
_WAITING = sa.select(deliveries.c.number).where(
    undelivered,
    deliveries.c.account == sa.bindparam("account"),
    deliveries.c.line == sa.bindparam("line"),
)
_INSERT = sa.insert(deliveries)
_INSERT_RETURNING = sa.insert(deliveries).returning(*deliveries.c)
_GET = sa.select(deliveries).where(deliveries.c.number == sa.bindparam("key"))
_UPDATE = sa.update(deliveries).where(deliveries.c.number == sa.bindparam("key"))
_SET_ASIDE = (
    sa.update(deliveries)
    .where(deliveries.c.turn_id == sa.bindparam("of_turn"))
    .values(part=deliveries.c.part + _ASIDE)
)
_CUT = _UPDATE.where(deliveries.c.state == "pending", deliveries.c.text == sa.bindparam("was"))
_BEGIN = _CUT.values(state="sending", tries=deliveries.c.tries + 1)
_CHANGE = sa.update(deliveries)
_STALE = (
    sa.update(deliveries)
    .where(
        undelivered,
        deliveries.c.state == "pending",
        deliveries.c.created_at < sa.bindparam("before"),
    )
    .values(state="stale", ended_at=sa.bindparam("now"), reason="not delivered within 24 hours")
)
_STALE_OF_ACCOUNT = _STALE.where(deliveries.c.account == sa.bindparam("of_account"))
_place_in_line = sa.func.row_number().over(
    partition_by=deliveries.c.line,
    order_by=[sa.func.coalesce(deliveries.c.root, deliveries.c.number), deliveries.c.part],
)
_ranked = (
    sa.select(*deliveries.c, _place_in_line.label("place_in_line"))
    .where(undelivered, deliveries.c.account == sa.bindparam("account"), deliveries.c.state != "preview")
    .subquery()
)
_HEADS = (
    sa.select(*(column for column in _ranked.c if column.name != "place_in_line"))
    .where(_ranked.c.place_in_line == 1)
    .order_by(_ranked.c.number)
)
