"""Change whole sessions: title, archive, fork, reset and delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any

from torana.errors import Erased, NotFound, SessionBusy
from torana.messages import new_id, utc_now
from torana.sessions import Sessions
from torana.sessions.listing import Session, session_of
from torana.sessions.titles import title_of
from torana.store.engine.database import Connection, Database
from torana.store.rows import session_deletion, session_forks
from torana.store.rows import sessions as session_rows
from torana.store.rows import turns as rows
from torana.store.rows.audit import Act, auditable_act, record, with_record
from torana.store.rows.session_deletion import Deleted
from torana.store.rows.session_forks import NewSession
from torana.turns.inbox import Turns

#: Attempts to cancel the turns of a session before a deletion gives up.
_ROUNDS = 10


class Unchanged(Enum):
    """Marks a value that stays as it is, for fields in which None is a value."""

    token = 0


UNCHANGED = Unchanged.token


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionValues:
    """The new values of a session. ``archived`` None leaves it as it is; ``title`` None removes the title."""

    title: str | Unchanged | None = UNCHANGED
    archived: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanges:
    """Changes sessions as a whole. The owner may be ``EVERYONE``: then the session's owner is looked up.

    An ``act`` is recorded in the audit record if the session belongs to a user. Every method raises
    ``NotFound`` for a session that the owner does not have, and ``Draining`` when the gateway stops.
    """

    database: Database
    sessions: Sessions
    turns: Turns
    clock: Callable[[], datetime] = utc_now

    async def fork(
        self,
        owner: str,
        session_id: str,
        *,
        turn_id: str | None,
        channel: str | None,
        act: Act | None = None,
    ) -> Session:
        """Copy a session into a new session, up to and including a turn. The default is the last ended turn.

        Without ``channel``, the new session gets a new channel. Raises ``NotEnded``, ``ChannelTaken``, and
        ``NotFound`` for a turn that is not in the session.
        """
        source = await self._session(owner, session_id)
        new = NewSession(
            session_id=new_id("ses"),
            channel=channel or new_id("ch"),
            at=self.clock(),
            turn_id=lambda: new_id("turn"),
            title_of=title_of,
        )
        work = partial(session_forks.fork, owner=source.owner, session_id=source.id, last=turn_id, new=new)
        noted = with_record(work, auditable_act(source.owner, act), "session.fork", source.id)
        return session_of(await self.database.run(noted))

    async def change(
        self, owner: str, session_id: str, *, values: SessionValues, act: Act | None = None
    ) -> Session:
        """Set the title of a session, and archive it or end the archiving."""
        session = await self._session(owner, session_id)
        columns: dict[str, object] = {}
        if values.title is not UNCHANGED:
            columns["title"] = values.title
        if values.archived is not None and values.archived != (session.archived_at is not None):
            columns["archived_at"] = self.clock() if values.archived else None
        work = partial(session_rows.change, owner=session.owner, session_id=session.id, values=columns)
        noted = with_record(work, auditable_act(session.owner, act), "session.change", session.id)
        return _require_session(await self.database.run(noted), session_id)

    async def reset(self, owner: str, session_id: str, *, act: Act | None = None) -> Session:
        """Hide all earlier messages from the model, as ``/new`` does; they stay stored."""
        session = await self._session(owner, session_id)
        work = partial(session_rows.reset, owner=session.owner, session_id=session.id)
        noted = with_record(work, auditable_act(session.owner, act), "session.reset", session.id)
        return _require_session(await self.database.run(noted), session_id)

    async def delete(self, owner: str, session_id: str, *, act: Act | None = None) -> Deleted:
        """Cancel the session's turns, wait for their end, and delete the session.

        A message that is accepted before the deletion is cancelled and deleted; a later message begins a new
        session. The oldest turns of a long session are deleted before, in several transactions. Raises
        ``SessionBusy`` if messages arrive faster than they can be cancelled.
        """
        session = await self._session(owner, session_id)
        delete = partial(session_deletion.delete, owner=session.owner, session_id=session.id, at=self.clock())
        noted = auditable_act(session.owner, act)
        early: list[Deleted] = []
        for _ in range(_ROUNDS):
            await self._cancel_all(session)
            with suppress(SessionBusy):
                await self._delete_oldest(session, early, noted)
                work = with_record(delete, None if early else noted, "session.delete", session.id)
                deleted = await self.database.run(work)
                if deleted is None:
                    raise _unknown(session_id)
                self.turns.reader.forget(deleted.turns)
                return _sum([*early, deleted])
        raise SessionBusy("Messages of the session keep arriving. Delete the session when they have stopped.")

    async def _delete_oldest(self, session: Session, deleted: list[Deleted], act: Act | None) -> None:
        """Delete turns until a transaction can delete the others, and add what is deleted to ``deleted``.

        The first deletion is recorded.
        """

        def work(connection: Connection) -> Deleted | None:
            found = session_deletion.delete_oldest(connection, session.id, at=self.clock())
            if found is not None and act is not None and not deleted:
                record(connection, act, "session.delete", session.id)
            return found

        while (found := await self.database.run(work)) is not None:
            self.turns.reader.forget(found.turns)
            deleted.append(found)

    async def _session(self, owner: str, session_id: str) -> Session:
        self.turns.check_accepting()
        return await self.sessions.get(owner, session_id)

    async def _cancel_all(self, session: Session) -> None:
        """Cancel the unfinished turns, newest first, so that no turn starts when an earlier turn ends."""
        work = partial(rows.unfinished_in_channel, owner=session.owner, channel=session.channel)
        for turn in reversed(await self.database.run(work)):
            with suppress(NotFound, Erased):  # deleted in the meantime
                await self.turns.cancel(turn.owner, turn.id)


def _sum(deleted: Sequence[Deleted]) -> Deleted:
    return Deleted(
        turns=[turn for one in deleted for turn in one.turns],
        sessions={session for one in deleted for session in one.sessions},
        keys=sum(one.keys for one in deleted),
    )


def _require_session(row: Mapping[Any, Any] | None, session_id: str) -> Session:
    if row is None:
        raise _unknown(session_id)
    return session_of(row)


def _unknown(session_id: str) -> NotFound:
    return NotFound(f"there is no session {session_id!r}")
