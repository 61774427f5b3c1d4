"""Delete whole sessions; a tombstone of each turn remains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.errors import SessionBusy
from torana.store.engine.dialects import Octets
from torana.store.engine.tables import (
    approvals,
    attachments,
    calls,
    deliveries,
    history,
    keys,
    owned_by,
    sessions,
    steps,
    timings,
    tombstones,
    turns,
    undelivered,
    unfinished,
)
from torana.store.rows import schedules
from torana.store.rows.reports import message_index

#: Limits on the turns and their bytes that a transaction deletes: other transactions wait for it.
_MOST = 200
_MOST_BYTES = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """The deleted turns' ids, their sessions, and the number of idempotency keys that lost their turn."""

    turns: Sequence[str]
    sessions: Collection[str]
    keys: int


def delete(connection: Connection, owner: str, session_id: str, *, at: datetime) -> Deleted | None:
    """Delete the owner's session with its turns and schedules; None if there is none.

    Raises ``SessionBusy``, and deletes nothing, if a turn has not ended.
    """
    is_there = sa.select(sessions.c.channel).where(sessions.c.owner == owner, sessions.c.id == session_id)
    channel = connection.execute(is_there).scalar()
    if channel is None:
        return None
    _check_idle(connection, session_id)
    schedules.delete_channel(connection, owner, channel)
    return _delete(connection, [session_id], at)


def delete_oldest(connection: Connection, session_id: str, *, at: datetime) -> Deleted | None:
    """Delete as many of the oldest turns of a session as one transaction may; None if it may delete them all.

    Raises ``SessionBusy``, and deletes nothing, if a turn has not ended.
    """
    _check_idle(connection, session_id)
    found, are_all = _oldest(connection, turns.c.session_id == session_id)
    return None if are_all else delete_turns(connection, turns.c.id.in_(found), at)


def _check_idle(connection: Connection, session_id: str) -> None:
    busy = sa.select(turns.c.id).where(unfinished, turns.c.session_id == session_id).limit(1)
    if connection.execute(busy).first() is not None:
        raise SessionBusy


def idle(connection: Connection, before: datetime, *, limit: int) -> list[str]:
    """Return ids of sessions that were not used since ``before`` and have no unfinished turn or delivery."""
    found = sa.select(sessions.c.id).where(_idle_since(before)).limit(limit)
    return list(connection.execute(found).scalars())


def delete_idle(
    connection: Connection, session_ids: Sequence[str], before: datetime, *, at: datetime
) -> Deleted:
    """Delete the oldest turns of the sessions that are still idle, and with the last turns the sessions.

    To delete all of them, call it until it deletes no turn.
    """
    still = sa.select(sessions.c.id).where(sessions.c.id.in_(session_ids), _idle_since(before))
    idle_ids = connection.execute(still).scalars().all()
    found, are_all = _oldest(connection, turns.c.session_id.in_(idle_ids))
    return _delete(connection, idle_ids, at) if are_all else delete_turns(connection, turns.c.id.in_(found), at)


def _oldest(connection: Connection, which: sa.ColumnElement[bool]) -> tuple[list[str], bool]:
    """Return the oldest turns that one transaction may delete, at least one, and whether they are all."""
    return _first(connection, _SIZES.where(which).order_by(turns.c.session_id, turns.c.seq))


def _first(connection: Connection, query: sa.Select[Any, int]) -> tuple[list[str], bool]:
    """Return the first turns of ``query`` as ``_oldest`` does."""
    ids: list[str] = []
    total = 0
    # The limit is for PostgreSQL, which may sort the turns, and would compute the sizes of all of them.
    with connection.execute(query.limit(_MOST + 1), execution_options={"yield_per": 10}) as found:
        for row in found:
            total += row.size
            if ids and (len(ids) >= _MOST or total > _MOST_BYTES):
                return ids, False
            ids.append(row.id)
    return ids, True


def is_erased(connection: Connection, owner: str, turn_id: str) -> bool:
    """Return whether a turn of the owner left a tombstone; the owner may be ``EVERYONE``."""
    found = sa.select(tombstones.c.turn_id).where(owned_by(tombstones, owner), tombstones.c.turn_id == turn_id)
    return connection.execute(found).first() is not None


def _idle_since(before: datetime) -> sa.ColumnElement[bool]:
    of_it = turns.c.session_id == sessions.c.id
    waits = sa.exists().where(unfinished, of_it)
    # A reply may come long after its message, and be delivered long after that.
    unsaid = turns.c.id.in_(sa.select(deliveries.c.turn_id).where(undelivered))
    answered = sa.exists().where(of_it, (turns.c.ended_at >= before) | unsaid)
    return (sessions.c.updated_at < before) & ~waits & ~answered


def delete_some(connection: Connection, which: sa.ColumnElement[bool], at: datetime) -> Deleted | None:
    """Delete as many of the turns as one transaction may; None, with nothing deleted, if it may delete all."""
    found, are_all = _first(connection, _SIZES.where(which))
    return None if are_all else delete_turns(connection, turns.c.id.in_(found), at)


def delete_turns(connection: Connection, which: sa.ColumnElement[bool], at: datetime) -> Deleted:
    """Delete ended turns with their related rows, and leave a tombstone for each."""
    ids = sa.select(turns.c.id).where(which)
    found = connection.execute(sa.select(turns.c.id, turns.c.session_id).where(which)).all()
    buried = sa.select(turns.c.id, turns.c.owner, sa.literal(at, tombstones.c.at.type)).where(which)
    connection.execute(sa.insert(tombstones).from_select(["turn_id", "owner", "at"], buried))
    # The key stays until it expires, so that the message is not run again; the digest of its content is
    # removed.
    cleared = connection.execute(sa.update(keys).where(keys.c.turn_id.in_(ids)).values(fingerprint=b""))
    message_index.drop(connection, which)
    for table in (approvals, calls, steps, history, deliveries, attachments, timings):
        connection.execute(sa.delete(table).where(table.c.turn_id.in_(ids)))
    connection.execute(sa.delete(turns).where(which))
    return Deleted(
        turns=[row.id for row in found], sessions={row.session_id for row in found}, keys=cleared.rowcount
    )


def _delete(connection: Connection, session_ids: Sequence[str], at: datetime) -> Deleted:
    deleted = delete_turns(connection, turns.c.session_id.in_(session_ids), at)
    connection.execute(sa.delete(sessions).where(sessions.c.id.in_(session_ids)))
    return deleted


def bytes_of(column: sa.Column[bytes]) -> sa.ColumnElement[int]:
    """Return the bytes of a column in the rows of a turn, such as its history."""
    sizes = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(column)), 0))
    return sizes.where(column.table.c.turn_id == turns.c.id).scalar_subquery()


#: The bytes of a turn's content and reply.
SAID = Octets(turns.c.content + sa.func.coalesce(turns.c.reply, ""))
#: The bytes of a turn with its related rows. Deliveries repeat the reply.
_SIZE = 2 * SAID + sum(
    map(bytes_of, (history.c.body, steps.c.body, calls.c.result, attachments.c.body, approvals.c.arguments))
)
_SIZES = sa.select(turns.c.id, _SIZE.label("size"))
