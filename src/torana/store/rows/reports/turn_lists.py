"""Lists of turns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.messages import Turn, TurnState
from torana.store.engine.tables import equal_to, newest_first, owned_by, turns
from torana.store.rows.turns import turn_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFilter:
    """The turns of a list. None selects all; ``since`` is inclusive, ``until`` is not."""

    state: TurnState | None = None
    session_id: str | None = None
    channel: str | None = None
    user: str | None = None
    #: The account of the connector that received the message.
    account: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def newest(
    connection: Connection,
    owner: str,
    which: TurnFilter,
    *,
    limit: int,
    before: tuple[datetime, str] | None = None,
    excerpt: int | None = None,
) -> list[Turn]:
    """Return the owner's turns, the newest first; ``owner`` may be ``EVERYONE``.

    With ``excerpt``, the turns have this number of characters of their messages, and no replies.
    """
    columns = list(turns.c) if excerpt is None else _short_columns(excerpt)
    query = sa.select(*columns).where(owned_by(turns, owner), *_conditions(which))
    page = newest_first(query, turns.c.created_at, before=before, limit=limit)
    return [turn_of(row) for row in connection.execute(page).mappings()]


def _short_columns(excerpt: int) -> list[sa.ColumnElement[Any]]:
    short = {"content": sa.func.substr(turns.c.content, 1, excerpt), "reply": sa.null()}
    return [short[column.name].label(column.name) if column.name in short else column for column in turns.c]


def _conditions(which: TurnFilter) -> list[sa.ColumnElement[bool]]:
    conditions = equal_to(
        {
            turns.c.state: which.state,
            turns.c.session_id: which.session_id,
            turns.c.channel: which.channel,
            turns.c.user: which.user,
            turns.c.account: which.account,
        }
    )
    if which.since is not None:
        conditions.append(turns.c.created_at >= which.since)
    if which.until is not None:
        conditions.append(turns.c.created_at < which.until)
    return conditions
