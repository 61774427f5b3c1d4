"""Rows of turns and their sessions.

Functions on behalf of a caller take the owner, which may be ``EVERYONE`` for reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.errors import NotFailed, SessionBusy
from torana.messages import GATEWAY_MODEL, Failure, Inbound, Turn, Usage
from torana.store.engine.dialects import IsOwn, ThisReplica, insert, unread
from torana.store.engine.tables import approvals as approvals_table
from torana.store.engine.tables import calls, history, owned_by, sessions, steps, turns, unfinished
from torana.store.rows import approvals, attachments, deliveries, journal, usage
from torana.store.rows import sessions as session_rows
from torana.store.rows.reports import message_index, timings

#: A turn with this many crashes is a suspect and runs alone.
SUSPECT = 2
_MOST_ATTEMPTS = 1_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """The ids and the time of a new turn."""

    turn_id: str
    session_id: str
    channel: str
    at: datetime
    #: The session's title, if it has none yet.
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a turn; ``history`` is its serialised model messages and their number."""

    at: datetime
    state: Literal["completed", "failed", "cancelled"] = "completed"
    #: The reply of a completed turn, or the text so far of a cancelled turn.
    reply: str | None = None
    model: str | None = None
    failure: Failure | None = None
    history: tuple[bytes, int] | None = None
    #: All tools that the session has opened, in order; None if they have not changed.
    opened_tools: tuple[str, ...] | None = None
    #: The turn's usage after the last settled step.
    spent: Usage = field(default_factory=Usage)
    #: The bytes of output so far of an interrupted model request; None if there was none.
    stopped_at: int | None = None
    #: The estimated tokens of that request; None if it was not measured.
    stopped_request: int | None = None
    #: The times of the turn's actions since the last settled step.
    times: Sequence[timings.Timing] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An accepted message, and the running turn that it interrupts or joins."""

    turn: Turn
    interrupts: str | None = None
    steers: str | None = None


def accept(connection: Connection, inbound: Inbound, new: NewTurn, *, hold: bool) -> Accepted:
    """Store a message as its session's next turn.

    Its position comes from the session's row. The turn is ``running`` if the session has no unfinished turn and
    ``hold`` is false, else ``queued``. A message steers or interrupts only a running turn of the same user and
    token, because a turn has the rights of its token; other messages are queued. Raises ``SessionBusy`` if the
    session is busy and the message asks to be rejected then.
    """
    queued, is_busy = _in_session(connection, inbound, new)
    session = {"session_id": queued.session_id}
    unfinished_turns = connection.execute(_UNFINISHED, session).mappings().all() if is_busy else ()
    if unfinished_turns and inbound.on_busy == "reject":
        raise SessionBusy
    free = not unfinished_turns and not hold
    own = next((row["id"] for row in unfinished_turns if _is_own(row, inbound)), None)
    turn = replace(
        queued,
        state="running" if free else "queued",
        attempt=1 if free else 0,
        on_busy=inbound.on_busy if own else "queue",
        files=len(inbound.files),
    )
    connection.execute(_INSERT, _values(turn))
    if inbound.files:
        attachments.add(connection, turn, inbound.files)
    return Accepted(
        turn=turn,
        interrupts=own if turn.on_busy == "interrupt" else None,
        steers=own if turn.on_busy == "steer" else None,
    )


def answer_at_once(
    connection: Connection,
    inbound: Inbound,
    new: NewTurn,
    text: str,
    *,
    history: tuple[bytes, int] | None = None,
) -> Turn:
    """Store a message with its reply as a completed turn; ``history`` is as in ``Ending``."""
    queued, _ = _in_session(connection, inbound, new)
    turn = replace(queued, state="completed", attempt=1, reply=text, model=GATEWAY_MODEL, ended_at=new.at)
    connection.execute(_INSERT, _values(turn))
    if history is not None:
        _add_history(connection, turn, *history)
    deliveries.add(connection, turn)
    return turn


def find_by_platform_message(connection: Connection, account: str, message: str) -> Turn | None:
    """Return the turn of a platform message, or None."""
    row = connection.execute(_BY_PLATFORM_MESSAGE, {"account": account, "message": message}).mappings().first()
    return None if row is None else turn_of(row)


def unfinished_in_channel(connection: Connection, owner: str, channel: str) -> list[Turn]:
    """Return the unfinished turns of a channel, in order."""
    rows = connection.execute(
        sa.select(turns)
        .where(unfinished, turns.c.owner == owner, turns.c.channel == channel)
        .order_by(turns.c.seq)
    )
    return [turn_of(row) for row in rows.mappings()]


def get(connection: Connection, owner: str, turn_id: str) -> Turn | None:
    """Return the owner's turn, or None, also for another owner's turn."""
    row = connection.execute(_GET.where(owned_by(turns, owner)), {"id": turn_id}).mappings().first()
    return None if row is None else turn_of(row)


def finish(connection: Connection, turn: Turn, ending: Ending, *, hold: bool) -> tuple[list[Turn], Turn | None]:
    """End a running turn, and claim the session's next turn unless ``hold`` is true.

    Stores its history and deliveries. Returns the ended turns, including those that were merged into it, and
    the claimed turn, if any. The journal is deleted unless the turn failed.
    """
    related = _read_related(connection, turn, ending)
    ended = _end_all(connection, turn, ending, related)
    timings.store(connection, ending.times)
    if not related.others:
        return ended, None
    connection.execute(_STEER_NO_MORE, {"key": turn.session_id})
    return ended, None if hold else claim_next(connection, turn.session_id)


def end_queued(connection: Connection, turn: Turn, ending: Ending) -> list[Turn]:
    """End a turn that is not running, with the turns that were merged into it."""
    return _end_all(connection, turn, ending, _read_related(connection, turn, ending))


def fail_bare(connection: Connection, turn: Turn, ending: Ending) -> list[Turn]:
    """End a running turn as failed, with the turns that were merged into it, and claim no other turn.

    For a turn whose complete end the database refuses. Usage after the last settled step is not charged.
    Releasing the reservation, withdrawing approvals and delivering the failure are skipped if they fail too.
    """
    merged = connection.execute(_MERGED, {"turn_id": turn.id, "session_id": turn.session_id}).mappings().all()
    ended = [_with_ending(one, ending) for one in (turn, *(turn_of(row) for row in merged))]
    for one in ended:
        _unless_refused(connection, partial(usage.settle, turn=one, spent=Usage(), at=ending.at))
        outcome = {"state": one.state, "ended_at": one.ended_at} | _failure(one) | _HOLDS_NOTHING
        connection.execute(_FINISH, {"key": one.id} | outcome)
        _unless_refused(connection, partial(deliveries.add, turn=one))
    _unless_refused(connection, partial(approvals.withdraw, turn_id=turn.id, now=ending.at))
    connection.execute(_STEER_NO_MORE, {"key": turn.session_id})
    return ended


def unfinished_in_session(connection: Connection, session_id: str) -> list[Turn]:
    """Return the unfinished turns of a session, in order."""
    rows = connection.execute(_UNFINISHED_TURNS, {"session_id": session_id}).mappings()
    return [turn_of(row) for row in rows]


def target(connection: Connection, owner: str, turn_id: str) -> Turn | None:
    """Return the turn that answers a message: its own, or the unfinished turn that it was merged into."""
    turn = get(connection, owner, turn_id)
    if turn is None or turn.has_ended or turn.merged_into is None:
        return turn
    return get(connection, owner, turn.merged_into)


def retry(connection: Connection, owner: str, turn_id: str, *, hold: bool) -> Turn | None:
    """Queue a failed turn again at the end of its session; set it running if the session is idle.

    It keeps its id and its journal. Returns None if the owner has no such turn. Raises ``NotFailed``, also for
    a turn with 1,000 attempts: each retry takes part numbers of deliveries, which are limited.
    """
    turn = get(connection, owner, turn_id)
    if turn is None:
        return None
    if turn.state != "failed":
        raise NotFailed
    if turn.attempt >= _MOST_ATTEMPTS:
        raise NotFailed(f"The turn failed {_MOST_ATTEMPTS} times; send the message again.")
    seq = connection.execute(_NEXT_SEQ, {"session_id": turn.session_id}).scalar_one()
    free = not hold and connection.execute(_UNFINISHED, {"session_id": turn.session_id}).first() is None
    again = replace(
        turn,
        seq=seq,
        state="running" if free else "queued",
        # Even if the turn failed before its first attempt, the retry is not attempt 1: the event stream of
        # attempt 1 has ended.
        attempt=max(turn.attempt, 1) + free,
        crashes=0,
        failure=None,
        merged_into=None,
        on_busy="queue",
        ended_at=None,
    )
    message_index.drop(connection, turns.c.id == turn.id)
    connection.execute(_RETRY, {"key": turn.id, "words_row": None} | _values(again))
    deliveries.free_part_numbers(connection, turn.id)
    return again


def has_steers(connection: Connection, turn: Turn) -> bool:
    """Return whether messages that steer turns wait in the session of the turn."""
    return connection.execute(_HAS_STEERS, {"session_id": turn.session_id}).scalar_one()


def take_steers(connection: Connection, turn: Turn, step: int) -> list[Turn]:
    """Return the messages that steer the running turn, sent by the same user with the same token.

    They are assigned to the request of this step and end together with the turn. A repeated call for the step
    returns them again, with the messages that were assigned to later, unsettled steps.
    """
    own = turns.c.user.is_not_distinct_from(turn.user) & turns.c.token.is_not_distinct_from(turn.token)
    is_new = turns.c.merged_into.is_(None) & (turns.c.on_busy == "steer") & (turns.c.state == "queued") & own
    is_unsettled = (turns.c.merged_into == turn.id) & (turns.c.merged_step > step)
    connection.execute(
        sa.update(turns)
        .where(unfinished, turns.c.session_id == turn.session_id, is_new | is_unsettled)
        .values(merged_into=turn.id, merged_step=step)
    )
    taken = connection.execute(
        sa.select(turns)
        .where(unfinished, turns.c.session_id == turn.session_id, turns.c.merged_into == turn.id)
        .where(turns.c.merged_step == step)
        .order_by(turns.c.seq)
    )
    return [turn_of(row) for row in taken.mappings()]


def request_cancel(connection: Connection, turn_id: str) -> None:
    """Have the replica that runs a turn cancel it."""
    connection.execute(_REQUEST_CANCEL, {"key": turn_id})


def claim_next(connection: Connection, session_id: str) -> Turn | None:
    """Set the next queued turn of an idle session running; None if no turn is queued."""
    row = connection.execute(_NEXT, {"session_id": session_id}).mappings().first()
    if row is None:
        return None
    turn = turn_of(row)
    connection.execute(_START, {"key": turn.id})
    return replace(turn, state="running", attempt=turn.attempt + 1)


def claim_all(connection: Connection) -> list[Turn]:
    """Set the next queued turn of every idle session running."""
    idle = connection.execute(idle_sessions).scalars().all()
    claimed = [claim_next(connection, session_id) for session_id in idle]
    return [turn for turn in claimed if turn is not None]


def _in_session(connection: Connection, inbound: Inbound, new: NewTurn) -> tuple[Turn, bool]:
    """Return the message as the next turn of its session, and whether the session has unfinished turns.

    Creates the session if needed, and stores no turn.
    """
    row = connection.execute(
        _TAKE_SEQ,
        {
            "id": new.session_id,
            "owner": inbound.owner,
            "channel": new.channel,
            "next_seq": 2,
            "speaker": inbound.user,
            "shared": False,
            "title": new.title,
            "created_at": new.at,
            "updated_at": new.at,
        },
    ).one()
    turn = Turn(
        id=new.turn_id,
        owner=inbound.owner,
        session_id=row.id,
        channel=new.channel,
        seq=row.next_seq - 1,
        principal=inbound.principal,
        token=inbound.token,
        user=inbound.user,
        content=inbound.content,
        state="queued",
        attempt=0,
        created_at=new.at,
        account=inbound.account,
        message=inbound.message,
        place=inbound.place,
    )
    return turn, row.is_busy


def _is_own(row: RowMapping, inbound: Inbound) -> bool:
    """Return whether a row is an active turn of the message's user and token."""
    is_active = row["state"] in ("running", "waiting")
    return is_active and (row["user"], row["token"]) == (inbound.user, inbound.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RelatedRows:
    """Flags of the related rows of a turn that ends, and the turn's reservation and usage.

    A flag is true if there are other unfinished turns of the session, open approvals, a journal, or
    subscriptions to the end of the turn. Most turns have none, and one query is cheaper than several updates
    without effect.
    """

    others: bool
    approvals: bool
    journal: bool
    subscribed: bool
    held: usage.Reservation


def _read_related(connection: Connection, turn: Turn, ending: Ending) -> _RelatedRows:
    event = _with_ending(turn, ending).last_event
    key = {"turn_id": turn.id, "session_id": turn.session_id, "event": event}
    row = connection.execute(_RELATED, key).mappings().one()
    named = {name: row[name] for name in ("others", "approvals", "journal", "subscribed")}
    return _RelatedRows(**named, held=usage.reservation_of(row))


def _end_all(connection: Connection, turn: Turn, ending: Ending, related: _RelatedRows) -> list[Turn]:
    merged = (
        connection.execute(_MERGED, {"turn_id": turn.id, "session_id": turn.session_id}).mappings().all()
        if related.others
        else ()
    )
    end = partial(_end, connection, subscribed=related.subscribed)
    ended = end(turn, ending, held=related.held)
    # The usage of the merged turns is charged to the turn that ran.
    others = [end(turn_of(row), replace(ending, spent=Usage())) for row in merged]
    if related.approvals:
        approvals.withdraw(connection, turn.id, ending.at)
    if ending.history is not None:
        _add_history(connection, turn, *ending.history)
    if ending.opened_tools is not None:
        session_rows.keep_opened_tools(connection, turn.session_id, ending.opened_tools)
    if related.journal and ended.state != "failed":
        journal.clear(connection, turn.id)
    return [ended, *others]


def _end(
    connection: Connection,
    turn: Turn,
    ending: Ending,
    *,
    subscribed: bool,
    held: usage.Reservation | None = None,
) -> Turn:
    used = usage.settle(connection, turn, spent=ending.spent, at=ending.at, before=held)
    ended = replace(_with_ending(turn, ending), usage=used)
    connection.execute(_END, {"key": turn.id} | _outcome(ended) | _HOLDS_NOTHING)
    deliveries.add(connection, ended, subscribed=subscribed)
    if turn.files and ended.state != "failed":  # only failed turns can be retried
        attachments.clear(connection, turn.id)
    return ended


def _unless_refused(connection: Connection, work: Callable[[Connection], object]) -> None:
    """Execute ``work`` in a savepoint; log and ignore its errors."""
    try:
        with connection.begin_nested():
            work(connection)
    except Exception:  # noqa: BLE001 - less important than the end of the turn
        _log.exception("part_of_turn_end_not_written")


def _add_history(connection: Connection, turn: Turn, body: bytes, messages: int) -> None:
    """Append to the session's history, in the order of ending: an interrupting turn ends out of sequence."""
    values = {"session_id": turn.session_id, "owner": turn.owner, "turn_id": turn.id}
    connection.execute(
        _ADD_HISTORY, values | {"of_session": turn.session_id, "messages": messages, "body": body}
    )


def _with_ending(turn: Turn, ending: Ending) -> Turn:
    return replace(
        turn,
        state=ending.state,
        reply=ending.reply,
        failure=ending.failure,
        model=ending.model,
        ended_at=ending.at,
    )


def _values(turn: Turn) -> dict[str, Any]:
    own = {name: getattr(turn, name) for name in _OWN_COLUMNS}
    return own | usage.usage_values(turn.usage) | _failure(turn)


def _outcome(turn: Turn) -> dict[str, Any]:
    return {
        "state": turn.state,
        "reply": turn.reply,
        "model": turn.model,
        **usage.usage_values(turn.usage),
        "ended_at": turn.ended_at,
    } | _failure(turn)


def _failure(turn: Turn) -> dict[str, Any]:
    return {
        "failure_code": turn.failure and turn.failure.code,
        "failure_detail": turn.failure and turn.failure.detail,
        "failure_retry_after": turn.failure and turn.failure.retry_after,
        "failure_policies": " ".join(turn.failure.policies) if turn.failure else "",
    }


#: The fields of ``Turn`` that are columns of the same name.
_OWN_COLUMNS = tuple(one.name for one in fields(Turn) if one.name not in ("usage", "failure"))
_HOLDS_NOTHING = {"reserved_tokens": 0, "reserved_microusd": 0, "reserved_on": None, "open_requests": 0}
#: Columns that ``Turn`` does not have.
_NOT_OF_A_TURN = frozenset(
    {"merged_step", "words_row", "replica", "cancel_requested", *_HOLDS_NOTHING, *usage.USED}
)


def turn_of(row: RowMapping) -> Turn:
    """Return the turn of a row with all columns."""
    values = {name: value for name, value in row.items() if name not in _NOT_OF_A_TURN}
    failure = Failure(
        code=values.pop("failure_code"),
        detail=values.pop("failure_detail"),
        retry_after=values.pop("failure_retry_after"),
        policies=tuple(values.pop("failure_policies").split()),
    )
    return Turn(**values, usage=usage.used_in(row), failure=failure if failure.code else None)


# Built once: SQLAlchemy then finds the compiled SQL faster.
_new_session = insert(sessions)
#: With its table's name, which SQLAlchemy does not write in RETURNING.
_SESSION_ID = sa.literal_column("sessions.id", sa.Text)
_excluded = _new_session.excluded
_is_another = sa.func.coalesce(_excluded.speaker != sessions.c.speaker, sa.false())
_TAKE_SEQ = _new_session.on_conflict_do_update(
    index_elements=["owner", "channel"],
    set_={
        "next_seq": sessions.c.next_seq + 1,
        "speaker": sa.func.coalesce(sessions.c.speaker, _excluded.speaker),
        "shared": sessions.c.shared | _is_another,
        "title": sa.func.coalesce(sessions.c.title, _excluded.title),
        "archived_at": None,
        "updated_at": _excluded.updated_at,
    },
).returning(
    sessions.c.id,
    sessions.c.next_seq,
    sa.exists().where(turns.c.session_id == _SESSION_ID, unfinished).label("is_busy"),
)
_UNFINISHED = (
    sa.select(turns.c.id, turns.c.state, turns.c.user, turns.c.token)
    .where(turns.c.session_id == sa.bindparam("session_id"), unfinished)
    .order_by(turns.c.seq)
)
_NEXT_SEQ = (
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("session_id"))
    .values(next_seq=sessions.c.next_seq + 1)
    .returning(sessions.c.next_seq - 1)
)
_MERGED = (
    sa.select(turns)
    .where(
        unfinished,
        turns.c.session_id == sa.bindparam("session_id"),
        turns.c.merged_into == sa.bindparam("turn_id"),
    )
    .order_by(turns.c.seq)
)
#: Steering messages that the turn did not take are queued like others.
_STEER_NO_MORE = unread(
    sa.update(turns)
    .where(
        unfinished,
        turns.c.session_id == sa.bindparam("key"),
        turns.c.on_busy == "steer",
        turns.c.merged_into.is_(None),
    )
    .values(on_busy="queue")
)
_INSERT = unread(sa.insert(turns)).values(replica=ThisReplica())
_GET = sa.select(turns).where(turns.c.id == sa.bindparam("id"))
_BY_PLATFORM_MESSAGE = sa.select(turns).where(
    turns.c.account == sa.bindparam("account"), turns.c.message == sa.bindparam("message")
)
_NEXT = (
    sa.select(turns)
    .where(
        turns.c.session_id == sa.bindparam("session_id"),
        unfinished,
        turns.c.state == "queued",
        turns.c.merged_into.is_(None),
    )
    .order_by((turns.c.on_busy == "interrupt").desc(), turns.c.seq)
    .limit(1)
)
_START = unread(
    sa.update(turns)
    .where(turns.c.id == sa.bindparam("key"))
    .values(state="running", attempt=turns.c.attempt + 1, replica=ThisReplica())
)
_other = turns.alias("other")
_UNFINISHED_TURNS = (
    sa.select(turns).where(turns.c.session_id == sa.bindparam("session_id"), unfinished).order_by(turns.c.seq)
)
_HAS_STEERS = sa.select(
    sa.exists().where(
        turns.c.session_id == sa.bindparam("session_id"),
        unfinished,
        turns.c.state == "queued",
        turns.c.on_busy == "steer",
        turns.c.merged_into.is_(None),
    )
)
#: Sessions in which turns wait and none runs.
#: A suspect turn that another replica is about to run alone.
is_isolated_elsewhere = (turns.c.state == "queued") & (turns.c.crashes >= SUSPECT) & ~IsOwn(turns.c.replica)
idle_sessions = (
    sa.select(turns.c.session_id)
    .where(unfinished)
    .group_by(turns.c.session_id)
    .having(sa.func.count(sa.case(((turns.c.state != "queued") | is_isolated_elsewhere, 1))) == 0)
    .order_by(turns.c.session_id)
)
_FINISH = sa.update(turns).where(turns.c.id == sa.bindparam("key"))
_END = unread(_FINISH)
_RETRY = _FINISH.values(replica=ThisReplica(), cancel_requested=False)
_REQUEST_CANCEL = _END.values(cancel_requested=True)
_PLACE = sa.select(sa.func.coalesce(sa.func.max(history.c.seq), 0) + 1).where(
    history.c.session_id == sa.bindparam("of_session")
)
_ADD_HISTORY = unread(sa.insert(history).values(seq=_PLACE.scalar_subquery()))
_RELATED = sa.select(
    *usage.RESERVATION_COLUMNS,
    sa.exists()
    .where(
        _other.c.session_id == sa.bindparam("session_id"), _other.c.id != sa.bindparam("turn_id"), unfinished
    )
    .label("others"),
    sa.exists()
    .where(approvals_table.c.turn_id == sa.bindparam("turn_id"), approvals.is_open)
    .label("approvals"),
    sa.or_(
        sa.exists().where(calls.c.turn_id == sa.bindparam("turn_id")),
        sa.exists().where(steps.c.turn_id == sa.bindparam("turn_id")),
    ).label("journal"),
    deliveries.is_subscribed.label("subscribed"),
).where(turns.c.id == sa.bindparam("turn_id"))
