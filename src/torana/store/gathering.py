"""What is kept of a user, for reading."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.messages import owner_of
from torana.store.schedules import held_by
from torana.store.senders import of_user
from torana.store.tables import attachments, memories, schedules, senders, sessions, tokens, turns, usage

#: Rows that are in memory at once.
_PAGE = 100


class Holdings:
    """A user's rows, as they are in one transaction; each kind is read row by row."""

    def __init__(self, connection: Connection, user: str) -> None:
        self._connection = connection
        self._user = user

    def said(self) -> Iterator[RowMapping]:
        """The user's turns, session by session, in their order; of rooms nobody else's."""
        said = sa.select(turns).where(self._is_own())
        return self._rows(said.order_by(turns.c.session_id, turns.c.seq))

    def sent(self) -> Iterator[RowMapping]:
        """The files that came with the user's messages and are kept."""
        files = sa.select(attachments).join(turns, turns.c.id == attachments.c.turn_id).where(self._is_own())
        in_order = files.order_by(turns.c.session_id, turns.c.seq, attachments.c.number)
        return self._rows(in_order, at_once=1)  # each may be some megabytes

    def remembered(self) -> Iterator[RowMapping]:
        """All memories about the user, superseded ones too, the oldest first."""
        return self._rows(
            sa.select(memories)
            .where(memories.c.owner == owner_of(self._user))
            .order_by(memories.c.created_at, memories.c.id)
        )

    def scheduled(self) -> Iterator[RowMapping]:
        """The user's schedules, the oldest first; nothing of the calls that made them."""
        shown = [column for column in schedules.c if column.name != "made_by"]
        held = sa.select(*shown).where(held_by(self._user))
        return self._rows(held.order_by(schedules.c.created_at, schedules.c.id))

    def spent(self) -> Iterator[RowMapping]:
        """What the user spent, by period."""
        account = usage.c.account == f"user:{self._user}"
        return self._rows(sa.select(usage).where(account).order_by(usage.c.period))

    def credentials(self) -> Iterator[RowMapping]:
        """The tokens that are bound to the user, the oldest first; nothing of their secrets."""
        shown = [column for column in tokens.c if column.name != "digest"]
        bound = sa.select(*shown).where(tokens.c.user == self._user)
        return self._rows(bound.order_by(tokens.c.created_at, tokens.c.id))

    def accounts(self) -> Iterator[RowMapping]:
        """The user's accounts on chat platforms, as far as they were paired."""
        shown = [column for column in senders.c if column.name != "code"]
        return self._rows(
            sa.select(*shown).where(of_user(self._user)).order_by(senders.c.kind, senders.c.sender)
        )

    def _is_own(self) -> sa.ColumnElement[bool]:
        """The condition for the user's turns."""
        own = sa.select(sessions.c.id).where(sessions.c.owner == owner_of(self._user))
        return (turns.c.user == self._user) | turns.c.session_id.in_(own)

    def _rows(self, query: sa.Select[*tuple[object, ...]], *, at_once: int = _PAGE) -> Iterator[RowMapping]:
        return iter(self._connection.execute(query, execution_options={"yield_per": at_once}).mappings())
