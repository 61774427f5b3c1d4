"""What can be done to a whole session: copy it, begin it anew, delete it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial

from torana.errors import Erased, NotFound, SessionBusy
from torana.messages import new_id, utc_now
from torana.sessions import Sessions
from torana.sessions.listing import Session, session_of
from torana.sessions.titles import title_of
from torana.store import deletion, forks
from torana.store import sessions as session_rows
from torana.store import turns as rows
from torana.store.audit import Act, on_a_users, recorded
from torana.store.database import Database
from torana.store.deletion import Deleted
from torana.store.forks import NewSession
from torana.turns.inbox import Turns

#: How often a session is cleared of turns before it is left to those who keep talking in it.
_ROUNDS = 10


class SessionChanges:
    """Changes sessions as a whole. The owner may be ``EVERYONE``: the session's own is then found out.

    Every method raises ``NotFound`` for a session that the owner has not, and ``Draining`` when the gateway
    stops.
    """

    def __init__(
        self,
        *,
        database: Database,
        sessions: Sessions,
        turns: Turns,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._turns = turns
        self._clock = clock

    async def fork(
        self,
        owner: str,
        session_id: str,
        *,
        turn_id: str | None,
        channel: str | None,
        act: Act | None = None,
    ) -> Session:
        """A new session that begins as a copy of this one, up to and with a turn or its last ended one.

        Without a channel it gets one of its own. An operator's act is written down, here as in the others,
        where the session is a user's own. Raises ``NotEnded``, ``ChannelTaken``, and ``NotFound`` also
        for a turn that is not of the session.
        """
        source = await self._session(owner, session_id)
        new = NewSession(
            session_id=new_id("ses"),
            channel=channel or new_id("ch"),
            at=self._clock(),
            turn_id=lambda: new_id("turn"),
            title_of=title_of,
        )
        work = partial(forks.fork, owner=source.owner, session_id=source.id, last=turn_id, new=new)
        noted = recorded(work, on_a_users(source.owner, act), "session.fork", source.id)
        return session_of(await self._database.run(noted))

    async def reset(self, owner: str, session_id: str, *, act: Act | None = None) -> Session:
        """Show the model nothing any more of what was said so far, as ``/new`` does; it stays written."""
        session = await self._session(owner, session_id)
        work = partial(session_rows.reset, owner=session.owner, session_id=session.id)
        row = await self._database.run(
            recorded(work, on_a_users(session.owner, act), "session.reset", session.id)
        )
        if row is None:
            raise _unknown(session_id)
        return session_of(row)

    async def delete(self, owner: str, session_id: str, *, act: Act | None = None) -> Deleted:
        """Cancel the session's turns, await their end, and delete all that was said.

        A message that is accepted before the session is gone is cancelled and goes with it; one that comes
        later begins a new session in the channel. Raises ``SessionBusy`` where messages come faster than they
        can be cancelled: then nothing is deleted.
        """
        session = await self._session(owner, session_id)
        delete = partial(deletion.delete, owner=session.owner, session_id=session.id, at=self._clock())
        work = recorded(delete, on_a_users(session.owner, act), "session.delete", session.id)
        for _ in range(_ROUNDS):
            await self._cancel_all(session)
            with suppress(SessionBusy):
                deleted = await self._database.run(work)
                if deleted is None:
                    raise _unknown(session_id)
                self._turns.forget(deleted.turns)
                return deleted
        raise SessionBusy("Messages keep coming in this session; delete it when they have stopped.")

    async def _session(self, owner: str, session_id: str) -> Session:
        self._turns.check_accepting()
        return await self._sessions.get(owner, session_id)

    async def _cancel_all(self, session: Session) -> None:
        """Cancel the turns that have not ended, the newest first, so that none is begun behind another."""
        work = partial(rows.of_channel, owner=session.owner, channel=session.channel)
        for turn in reversed(await self._database.run(work)):
            with suppress(NotFound, Erased):  # somebody else was quicker
                await self._turns.cancel(turn.owner, turn.id)


def _unknown(session_id: str) -> NotFound:
    return NotFound(f"there is no session {session_id!r}")
