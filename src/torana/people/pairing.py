"""Pairing: an unknown sender gets a code, shows it to the operator, and the operator approves it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from torana.errors import BadRequest, NotFound
from torana.messages import ID_LIMIT
from torana.store.engine.database import Connection, Database
from torana.store.rows import schedules, senders
from torana.store.rows.audit import Act
from torana.store.rows.senders import Asker, SenderRecord
from torana.tools.validation_messages import suggest_name

#: The validity of a code. A code that is valid for longer was created when the clock was wrong, and counts as
#: expired.
VALID = timedelta(hours=1)

#: The reason that schedules get when a denial pauses them.
_DENIED = "paused: its sender was denied"

#: The number of codes that a sender gets before the operator decides; then the sender gets no reply.
_CODES = 3

#: The number of pending senders for one account; further senders get no reply.
_WAITING = 50

#: The characters of codes, without letters and digits that look alike.
_ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
_LENGTH = 8


class Pairing:
    """The pairing requests of senders, and the operator's decisions."""

    def __init__(self, *, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    async def find_sender(self, kind: str, sender: str) -> SenderRecord | None:
        """Return the operator's decision on a sender, or the pending request."""
        return await self._database.run(partial(senders.get, kind=kind, sender=sender))

    async def approved_ids(self, kind: str, most: int) -> Sequence[str]:
        """Return the ids of the approved senders of that kind, the latest first."""
        return await self._database.run(partial(senders.approved_ids, kind=kind, most=most))

    async def ask(self, asker: Asker, *, notify: Callable[[Connection, str], None] | None = None) -> str | None:
        """Create a code for an unknown sender. Return None while a code is valid, or if a limit is reached.

        ``notify`` stores the notice with the code in the same transaction: only a digest of the code is kept.
        """
        code = "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
        at = self._clock()

        def work(connection: Connection) -> bool:
            is_new = _record_request(connection, asker, code=_digest(code), at=at)
            if is_new and notify is not None:
                notify(connection, code)
            return is_new

        return code if await self._database.run(work) else None

    async def approve(
        self, who: str, *, user: str | None = None, kinds: Collection[str], act: Act
    ) -> SenderRecord:
        """Approve a sender, by code or by ``kind:id``. The default of ``user`` is ``kind:id``.

        ``kinds`` are the kinds of connectors in the settings. Raises ``NotFound`` for a wrong or expired code,
        and for an unknown sender of another kind.
        """
        if user is not None and not 0 < len(user) <= ID_LIMIT:
            raise BadRequest(f"`user` must have 1 to {ID_LIMIT} characters.")
        work = partial(_decide, who=who, state="approved", user=user, kinds=kinds, act=act)
        return await self._database.run(work)

    async def deny(self, who: str, *, kinds: Collection[str], act: Act) -> SenderRecord:
        """Deny a sender, or revoke an approval. The sender gets no further reply. Raises the errors of
        ``approve``.

        Schedules of the sender's user that answer in chats are paused: they would go on talking to the sender.
        """
        work = partial(_decide, who=who, state="denied", user=None, kinds=kinds, act=act)
        return await self._database.run(work)

    async def list_senders(self) -> Sequence[SenderRecord]:
        """Return the senders, the newest first, at most 200."""
        return await self._database.run(partial(senders.list_senders, limit=200))


def _record_request(connection: Connection, asker: Asker, code: bytes, at: datetime) -> bool:
    known = senders.get(connection, asker.kind, asker.sender)
    if known is not None:
        expired = abs(at - known.asked_at) >= VALID
        if known.state != "pending" or not expired or known.codes >= _CODES:
            return False
    if senders.count_pending(connection, asker.account, at - VALID, at + VALID) >= _WAITING:
        return False
    senders.ask(connection, asker, code=code, codes=(known.codes if known else 0) + 1, at=at)
    return True


def _decide(
    connection: Connection,
    who: str,
    state: Literal["approved", "denied"],
    user: str | None,
    kinds: Collection[str],
    act: Act,
) -> SenderRecord:
    kind, colon, sender = who.strip().partition(":")
    if colon and kind and sender:
        known = senders.get(connection, kind, sender)
        if known is None and kind not in kinds:
            raise NotFound(
                f"there is no connector {kind[:60]!r}; the settings have "
                f"{', '.join(sorted(kinds)) or 'none'}{suggest_name(kind, kinds)}"
            )
        asker = known.asker if known else Asker(kind=kind, sender=sender, account="", place="", name="")
    else:
        known = found = senders.by_code(
            connection, _digest(who.strip().upper()), act.at - VALID, act.at + VALID
        )
        if found is None:
            raise NotFound(
                "the code is unknown or has expired; the sender gets a new code with the next message"
            )
        asker = found.asker
    own = asker.key
    if state == "denied":
        schedules.pause_in_chats(connection, (known and known.user) or own, reason=_DENIED)
    named = (user or own) if state == "approved" else None
    return senders.decide(connection, asker, state, user=named, act=act)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
