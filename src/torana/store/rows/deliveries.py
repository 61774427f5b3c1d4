"""Rows of deliveries: texts for a platform, their address and their state.

::

    preview -> pending <-> sending -> sent | ambiguous | refused     pending -> stale | dropped
    ambiguous | refused | stale -> pending (by the operator)

A line (an account's chat and thread) is delivered in the order of ``number``; the parts of a text take the
position of the first part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import GATEWAY_OWNER, DeliveryState, Turn, new_id
from torana.store.engine.dialects import unread
from torana.store.engine.tables import deliveries, equal_to, owned_by, subscriptions, turns, undelivered, unsent
from torana.store.rows import approvals

#: The states in which a delivery waits for the operator, who may retry it.
HELD: tuple[DeliveryState, ...] = ("ambiguous", "refused", "stale")

#: A reply that is older than this is not sent without the operator's request.
FRESH = timedelta(hours=24)

#: The reason of deliveries whose account is missing or disabled in the settings.
_NOT_CONFIGURED = "account is not configured"

#: ``shown_as`` of a preview that may be shown and whose id on the platform is not known.
UNCONFIRMED = ""

#: The text that a preview gets if its reply is empty.
_EMPTY = "–"

#: Finished deliveries are stored for this long.
_KEPT = timedelta(days=30)


#: Added to the part numbers of a turn for each retry; larger than any part number.
_RETRIED_OFFSET = 1_000_000
#: The first part number of notices of the turn's end to other accounts.
_EVENTS = 500_000
#: The first part number of questions and of the texts before them, and the numbers reserved for each question.
_QUESTIONS, _PER_QUESTION = 250_000, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A part of a reply, or a text that is not cut into parts yet, with the state of its delivery.

    ``place`` is the address (JSON), ``root`` the number of the reply's first part (None for the first part),
    ``unsure`` the number of attempts with an unknown outcome, and ``shown_as`` the platform's message id.
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

    @property
    def key(self) -> str:
        """Return the key by which platforms recognise a repeated attempt."""
        return str(UUID(self.id.removeprefix("dlv_")))

    @property
    def preview_key(self) -> str:
        """Return the key of the preview: a platform that has seen the reply's key would drop the reply."""
        return str(uuid5(UUID(self.key), "preview"))


def add(connection: Connection, turn: Turn, *, subscribed: bool = True) -> None:
    """Add the delivery of a turn's end; called in the transaction that ends the turn.

    A shown preview becomes the reply. A merged turn has no delivery: the other turn's reply answers it.
    ``subscribed`` is false if no account is notified of this end (``is_subscribed``).
    """
    if subscribed:
        _announce(connection, turn)
    if turn.account is None or turn.place is None or turn.ended_at is None or turn.merged_into is not None:
        return
    text = _text_of(turn, delivered=approvals.count_delivered_characters(connection, turn.id))
    preview = connection.execute(_OF_TURN, {"turn_id": turn.id}).mappings().first()
    if preview is not None:
        values = {"text": text or _EMPTY, "state": "pending"}
        values |= {"due_at": turn.ended_at, "created_at": turn.ended_at}
        connection.execute(_UPDATE, {"key": preview["number"]} | values)
    elif text:
        values = _new(turn.account, turn.channel, turn.place, text, turn.ended_at)
        connection.execute(_INSERT, values | {"owner": turn.owner, "turn_id": turn.id})


def add_question(
    connection: Connection, turn: Turn, question: str, at: datetime, *, reply: str = ""
) -> int | None:
    """Add the delivery of a running turn's question; return its number, or None without a chat.

    The ``reply`` so far has a delivery of its own before the question, because its Markdown could hide parts of
    the question. A shown preview becomes the reply so far: the question is always a new message, at the end of
    the chat.
    """
    if turn.account is None or turn.place is None:
        return None
    part: int = connection.execute(_NEXT_QUESTION, {"turn_id": turn.id}).scalar_one()
    of_turn = {"owner": turn.owner, "turn_id": turn.id}
    preview = connection.execute(_OF_TURN, {"turn_id": turn.id}).mappings().first()
    before = {"part": part + _PER_QUESTION, "text": reply or _EMPTY, "state": "pending"}
    if preview is not None:
        connection.execute(_UPDATE, before | {"key": preview["number"], "due_at": at, "created_at": at})
    elif reply:
        connection.execute(_INSERT, _new(turn.account, turn.channel, turn.place, reply, at) | of_turn | before)
    asked = _new(turn.account, turn.channel, turn.place, question, at) | of_turn | {"part": part}
    return connection.execute(_INSERT_RETURNING, asked).mappings().one()["number"]


