"""Fork a session: create a session that begins as a copy of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.errors import ChannelTaken, Conflict, NotEnded, NotFound
from torana.messages import Turn
from torana.store.engine.tables import history, sessions, turns
from torana.store.rows import sessions as session_rows
from torana.store.rows.session_deletion import SAID, bytes_of

#: Limits on the copied turns and their bytes: they bound the time of the transaction and the growth of the
#: file.
_MOST = 1_000
_MOST_BYTES = 4_000_000

_ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """The ids and the time of a new session."""

    session_id: str
    channel: str
    at: datetime
    #: Creates the id of a copied turn.
    turn_id: Callable[[], str]
    #: Returns the title for a message.
    title_of: Callable[[str], str | None]


def fork(
    connection: Connection,
    owner: str,
    session_id: str,
    *,
    last: str | None,
    new: NewSession,
    most: int = _MOST,
    most_bytes: int = _MOST_BYTES,
) -> RowMapping:
    """Copy the owner's session up to and including ``last`` (default: its last ended turn); return the copy.

    Ended turns and their history are copied with new ids and no usage. The title is copied only if its message
    is copied, so that erasing the message erases the title. Hidden history stays hidden unless it contains the
    named turn. Journals, idempotency keys, deliveries, files and addresses are not copied. Raises ``NotFound``,
    ``NotEnded``, ``ChannelTaken``, or ``Conflict`` for more than ``most`` turns or ``most_bytes`` of contents,
    replies and history.
    """
    source = session_rows.get(connection, owner, session_id)
    if source is None:
        raise NotFound(f"there is no session {session_id!r}")
    if connection.execute(_SESSION_OF, {"owner": owner, "channel": new.channel}).first() is not None:
        raise ChannelTaken
    last_seq = _last_seq(connection, session_id, last)
    is_copied = (turns.c.session_id == session_id) & (turns.c.seq <= last_seq) & turns.c.state.in_(_ENDED)
    copies = {old: new.turn_id() for old in _ids(connection, is_copied, most, most_bytes)}
    places = _places(connection, session_id)
    kept = [place for turn_id, place in places.items() if turn_id in copies]
    left = set(places.values()) - set(kept)
    values = _history_start(source, kept=kept, left=left, last_seq=last_seq, named=last is not None)
    title = source["title"] if _gave_title(connection, source, is_copied, new.title_of) else None
    connection.execute(_INSERT_SESSION, _session(source, new, last_seq) | values | {"title": title})
    if copies:
        _copy(connection, source, new, copies, places)
    return session_rows.get(connection, owner, new.session_id) or source


def is_copied(connection: Connection, turn: Turn) -> bool:
    """Return whether the turn is a copy in a fork: it is older than its session."""
    query = sa.select(sessions.c.created_at).where(sessions.c.id == turn.session_id)
    return connection.execute(query).scalar_one() > turn.created_at


def _last_seq(connection: Connection, session_id: str, last: str | None) -> int:
    """Return the seq of the last turn to copy; 0 if none has ended."""
    if last is None:
        ended = turns.c.state.in_(_ENDED)
        query = sa.select(sa.func.coalesce(sa.func.max(turns.c.seq), 0))
        return int(connection.execute(query.where(turns.c.session_id == session_id, ended)).scalar_one())
    named = sa.select(turns.c.seq, turns.c.state).where(turns.c.session_id == session_id, turns.c.id == last)
    row = connection.execute(named).first()
    if row is None:
        raise NotFound(f"there is no turn {last!r} in the session {session_id!r}")
    if row.state not in _ENDED:
        raise NotEnded
    return int(row.seq)


def _ids(connection: Connection, is_copied: sa.ColumnElement[bool], most: int, most_bytes: int) -> list[str]:
    """Return the ids of the turns to copy, in order. Stops reading at the limits."""
    query = sa.select(turns.c.id, _SIZE.label("size")).where(is_copied).order_by(turns.c.seq)
    ids: list[str] = []
    total = 0
    with connection.execute(query, execution_options={"yield_per": 10}) as found:
        for row in found:
            ids.append(row.id)
            total += row.size
            if len(ids) > most or total > most_bytes:
                raise Conflict(
                    f"More than {most:,} turns or {most_bytes:,} bytes cannot be copied; name an earlier turn."
                )
    return ids


def _gave_title(
    connection: Connection,
    source: RowMapping,
    is_copied: sa.ColumnElement[bool],
    title_of: Callable[[str], str | None],
) -> bool:
    """Return whether the title comes from a copied message; other messages must not leak into a fork."""
    contents = sa.select(turns.c.content).where(is_copied).order_by(turns.c.seq)
    with connection.execute(contents, execution_options={"yield_per": 10}) as rows:
        return any(title_of(row.content) == source["title"] for row in rows)


def _places(connection: Connection, session_id: str) -> dict[str, int]:
    """Return the seq of the history row of each turn that has one."""
    found = sa.select(history.c.turn_id, history.c.seq).where(history.c.session_id == session_id)
    return {row.turn_id: row.seq for row in connection.execute(found)}


def _history_start(
    source: RowMapping, *, kept: list[int], left: set[int], last_seq: int, named: bool
) -> dict[str, Any]:
    """Return where the visible history starts, and the summary if it covers only copied turns."""
    is_hidden = max(kept, default=0) < source["fresh_from"] or last_seq < source["fresh_seq"]
    is_before = named and is_hidden
    is_whole = not is_before and all(place > source["summary_to"] for place in left)
    return {
        "fresh_from": 0 if is_before else source["fresh_from"],
        # The copy reuses the numbers of turns that are not copied.
        "fresh_seq": 0 if is_before else min(source["fresh_seq"], last_seq + 1),
        "summary": source["summary"] if is_whole else None,
        "summary_to": source["summary_to"] if is_whole else 0,
    }


def _session(source: RowMapping, new: NewSession, last_seq: int) -> dict[str, Any]:
    return {
        "id": new.session_id,
        "owner": source["owner"],
        "channel": new.channel,
        "next_seq": last_seq + 1,
        # A shared session stays shared, whichever users' turns were copied.
        "speaker": source["speaker"],
        "shared": source["shared"],
        "opened_tools": source["opened_tools"],
        "created_at": new.at,
        "updated_at": new.at,
    }


def _copy(
    connection: Connection,
    source: RowMapping,
    new: NewSession,
    copies: Mapping[str, str],
    places: Mapping[str, int],
) -> None:
    place = {"session_id": new.session_id, "channel": new.channel}
    connection.execute(_COPY_TURN, [place | {"old": old, "new": copy} for old, copy in copies.items()])
    merged = sa.select(turns.c.id, turns.c.merged_into).where(
        turns.c.session_id == new.session_id, turns.c.merged_into.is_not(None)
    )
    for row in connection.execute(merged).all():
        connection.execute(_MERGE, {"key": row.id, "merged_into": copies.get(row.merged_into)})
    entries = [
        {"session_id": new.session_id, "new": copy, "source": source["id"], "place": places[old]}
        for old, copy in copies.items()
        if old in places
    ]
    if entries:
        connection.execute(_COPY_HISTORY, entries)


_SESSION_OF = sa.select(sessions.c.id).where(
    sessions.c.owner == sa.bindparam("owner"), sessions.c.channel == sa.bindparam("channel")
)
_INSERT_SESSION = sa.insert(sessions)

#: The bytes of a turn's content, reply and history.
_SIZE = SAID + bytes_of(history.c.body)
#: The columns that differ in a copied turn.
_OF_THE_COPY: dict[str, sa.ColumnElement[Any]] = {
    "id": sa.bindparam("new", type_=sa.Text),
    "session_id": sa.bindparam("session_id", type_=sa.Text),
    "channel": sa.bindparam("channel", type_=sa.Text),
    "input_tokens": sa.literal(0),
    "output_tokens": sa.literal(0),
    "cost_usd": sa.literal(0.0),
    "instruction_tokens": sa.literal(0),
    "tool_tokens": sa.literal(0),
    "history_tokens": sa.literal(0),
    "merged_step": sa.null(),
    "reserved_tokens": sa.literal(0),
    "reserved_microusd": sa.literal(0),
    "reserved_on": sa.null(),
    "open_requests": sa.literal(0),
    "account": sa.null(),
    "message": sa.null(),
    "place": sa.null(),
    "files": sa.literal(0),
    "words_row": sa.null(),
}
_COPY_TURN = sa.insert(turns).from_select(
    turns.c.keys(),
    sa.select(*(_OF_THE_COPY.get(column.name, column) for column in turns.c)).where(
        turns.c.id == sa.bindparam("old")
    ),
)
_MERGE = sa.update(turns).where(turns.c.id == sa.bindparam("key"))
_COPY_HISTORY = sa.insert(history).from_select(
    ["session_id", "seq", "owner", "turn_id", "messages", "body"],
    sa.select(
        sa.bindparam("session_id", type_=sa.Text),
        history.c.seq,
        history.c.owner,
        sa.bindparam("new", type_=sa.Text),
        history.c.messages,
        history.c.body,
    ).where(history.c.session_id == sa.bindparam("source"), history.c.seq == sa.bindparam("place")),
)
