"""Rows of turns and of the sessions they stand in. Every function names the owner or takes whole rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import Failure, Inbound, Reply, Turn, Usage
from torana.store.tables import active, history, sessions, turns, unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """What a message becomes when it is accepted: the ids and the time chosen for it."""

    turn_id: str
    session_id: str
    channel: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a turn ended; ``history`` is what the model said and saw, serialised, with its count of messages."""

    at: datetime
    reply: Reply | None = None
    failure: Failure | None = None
    history: tuple[bytes, int] | None = None


def accept(connection: Connection, inbound: Inbound, new: NewTurn) -> Turn:
    """Write a message down as its session's next turn.

    Its place in the order is taken from the session's row in this transaction. It is ``running`` when nothing
    stands before it in the session, else ``queued``.
    """
    session = _open_session(connection, inbound, new)
    free = connection.execute(_UNFINISHED, {"session_id": session["id"]}).first() is None
    turn = Turn(
        id=new.turn_id,
        owner=inbound.owner,
        session_id=session["id"],
        channel=new.channel,
        seq=session["next_seq"],
        principal=inbound.principal,
        user=inbound.user,
        content=inbound.content,
        state="running" if free else "queued",
        attempt=1 if free else 0,
        created_at=new.at,
    )
    connection.execute(_INSERT, _values(turn))
    return turn


def get(connection: Connection, owner: str, turn_id: str) -> Turn | None:
    """The owner's turn of that id; another owner's is None."""
    row = connection.execute(_GET, {"owner": owner, "id": turn_id}).mappings().first()
    return None if row is None else _turn(row)


def finish(connection: Connection, turn: Turn, ending: Ending) -> tuple[Turn, Turn | None]:
    """End a running turn, keep its history, and claim the session's next turn, all in this transaction.

    Returns the ended turn and the claimed one, if the session has another.
    """
    ended = _ended(turn, ending)
    connection.execute(_FINISH, {"key": turn.id} | _outcome(ended))
    if ending.history is not None:
        body, count = ending.history
        connection.execute(
            _KEEP,
            {
                "session_id": turn.session_id,
                "seq": turn.seq,
                "owner": turn.owner,
                "turn_id": turn.id,
                "messages": count,
                "body": body,
            },
        )
    return ended, _claim(connection, turn.session_id)


def recover(connection: Connection) -> list[Turn]:
    """Make every session with unfinished turns run its first one again, after the process died.

    Returns all unfinished turns, a session's in their order: its first one is running, the others are queued.
    """
    connection.execute(_REQUEUE)
    found: list[Turn] = []
    for row in connection.execute(_ALL_UNFINISHED).mappings().all():
        is_first = not found or found[-1].session_id != row["session_id"]
        found.append(_started(connection, row) if is_first else _turn(row))
    return found


def is_shared(connection: Connection, owner: str, session_id: str) -> bool:
    """Whether more than one user has spoken in the session."""
    return bool(connection.execute(_SHARED, {"owner": owner, "id": session_id}).scalar())


def _open_session(connection: Connection, inbound: Inbound, new: NewTurn) -> RowMapping:
    """The session of the message's channel with the seq that this message takes; made where there is none."""
    key = {"owner": inbound.owner, "channel": new.channel}
    row = connection.execute(_SESSION, key).mappings().first()
    if row is None:
        values = key | {"id": new.session_id, "next_seq": 1, "speaker": inbound.user, "shared": False}
        connection.execute(_INSERT_SESSION, values | {"created_at": new.at, "updated_at": new.at})
        row = connection.execute(_SESSION, key).mappings().one()
    speaker = row["speaker"] or inbound.user
    connection.execute(
        _TAKE_SEQ,
        {
            "key": row["id"],
            "speaker": speaker,
            "shared": row["shared"] or (inbound.user is not None and inbound.user != speaker),
            "updated_at": new.at,
        },
    )
    return row


def _claim(connection: Connection, session_id: str) -> Turn | None:
    """Set the session's first queued turn running."""
    row = connection.execute(_NEXT, {"session_id": session_id}).mappings().first()
    return None if row is None else _started(connection, row)


def _started(connection: Connection, row: RowMapping) -> Turn:
    connection.execute(_START, {"key": row["id"]})
    return replace(_turn(row), state="running", attempt=row["attempt"] + 1)


def _ended(turn: Turn, ending: Ending) -> Turn:
    reply = ending.reply
    return replace(
        turn,
        state="completed" if ending.failure is None else "failed",
        reply=reply and reply.text,
        failure=ending.failure,
        model=reply and reply.model,
        usage=reply.usage if reply else Usage(),
        ended_at=ending.at,
    )


def _values(turn: Turn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "owner": turn.owner,
        "session_id": turn.session_id,
        "channel": turn.channel,
        "seq": turn.seq,
        "principal": turn.principal,
        "user": turn.user,
        "content": turn.content,
        "attempt": turn.attempt,
        "created_at": turn.created_at,
    } | _outcome(turn)


def _outcome(turn: Turn) -> dict[str, Any]:
    """The columns that change when a turn ends."""
    return {
        "state": turn.state,
        "reply": turn.reply,
        "failure_code": turn.failure and turn.failure.code,
        "failure_detail": turn.failure and turn.failure.detail,
        "model": turn.model,
        "input_tokens": turn.usage.input_tokens,
        "output_tokens": turn.usage.output_tokens,
        "cost_usd": turn.usage.cost_usd,
        "ended_at": turn.ended_at,
    }


def _turn(row: RowMapping) -> Turn:
    values = dict(row)
    code, detail = values.pop("failure_code"), values.pop("failure_detail")
    usage = Usage(
        input_tokens=values.pop("input_tokens"),
        output_tokens=values.pop("output_tokens"),
        cost_usd=values.pop("cost_usd"),
    )
    return Turn(**values, usage=usage, failure=Failure(code=code, detail=detail) if code else None)


# Statements are built once: SQLAlchemy's cache then finds their SQL without walking them.
_SESSION = sa.select(sessions).where(
    sessions.c.owner == sa.bindparam("owner"), sessions.c.channel == sa.bindparam("channel")
)
_INSERT_SESSION = sa.insert(sessions)
_TAKE_SEQ = (
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("key"))
    .values(
        next_seq=sessions.c.next_seq + 1,
        speaker=sa.bindparam("speaker"),
        shared=sa.bindparam("shared"),
        updated_at=sa.bindparam("updated_at"),
    )
)
_SHARED = sa.select(sessions.c.shared).where(
    sessions.c.owner == sa.bindparam("owner"), sessions.c.id == sa.bindparam("id")
)
_UNFINISHED = sa.select(turns.c.id).where(turns.c.session_id == sa.bindparam("session_id"), unfinished).limit(1)
_INSERT = sa.insert(turns)
_GET = sa.select(turns).where(turns.c.owner == sa.bindparam("owner"), turns.c.id == sa.bindparam("id"))
_NEXT = (
    sa.select(turns)
    .where(turns.c.session_id == sa.bindparam("session_id"), unfinished, turns.c.state == "queued")
    .order_by(turns.c.seq)
    .limit(1)
)
_START = (
    sa.update(turns)
    .where(turns.c.id == sa.bindparam("key"))
    .values(state="running", attempt=turns.c.attempt + 1)
)
_REQUEUE = sa.update(turns).where(active).values(state="queued")
_ALL_UNFINISHED = sa.select(turns).where(unfinished).order_by(turns.c.session_id, turns.c.seq)
_FINISH = sa.update(turns).where(turns.c.id == sa.bindparam("key"))
_KEEP = sa.insert(history)