def subscribe(connection: Connection, account: str, events: Collection[str]) -> None:
    """Notify the account of these events of all turns, and of no others."""
    connection.execute(sa.delete(subscriptions).where(subscriptions.c.account == account))
    if events:
        rows = [{"account": account, "event": event} for event in events]
        connection.execute(sa.insert(subscriptions), rows)


def keep_subscriptions(connection: Connection, accounts: Collection[str]) -> None:
    """Delete the subscriptions of all other accounts."""
    connection.execute(sa.delete(subscriptions).where(subscriptions.c.account.not_in(accounts)))


def _announce(connection: Connection, turn: Turn) -> None:
    """Add notices of a turn's end for the subscribed accounts, after their earlier notices."""
    event = turn.last_event
    accounts = connection.execute(_SUBSCRIBED, {"event": event}).scalars().all()
    if not accounts or turn.ended_at is None:
        return
    place = json.dumps({"chat": "events", "thread": None, "reply_to": {"event": event}})
    for number, account in enumerate(accounts):
        values = _new(account, f"{account}/events", place, _end_event(turn), turn.ended_at)
        values |= {"owner": turn.owner, "turn_id": turn.id, "part": _EVENTS + number, "is_cut": True}
        connection.execute(_INSERT, values)


def _end_event(turn: Turn) -> str:
    failure = turn.failure and {"code": turn.failure.code, "detail": turn.failure.detail}
    document = {
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
    return json.dumps(document, ensure_ascii=False)


def free_part_numbers(connection: Connection, turn_id: str) -> None:
    """Free the part numbers of a retried turn, so that its new reply can use them.

    The deliveries of the failure stay: one of them may be in progress, and its number must not be reused.
    """
    connection.execute(_SET_ASIDE, {"of_turn": turn_id})


def add_notice(connection: Connection, account: str, line: str, place: str, *, text: str, at: datetime) -> None:
    """Add a delivery that belongs to no turn."""
    connection.execute(_INSERT, _new(account, line, place, text, at))


def delete_notices(connection: Connection) -> None:
    """Delete all deliveries without a turn, sent or not: their rows do not name the user."""
    connection.execute(sa.delete(deliveries).where(deliveries.c.turn_id.is_(None)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The delivery of a growing reply, whether it is new, and the text to show."""

    row: Delivery
    is_new: bool
    text: str


def preview(connection: Connection, turn: Turn, text: str, at: datetime) -> Preview | None:
    """Return the preview of a running turn's reply ``text``, without the text that its questions have sent.

    Returns None if there is no text, the turn has ended, the delivery is no longer a preview, or other
    deliveries wait in the line. A new preview is stored before it is shown.
    """
    text = text[approvals.count_delivered_characters(connection, turn.id) :].strip()
    if turn.account is None or turn.place is None or not text:
        return None
    row = connection.execute(_OF_TURN, {"turn_id": turn.id}).mappings().first()
    if row is not None:
        return Preview(row=_delivery(row), is_new=False, text=text) if row["state"] == "preview" else None
    waiting = {"turn_id": turn.id, "account": turn.account, "line": turn.channel}
    if connection.execute(_NO_PREVIEW, waiting).first() is not None:
        return None
    values = _new(turn.account, turn.channel, turn.place, text, at)
    values |= {"owner": turn.owner, "turn_id": turn.id, "state": "preview", "tries": 1, "shown_as": UNCONFIRMED}
    row = connection.execute(_INSERT_RETURNING, values).mappings().one()
    return Preview(row=_delivery(row), is_new=True, text=text)


def record_preview(connection: Connection, number: int, shown_as: str) -> Delivery:
    """Store the platform's id of a preview that was sent."""
    connection.execute(_UPDATE, {"key": number, "shown_as": shown_as})
    return _delivery(connection.execute(_GET, {"key": number}).mappings().one())


def heads(connection: Connection, account: str, now: datetime) -> list[Delivery]:
    """Return the first open delivery of each of the account's lines, in order. Late deliveries become stale."""
    connection.execute(_STALE_OF_ACCOUNT, {"of_account": account, "before": now - FRESH, "now": now})
    return [_delivery(row) for row in connection.execute(_HEADS, {"account": account}).mappings()]


def sweep(connection: Connection, accounts: Collection[str], now: datetime) -> None:
    """Mark late deliveries of all accounts, and state the reason on those whose account is not in ``accounts``.

    For accounts that are not connected, no other task does this.
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


def cut(connection: Connection, delivery: Delivery, pieces: Sequence[str], rest: str) -> Delivery | None:
    """Replace a text by a row for each part and one for the ``rest``, which is not cut yet and may be empty.

    Returns the first part, or None if the text was dropped or changed.
    """
    change = {"text": pieces[0], "is_cut": True}
    if not connection.execute(_CUT, {"key": delivery.number, "was": delivery.text} | change).rowcount:
        return None
    first: int = connection.execute(_GET, {"key": delivery.number}).mappings().one()["part"]
    root = delivery.number if delivery.root is None else delivery.root
    texts = [*pieces[1:], rest] if rest else pieces[1:]
    for part, text in enumerate(texts, start=first + 1):
        values = _new(delivery.account, delivery.line, delivery.place, text, delivery.created_at)
        values |= {"owner": delivery.owner, "turn_id": delivery.turn_id, "part": part, "root": root}
        values["is_cut"] = part - first < len(pieces)
        connection.execute(_INSERT, values)
    return _delivery(connection.execute(_GET, {"key": delivery.number}).mappings().one())


def begin(connection: Connection, delivery: Delivery, at: datetime) -> bool:
    """Mark a part as being sent; return False if it was dropped or its text has changed."""
    if delivery.turn_id is not None and _QUESTIONS <= delivery.part < _EVENTS:
        # The question may have been closed while it was being sent.
        approvals.drop_closed_questions(connection, delivery.turn_id, at)
    return connection.execute(_BEGIN, {"key": delivery.number, "was": delivery.text}).rowcount > 0


def list_interrupted(connection: Connection, account: str) -> list[Delivery]:
    """Return the deliveries that were being sent when their process ended; their outcome is unknown."""
    was_sending = sa.select(deliveries).where(
        undelivered, deliveries.c.account == account, deliveries.c.state == "sending"
    )
    return [_delivery(row) for row in connection.execute(was_sending).mappings()]


def end(
    connection: Connection, number: int, state: DeliveryState, at: datetime, *, reason: str | None = None
) -> None:
    """Set the final or held state of a part."""
    connection.execute(_UPDATE, {"key": number, "state": state, "reason": reason, "ended_at": at})


def record_sent(connection: Connection, number: int, shown_as: str, at: datetime) -> None:
    """Mark a part as sent, delete its text, and delete old finished deliveries."""
    values = {"state": "sent", "shown_as": shown_as, "reason": None, "ended_at": at, "text": ""}
    connection.execute(_UPDATE, {"key": number} | values)
    is_done = deliveries.c.state.in_(("sent", "dropped"))
    connection.execute(sa.delete(deliveries).where(deliveries.c.ended_at < at - _KEPT, is_done))


def put_back(connection: Connection, delivery: Delivery, *, due_at: datetime, reason: str) -> None:
    """Queue a part for another attempt at ``due_at``, with the counts and platform id of ``delivery``.

    Does nothing after another attempt has begun: another replica may have taken over the account.
    """
    values = {"unsure": delivery.unsure, "shown_as": delivery.shown_as}
    values |= {"state": "pending", "due_at": due_at, "reason": reason}
    connection.execute(_PUT_BACK, {"key": delivery.number, "was_tries": delivery.tries} | values)


def get(connection: Connection, owner: str, delivery_id: str) -> Delivery | None:
    query = sa.select(deliveries).where(owned_by(deliveries, owner), deliveries.c.id == delivery_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _delivery(row)


def list_deliveries(
    connection: Connection,
    owner: str,
    *,
    state: DeliveryState | None = None,
    account: str | None = None,
    before: int | None = None,
    limit: int,
) -> list[Delivery]:
    """Return the owner's deliveries, newest first, optionally of one state or account."""
    wanted = equal_to({deliveries.c.state: state, deliveries.c.account: account})
    query = sa.select(deliveries).where(owned_by(deliveries, owner), *wanted)
    if before is not None:
        query = query.where(deliveries.c.number < before)
    rows = connection.execute(query.order_by(deliveries.c.number.desc()).limit(limit))
    return [_delivery(row) for row in rows.mappings()]


def retry(connection: Connection, delivery: Delivery, at: datetime) -> None:
    """Queue a held part as if it were new."""
    values = {"state": "pending", "due_at": at, "created_at": at, "unsure": 0, "ended_at": None}
    connection.execute(_UPDATE, {"key": delivery.number} | values)


def count_waiting(connection: Connection) -> dict[str, dict[str, int]]:
    """Return the numbers of open and held deliveries of each account, by state."""
    counted = (
        sa.select(deliveries.c.account, deliveries.c.state, sa.func.count())
        .where(unsent)
        .group_by(deliveries.c.account, deliveries.c.state)
    )
    found: dict[str, dict[str, int]] = {}
    for account, state, count in connection.execute(counted):
        found.setdefault(account, {})[state] = count
    return found


def _text_of(turn: Turn, *, delivered: int) -> str:
    """Return the text for a turn's end, without the characters of its reply that were sent before."""
    reply = (turn.reply or "")[delivered:].strip() if delivered else turn.reply or ""
    if turn.failure is None or turn.state == "cancelled":
        return reply
    beginning = f"{reply}\n\n" if reply else ""
    return f"{beginning}This message could not be answered: {turn.failure.detail}"


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
    return Delivery(**{**row, "part": row["part"] % _RETRIED_OFFSET})


#: True if an account is notified of the event ``:event``.
is_subscribed = sa.exists().where(subscriptions.c.event == sa.bindparam("event"))
_SUBSCRIBED = (
    sa.select(subscriptions.c.account)
    .where(subscriptions.c.event == sa.bindparam("event"))
    .order_by(subscriptions.c.account)
)
_OF_TURN = sa.select(deliveries).where(deliveries.c.turn_id == sa.bindparam("turn_id"), deliveries.c.part == 0)
# After the last question, whose number an earlier version may have chosen otherwise.
_after_questions = (sa.func.max(deliveries.c.part) // _PER_QUESTION + 1) * _PER_QUESTION
_NEXT_QUESTION = sa.select(sa.func.coalesce(_after_questions, _QUESTIONS)).where(
    deliveries.c.turn_id == sa.bindparam("turn_id"),
    deliveries.c.part.between(_QUESTIONS, _EVENTS - 1),
)
_WAITING = sa.select(deliveries.c.number).where(
    undelivered,
    deliveries.c.account == sa.bindparam("account"),
    deliveries.c.line == sa.bindparam("line"),
)
_HAS_ENDED = sa.select(turns.c.id).where(turns.c.id == sa.bindparam("turn_id"), turns.c.ended_at.is_not(None))
#: A turn that has ended gets no new preview: no reply would replace it.
_NO_PREVIEW = sa.select(sa.literal(1)).where(sa.exists(_WAITING) | sa.exists(_HAS_ENDED))
_INSERT = unread(sa.insert(deliveries))
_INSERT_RETURNING = sa.insert(deliveries).returning(*deliveries.c)
_GET = sa.select(deliveries).where(deliveries.c.number == sa.bindparam("key"))
_ONE = sa.update(deliveries).where(deliveries.c.number == sa.bindparam("key"))
_UPDATE = unread(_ONE)
_PUT_BACK = unread(_ONE.where(deliveries.c.state == "sending", deliveries.c.tries == sa.bindparam("was_tries")))
_of_retried = deliveries.c.turn_id == sa.bindparam("of_turn")
# The new numbers are above those of earlier retries: a unique key can be checked row by row, in any order.
_retries = sa.select(sa.func.max(deliveries.c.part) // _RETRIED_OFFSET + 1).where(_of_retried).scalar_subquery()
_SET_ASIDE = (
    sa.update(deliveries)
    .where(_of_retried, deliveries.c.part < _RETRIED_OFFSET)
    .values(part=deliveries.c.part + _retries * _RETRIED_OFFSET)
)
_CUT = _ONE.where(deliveries.c.state == "pending", deliveries.c.text == sa.bindparam("was"))
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
# The ranking sorts all open deliveries: without their texts, which can be long.
_ranked = (
    sa.select(deliveries.c.number, _place_in_line.label("place_in_line"))
    .where(undelivered, deliveries.c.account == sa.bindparam("account"), deliveries.c.state != "preview")
    .subquery()
)
_HEADS = (
    sa.select(deliveries)
    .where(deliveries.c.number.in_(sa.select(_ranked.c.number).where(_ranked.c.place_in_line == 1)))
    .order_by(deliveries.c.number)
)
