"""Read the stored data of a user."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import owner_of
from torana.store.engine.tables import (
    approvals,
    attachments,
    memories,
    schedules,
    senders,
    sessions,
    tokens,
    turns,
    usage,
    workspace_files,
)
from torana.store.rows.schedules import held_by
from torana.store.rows.senders import of_user
from torana.store.rows.workspace_files import owner_key

#: Rows in memory at once.
_PAGE = 100


class UserData:
    """A user's rows in one transaction, read row by row."""

    def __init__(self, connection: Connection, user: str) -> None:
        self._connection = connection
        self._user = user

    def turns(self) -> Iterator[RowMapping]:
        """Return the user's turns by session and order; in shared sessions only the user's own."""
        query = sa.select(turns).where(self._is_own())
        return self._rows(query.order_by(turns.c.session_id, turns.c.seq))

    def approvals(self) -> Iterator[RowMapping]:
        """Return the approvals of the user's turns, oldest first."""
        asked = sa.select(approvals).join(turns, turns.c.id == approvals.c.turn_id).where(self._is_own())
        return self._rows(asked.order_by(approvals.c.created_at, approvals.c.id))

    def attachments(self) -> Iterator[RowMapping]:
        """Return the stored files of the user's messages."""
        files = sa.select(attachments).join(turns, turns.c.id == attachments.c.turn_id).where(self._is_own())
        in_order = files.order_by(turns.c.session_id, turns.c.seq, attachments.c.number)
        return self._rows(in_order, at_once=1)  # each may have some megabytes

    def workspace(self) -> Iterator[RowMapping]:
        """Return the files that tools have stored for the user, by name."""
        own = sa.select(workspace_files).where(workspace_files.c.owner == owner_key(self._user))
        return self._rows(own.order_by(workspace_files.c.name), at_once=1)  # each may have some megabytes

    def memories(self) -> Iterator[RowMapping]:
        """Return all memories about the user, including superseded ones, oldest first."""
        return self._rows(
            sa.select(memories)
            .where(memories.c.owner == owner_of(self._user))
            .order_by(memories.c.created_at, memories.c.id)
        )

    def schedules(self) -> Iterator[RowMapping]:
        """Return the user's schedules, oldest first, without the digests of their tool calls."""
        shown = [column for column in schedules.c if column.name != "made_by"]
        held = sa.select(*shown).where(held_by(self._user))
        return self._rows(held.order_by(schedules.c.created_at, schedules.c.id))

    def spending(self) -> Iterator[RowMapping]:
        """Return the user's usage by period."""
        account = usage.c.account == f"user:{self._user}"
        return self._rows(sa.select(usage).where(account).order_by(usage.c.period))

    def credentials(self) -> Iterator[RowMapping]:
        """Return the user's tokens, oldest first, without digests of their secrets."""
        shown = [column for column in tokens.c if column.name != "digest"]
        bound = sa.select(*shown).where(tokens.c.user == self._user)
        return self._rows(bound.order_by(tokens.c.created_at, tokens.c.id))

    def accounts(self) -> Iterator[RowMapping]:
        """Return the user's paired accounts on chat platforms."""
        shown = [column for column in senders.c if column.name != "code"]
        return self._rows(
            sa.select(*shown).where(of_user(self._user)).order_by(senders.c.kind, senders.c.sender)
        )

    def _is_own(self) -> sa.ColumnElement[bool]:
        own = sa.select(sessions.c.id).where(sessions.c.owner == owner_of(self._user))
        return (turns.c.user == self._user) | turns.c.session_id.in_(own)

    def _rows(self, query: sa.Select[*tuple[object, ...]], *, at_once: int = _PAGE) -> Iterator[RowMapping]:
        with self._connection.execute(query, execution_options={"yield_per": at_once}) as found:
            yield from found.mappings()
