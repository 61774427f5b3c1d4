"""Who may talk: an unknown person gets a code, and the operator, who hears it from them, lets them in."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from torana.errors import BadRequest, NotFound
from torana.messages import ID_LIMIT
from torana.store import senders
from torana.store.audit import Act
from torana.store.database import Connection, Database
from torana.store.senders import Asker, Paired, SenderState
from torana.tools.entry_faults import meant

#: How long a code is good for. One from so far in the future was made by a wrong clock, and has expired.
VALID = timedelta(hours=1)

#: Codes that a person gets until the operator says something; then nothing more is answered.
_CODES = 3

#: People who wait for the operator's word on one account; more are not answered.
_WAITING = 50

#: No letters and digits that look alike.
_ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
_LENGTH = 8


class Pairing:
    """The people who asked, and the operator's word on them."""

    def __init__(self, *, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    async def known(self, kind: str, sender: str) -> Paired | None:
        """What the operator said of a sender, or that they wait."""
        return await self._database.run(partial(senders.get, kind=kind, sender=sender))

    async def approved(self, kind: str, most: int) -> Sequence[str]:
        """The ids of those of that kind who may talk by the operator's word, the latest first."""
        return await self._database.run(partial(senders.approved, kind=kind, most=most))

    async def ask(self, asker: Asker) -> str | None:
        """A code for somebody unknown; None while they have one, got enough, or too many others wait."""
        code = "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
        work = partial(_asked, asker=asker, code=_digest(code), at=self._clock())
        return code if await self._database.run(work) else None

    async def approve(self, who: str, *, user: str | None = None, kinds: Collection[str], act: Act) -> Paired:
        """Let somebody talk, by their code or by ``kind:id``, as a user of that name or of their own.

        ``kinds`` are those that there are. Raises ``NotFound`` for a code that is wrong or too old, and for
        somebody of another kind of whom nothing is known.
        """
        return await self._decided(who, "approved", user, kinds, act)

    async def deny(self, who: str, *, kinds: Collection[str], act: Act) -> Paired:
        """Let somebody not talk, or not any more; they are not answered again. Raises as ``approve``."""
        return await self._decided(who, "denied", None, kinds, act)

    async def listed(self, *, state: SenderState | None = None, limit: int = 200) -> Sequence[Paired]:
        """Who asked, the newest first."""
        return await self._database.run(partial(senders.listed, state=state, limit=limit))

    async def _decided(
        self,
        who: str,
        state: Literal["approved", "denied"],
        user: str | None,
        kinds: Collection[str],
        act: Act,
    ) -> Paired:
        if user is not None and not 0 < len(user) <= ID_LIMIT:
            raise BadRequest(f"`user` must have 1 to {ID_LIMIT} characters.")
        work = partial(_decide, who=who, state=state, user=user, kinds=kinds, act=act)
        return await self._database.run(work)


def _asked(connection: Connection, asker: Asker, code: bytes, at: datetime) -> bool:
    known = senders.get(connection, asker.kind, asker.sender)
    if known is not None:
        expired = abs(at - known.asked_at) >= VALID
        if known.state != "pending" or not expired or known.codes >= _CODES:
            return False
    if senders.pending(connection, asker.account, at - VALID, at + VALID) >= _WAITING:
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
) -> Paired:
    kind, colon, sender = who.strip().partition(":")
    if colon and kind and sender:
        known = senders.get(connection, kind, sender)
        if known is None and kind not in kinds:
            raise NotFound(
                f"no connector is called {kind[:60]!r}; the settings have "
                f"{', '.join(sorted(kinds)) or 'none'}{meant(kind, kinds)}"
            )
        asker = known.asker if known else Asker(kind=kind, sender=sender, account="", place="", name="")
    else:
        found = senders.by_code(connection, _digest(who.strip().upper()), act.at - VALID, act.at + VALID)
        if found is None:
            raise NotFound(
                "there is no such code, or it has expired; the person gets a new one by writing again"
            )
        asker = found.asker
    named = (user or f"{asker.kind}:{asker.sender}") if state == "approved" else None
    return senders.decide(connection, asker, state, user=named, act=act)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
