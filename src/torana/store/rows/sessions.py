"""Rows of sessions. Every function takes the owner, which may be ``EVERYONE`` for reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.paging import read_until_full
from torana.store.engine.tables import equal_to, history, newest_first, owned_by, sessions, turns


def list_sessions(
    connection: Connection,
    owner: str,
    *,
    channel: str | None,
    user: str | None,
    archived: bool | None = None,
    before: tuple[datetime, str] | None,
    limit: int,
) -> list[RowMapping]:
    """Return the owner's sessions, most recently used first, optionally of a channel or with turns of a user.

    ``archived`` None selects archived and other sessions.
    """
    query = sa.select(sessions).where(owned_by(sessions, owner), *equal_to({sessions.c.channel: channel}))
    if user is not None:
        spoke = sa.exists().where(turns.c.session_id == sessions.c.id, turns.c.user == user)
        query = query.where(spoke)
    if archived is not None:
        is_archived = sessions.c.archived_at.is_not(None)
        query = query.where(is_archived if archived else ~is_archived)
    page = newest_first(query, sessions.c.updated_at, before=before, limit=limit)
    return list(connection.execute(page).mappings())


def get(connection: Connection, owner: str, session_id: str) -> RowMapping | None:
    """Return the owner's session, or None."""
    query = sa.select(sessions).where(owned_by(sessions, owner), sessions.c.id == session_id)
    return connection.execute(query).mappings().first()


def list_turns(
    connection: Connection, owner: str, session_id: str, *, from_seq: int, limit: int, newest: bool = False
) -> list[RowMapping]:
    """Return the session's turns from a seq on, in order; fewer if their texts are long.

    ``newest`` goes from the seq backwards to older turns.
    """
    place = turns.c.seq
    query = (
        sa.select(turns)
        .where(owned_by(turns, owner), turns.c.session_id == session_id)
        .where(place <= from_seq if newest else place >= from_seq)
        .order_by(place.desc() if newest else place)
        .limit(limit)
    )

    def size(row: RowMapping) -> int:
        # The page may show nothing of its first turn.
        return len(row["content"]) + len(row["reply"] or "") if row["seq"] != from_seq else 0

    return list(read_until_full(connection.execute(query).mappings(), size))


def nth_newest(connection: Connection, owner: str, channel: str, number: int) -> datetime | None:
    """Return when the ``number``-th newest turn of a channel was accepted; None if there are fewer."""
    session = sa.select(sessions.c.id).where(sessions.c.owner == owner, sessions.c.channel == channel)
    newest = (
        sa.select(turns.c.created_at)
        .where(turns.c.session_id == session.scalar_subquery())
        .order_by(turns.c.seq.desc())
        .offset(number - 1)
        .limit(1)
    )
    return connection.execute(newest).scalar()


def change(
    connection: Connection, owner: str, session_id: str, values: Mapping[str, object]
) -> RowMapping | None:
    """Set columns of a session: ``title`` and ``archived_at``. Return the session, or None if there is none."""
    if values:
        is_it = owned_by(sessions, owner) & (sessions.c.id == session_id)
        connection.execute(sa.update(sessions).where(is_it).values(values))
    return get(connection, owner, session_id)


def start_afresh(connection: Connection, owner: str, channel: str) -> None:
    """Hide the earlier messages of a channel, queued ones and their answers included, from the model."""
    connection.execute(_RESET.where(sessions.c.owner == owner, sessions.c.channel == channel))


def reset(connection: Connection, owner: str, session_id: str) -> RowMapping | None:
    """Do ``start_afresh`` for a session by its id; return the session, or None if there is none."""
    connection.execute(_RESET.where(sessions.c.owner == owner, sessions.c.id == session_id))
    return get(connection, owner, session_id)


def keep_opened_tools(connection: Connection, session_id: str, names: Sequence[str]) -> None:
    """Store the names of the tools that a session has opened, in order."""
    opened = sa.update(sessions).where(sessions.c.id == session_id).values(opened_tools=" ".join(names))
    connection.execute(opened)


_NEWEST = sa.select(sa.func.coalesce(sa.func.max(history.c.seq), 0)).where(
    history.c.session_id == sessions.c.id
)
_RESET = sa.update(sessions).values(
    fresh_from=_NEWEST.scalar_subquery() + 1,
    fresh_seq=sessions.c.next_seq,
    summary=None,
    summary_to=0,
    opened_tools="",
)
