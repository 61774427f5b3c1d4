"""Query the messages of a session: for the model (history) and for users (turns)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.store.engine.tables import history, sessions, turns
from torana.store.engine.tokenizer import TEXT_LIMIT

#: Maximum size of the history that is read for a turn. A language model with a window of a million tokens
#: receives about as much.
HISTORY_BYTES = 8_000_000
#: Minimum size of a body that is read separately.
_LARGE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The part of a session that a model may receive.

    ``history`` has the newest ended turns, newest first: seq, serialised messages and number of messages. Of a
    turn that is too long by itself, the messages are None. ``is_cut`` is true if the session may have older
    turns. ``shared`` is true if several users have sent messages. ``summary`` summarises the messages up to and
    including the seq ``summary_to``. ``opened_tools`` are the names of the tools that the session has opened,
    in order.
    """

    history: Sequence[tuple[int, bytes | None, int]]
    is_cut: bool
    shared: bool
    summary: str | None
    summary_to: int = 0
    opened_tools: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsummarised:
    """The history after the summary, and the session's state when it was read."""

    summary: str | None
    summary_to: int
    fresh_from: int
    #: Seq, number of messages and size in bytes of each row, oldest first.
    rows: Sequence[tuple[int, int, int]]


def newest(
    connection: Connection,
    owner: str,
    session_id: str,
    *,
    turns_limit: int,
    bytes_limit: int = HISTORY_BYTES,
) -> Newest:
    """Return the newest messages of a session; empty if the owner has no such session.

    Returns at most ``turns_limit`` turns of together at most ``bytes_limit``, and always the newest.
    """
    session = {"owner": owner, "session_id": session_id, "limit": turns_limit}
    rows = connection.execute(_NEWEST, session).all()
    if not rows:
        return Newest(history=(), is_cut=False, shared=False, summary=None)
    stored = [row for row in rows if row.seq is not None]
    read = stored[: _within(bytes_limit, [row.bytes for row in stored])]

    def body(row: Any) -> bytes | None:
        if row.bytes > bytes_limit:
            return None
        if row.body is not None:
            return row.body
        [(_, large)] = bodies(connection, owner, session_id, first=row.seq, last=row.seq)
        return large

    return Newest(
        history=[(row.seq, body(row), row.messages) for row in read],
        is_cut=len(read) < len(stored) or len(stored) == turns_limit,
        shared=bool(rows[0].shared),
        summary=rows[0].summary,
        opened_tools=rows[0].opened_tools.split(),
        summary_to=rows[0].summary_to,
    )


def exchange_at(connection: Connection, owner: str, session_id: str, *, seq: int) -> RowMapping:
    """Return the ``content``, ``reply`` and ``user`` of the turn of a history row."""
    return (
        connection.execute(
            sa.select(turns.c.content, turns.c.reply, turns.c.user)
            .join(history, history.c.turn_id == turns.c.id)
            .where(history.c.owner == owner, history.c.session_id == session_id, history.c.seq == seq)
        )
        .mappings()
        .one()
    )


def _within(room: int, sizes: Sequence[int]) -> int:
    """Return how many of the items fit into the room together; at least one."""
    taken = 0
    for number, size in enumerate(sizes):
        taken += size
        if taken > room:
            return max(number, 1)
    return len(sizes)


def oldest_unsummarised(
    connection: Connection, owner: str, session_id: str, *, limit: int
) -> Unsummarised | None:
    """Return the oldest ``limit`` visible history rows after the summary; None if there is no such session."""
    session = {"owner": owner, "session_id": session_id, "limit": limit}
    rows = connection.execute(_SIZES, session).all()
    if not rows:
        return None
    return Unsummarised(
        summary=rows[0].summary,
        summary_to=rows[0].summary_to,
        fresh_from=rows[0].fresh_from,
        rows=[(row.seq, row.messages, row.bytes) for row in rows if row.bytes is not None],
    )


def bodies(
    connection: Connection, owner: str, session_id: str, *, first: int, last: int
) -> list[tuple[int, bytes]]:
    """Return the seq and the serialised messages of each visible history row of a range, in order."""
    stretch = {"owner": owner, "session_id": session_id, "first": first, "last": last}
    return [(row.seq, row.body) for row in connection.execute(_BODIES, stretch)]


def keep_summary(
    connection: Connection, owner: str, session_id: str, *, known: Unsummarised, text: str, to: int
) -> bool:
    """Store the summary up to and including the seq ``to``; return False if the session has changed."""
    kept = connection.execute(
        sa.update(sessions)
        .where(
            sessions.c.owner == owner,
            sessions.c.id == session_id,
            sessions.c.summary_to == known.summary_to,
            sessions.c.fresh_from == known.fresh_from,
        )
        .values(summary=text, summary_to=to)
    )
    return kept.rowcount == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentTokens:
    """The input and output tokens of a session's turns, and of its summaries."""

    turns: int
    summaries: int


def spent_tokens(connection: Connection, session_id: str) -> SpentTokens:
    """Return the tokens that a session has used."""
    row = connection.execute(_SPENT, {"session_id": session_id}).one()
    return SpentTokens(turns=row.turns, summaries=row.summaries or 0)


def add_summary_tokens(connection: Connection, session_id: str, tokens: int) -> None:
    """Add the tokens of a summary to a session."""
    changed = {"summary_tokens": sessions.c.summary_tokens + tokens}
    connection.execute(sa.update(sessions).where(sessions.c.id == session_id).values(changed))


def history_size(connection: Connection, owner: str, session_id: str, *, turns_limit: int) -> int:
    """Return the maximum bytes of the serialised messages that ``newest`` returns."""
    session = {"owner": owner, "session_id": session_id, "limit": turns_limit}
    sizes = [size for size in connection.execute(_HISTORY_SIZES, session).scalars() if size is not None]
    return sum(sizes[: _within(HISTORY_BYTES, sizes)])


def exchanges(
    connection: Connection,
    owner: str,
    session_id: str,
    *,
    before: int,
    newest: bool,
    limit: int,
    skipped: int = 0,
) -> list[RowMapping]:
    """Return turns with a seq below ``before``: ``content``, ``reply``, ``user`` and ``created_at``.

    If ``newest`` is true, return the ``limit`` newest turns, newest first; else the ``limit`` oldest, oldest
    first. ``skipped`` is the offset. Turns from before the session's last reset are left out. Each text is cut
    off at the length that the full-text index covers.
    """
    content, reply = (
        sa.func.substr(text, 1, TEXT_LIMIT).label(text.name) for text in (turns.c.content, turns.c.reply)
    )
    order = turns.c.seq.desc() if newest else turns.c.seq.asc()
    return list(
        connection.execute(
            sa.select(content, reply, turns.c.user, turns.c.created_at)
            .join(sessions, sessions.c.id == turns.c.session_id)
            .where(turns.c.owner == owner, turns.c.session_id == session_id, turns.c.seq < before)
            .where(turns.c.seq >= sessions.c.fresh_seq, ~_is_hidden)
            .order_by(order)
            .limit(limit)
            .offset(skipped)
        ).mappings()
    )


#: The condition that a turn's history was hidden by a reset. It covers sessions that were reset before
#: ``fresh_seq`` existed.
_is_hidden = sa.exists().where(history.c.turn_id == turns.c.id, history.c.seq < sessions.c.fresh_from)
_of_session = sessions.c.id == sa.bindparam("session_id")
#: The condition that a history row's turn was accepted after the session was last reset.
_is_fresh = sa.exists().where(
    turns.c.id == history.c.turn_id,
    turns.c.seq >= sa.select(sessions.c.fresh_seq).where(_of_session).scalar_subquery(),
)
_visible = (
    (history.c.session_id == sessions.c.id)
    & (history.c.owner == sessions.c.owner)
    & (history.c.seq >= sessions.c.fresh_from)
    & _is_fresh
)
#: An outer join: a session without history gives one row. A large body is not read.
_NEWEST = (
    sa.select(
        sessions.c.shared,
        sessions.c.summary,
        sessions.c.opened_tools,
        sessions.c.summary_to,
        history.c.seq,
        sa.func.length(history.c.body).label("bytes"),
        sa.case((sa.func.length(history.c.body) <= _LARGE, history.c.body)).label("body"),
        history.c.messages,
    )
    .select_from(sessions.outerjoin(history, _visible))
    .where(sessions.c.owner == sa.bindparam("owner"), _of_session)
    .order_by(history.c.seq.desc())
    .limit(sa.bindparam("limit"))
)
_SIZES = (
    sa.select(
        sessions.c.summary,
        sessions.c.summary_to,
        sessions.c.fresh_from,
        history.c.seq,
        history.c.messages,
        sa.func.length(history.c.body).label("bytes"),
    )
    .select_from(sessions.outerjoin(history, _visible & (history.c.seq > sessions.c.summary_to)))
    .where(sessions.c.owner == sa.bindparam("owner"), _of_session)
    .order_by(history.c.seq)
    .limit(sa.bindparam("limit"))
)
_BODIES = (
    sa.select(history.c.seq, history.c.body)
    .where(
        history.c.owner == sa.bindparam("owner"),
        history.c.session_id == sa.bindparam("session_id"),
        history.c.seq.between(sa.bindparam("first"), sa.bindparam("last")),
        _is_fresh,
    )
    .order_by(history.c.seq)
)


_SPENT = sa.select(
    sa.select(sa.func.coalesce(sa.func.sum(turns.c.input_tokens + turns.c.output_tokens), 0))
    .where(turns.c.session_id == sa.bindparam("session_id"))
    .scalar_subquery()
    .label("turns"),
    sa.select(sessions.c.summary_tokens).where(_of_session).scalar_subquery().label("summaries"),
)
_HISTORY_SIZES = _NEWEST.with_only_columns(sa.func.length(history.c.body), maintain_column_froms=True)
