"""The way in: who may talk, how much, and what becomes of a message that a connector heard."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from torana.connectors.base import Connector, ConnectorSettings, Heard
from torana.connectors.luggage import Luggage, Porter, shown_name
from torana.connectors.places import channel_of, dump_place
from torana.connectors.registry import Account
from torana.errors import Draining, GatewayError, Overloaded, RateLimited, StoreUnavailable
from torana.limits.rates import MessageRates
from torana.messages import CONTENT_LIMIT, GATEWAY_OWNER, ID_LIMIT, FileKind, Inbound, Turn, utc_now
from torana.people.pairing import Pairing
from torana.store import deliveries
from torana.store import sessions as session_rows
from torana.store.database import Database
from torana.store.senders import Asker
from torana.turns import Turns

#: The time in which a session's turns are counted, to find out two machines that talk to each other.
_LOOP = timedelta(minutes=10)

#: How long a message takes to us at most by its platform's clock and ours; one that takes longer was kept.
_SKEW = timedelta(seconds=10)

#: Seconds before a message is tried again that could not be written down; the platform waits meanwhile.
_PAUSES = (0.2, 1.0, 5.0)

_log = logging.getLogger(__name__)


class _TurnedAway(Exception):
    """This message is not taken, and the sender is told why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the gateway asks of whoever comes in, by whichever account; each connection has a ``Door`` of it.

    ``rates`` are those of the gateway; ``takes`` are the kinds of files that the model can be handed.
    """

    turns: Turns
    rates: MessageRates
    pairing: Pairing
    database: Database
    clock: Callable[[], datetime] = utc_now
    takes: frozenset[FileKind] = frozenset()

    def door(
        self, account: Account, connector: Connector[Any], *, taken: Callable[[Turn | None], None]
    ) -> Door:
        """The way in of a connection; ``taken`` is told a new turn, or None of a notice."""
        return Door(
            admission=self,
            account=account.name,
            kind=account.kind if connector.global_ids else account.name,
            settings=connector.settings,
            taken=taken,
        )


class Door:
    """One account's way in. A message that it lets through is durable when ``hear`` returns."""

    def __init__(
        self,
        *,
        admission: Admission,
        account: str,
        kind: str,
        settings: ConnectorSettings,
        taken: Callable[[Turn | None], None],
    ) -> None:
        """``kind`` stands before the ids of the account's people; ``taken`` is as for ``Admission.door``."""
        self._account = account
        self._kind = kind
        self._settings = settings
        self._turns = admission.turns
        self._rates = admission.rates
        self._pairing = admission.pairing
        self._database = admission.database
        self._clock = admission.clock
        self._taken = taken
        self._porter = Porter(account=account, settings=settings, takes=admission.takes)
        #: Chats in which something is being taken in.
        self._chats: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        #: What the quickest message took.
        self._lag = _SKEW
        self._from_senders = MessageRates(per_user=settings.per_minute, overall=0)
        #: What one sender is told by the gateway itself.
        self._notices = MessageRates(per_user=3, overall=60)

    async def hear(self, heard: Heard) -> None:
        """Take a message in, or turn it away for good; what cannot be written down is tried again.

        When the gateway stops it does not return: the platform tells the message again after the next start,
        and until the end replies still go out.
        """
        if not heard.addressed or not _is_name(heard.sender.id):
            return
        heard = replace(heard, said_at=self._said_at(heard))
        luggage = self._porter.see(heard.attachments)
        pauses = iter(_PAUSES)
        # What was heard before in the chat comes first: its file may take longer than a text behind it.
        turnstile = self._chats.setdefault(heard.place.chat, asyncio.Lock())
        async with turnstile:
            while (hindrance := await self._hindrance(heard, luggage)) is not None:
                if isinstance(hindrance, Draining):
                    await asyncio.Event().wait()
                _log.warning("a message waits to be written down", extra={"reason": hindrance.detail})
                await asyncio.sleep(next(pauses, _PAUSES[-1]))

    def _said_at(self, heard: Heard) -> datetime:
        """When a message was said by our clock, going by the quickest that was heard so far."""
        now = self._clock()
        if heard.said_at is None or heard.said_at > now:
            return now
        self._lag = min(self._lag, now - heard.said_at)
        return heard.said_at + self._lag

    async def paired(self, most: int) -> Sequence[str]:
        """The ids of so many senders whom the operator let in, the latest first."""
        return await self._pairing.approved(self._kind, most)

    async def _hindrance(self, heard: Heard, luggage: Luggage) -> GatewayError | None:
        """What keeps the message from being written down at this moment."""
        try:
            await self._hear(heard, luggage)
        except (Draining, Overloaded, StoreUnavailable) as error:
            return error
        return None

    async def _hear(self, heard: Heard, luggage: Luggage) -> None:
        if heard.sender.automatic and not self._settings.bots:
            return
        if not _content(heard.text, luggage):
            return
        user = await self._user(heard)
        if user is None or await self._turns.heard(self._account, _id(heard.id)) is not None:
            return
        try:
            with self._from_senders.counted(heard.sender.id):
                await self._check_bounds(heard, luggage)
                await self._porter.fetch(luggage)
                with self._rates.counted(user) as standings:
                    submitted = await self._turns.submit(self._inbound(heard, user, luggage), rates=standings)
        except (RateLimited, _TurnedAway) as error:
            await self._tell(heard, str(error))
            return
        if submitted.new:
            self._taken(submitted.turn)

    async def _user(self, heard: Heard) -> str | None:
        """Who the sender is here; None for somebody who may not talk, and was told so if anything."""
        sender = heard.sender.id
        named = self._settings.users.get(sender)
        if not heard.direct and not {"*", heard.place.chat} & set(self._settings.rooms):
            return None
        known = await self._pairing.known(self._kind, sender)
        if known is not None and known.state == "denied":
            return None
        if known is not None and known.state == "approved":
            return named or known.user
        if {"*", sender} & set(self._settings.allow):
            return named or f"{self._kind}:{sender}"
        if heard.direct and self._settings.pairing:
            await self._pair(heard)
        return None

    async def _pair(self, heard: Heard) -> None:
        code = await self._pairing.ask(
            Asker(
                kind=self._kind,
                sender=heard.sender.id,
                account=self._account,
                place=dump_place(heard.place),
                name=shown_name(heard.sender.name),
            )
        )
        if code is not None:
            _log.info("somebody asks to talk", extra={"account": self._account})
            await self._tell(
                heard,
                "I do not know you yet. Give this code to whoever runs this gateway; it is good for an "
                f"hour:\n\n`{code}`\n\nThey let you in with `torana pair approve {code}`.",
            )

    async def _check_bounds(self, heard: Heard, luggage: Luggage) -> None:
        if len(_content(heard.text, luggage)) > CONTENT_LIMIT:
            raise _TurnedAway(f"A message may have at most {CONTENT_LIMIT:,} characters; yours is longer.")
        most = self._settings.per_session
        if not most:
            return
        channel = channel_of(self._account, heard.place)
        work = partial(session_rows.nth_newest, owner=GATEWAY_OWNER, channel=channel, number=most)
        at = await self._database.run(work)
        # A time far in the future was written by a clock that was ahead, and would pause the chat until then.
        if at is not None and abs(self._clock() - at) < _LOOP:
            _log.warning("a session is paused: too many turns", extra={"account": self._account})
            raise _TurnedAway(
                f"More than {most} messages were answered here in ten minutes; this conversation is paused for "
                "a while."
            )

    def _inbound(self, heard: Heard, user: str, luggage: Luggage) -> Inbound:
        return Inbound(
            owner=GATEWAY_OWNER,
            principal=f"connector:{self._account}",
            content=_content(heard.text, luggage),
            channel=channel_of(self._account, heard.place),
            user=user[:ID_LIMIT],
            on_busy=self._settings.on_busy,
            account=self._account,
            message=_id(heard.id),
            place=dump_place(heard.place),
            said_at=heard.said_at,
            files=luggage.files,
        )

    async def _tell(self, heard: Heard, text: str) -> None:
        """Say something that is no turn's, unless the sender was told enough already."""
        try:
            self._notices.take(heard.sender.id)
        except GatewayError:
            return
        line, place = channel_of(self._account, heard.place), dump_place(heard.place)
        work = partial(
            deliveries.add_notice, account=self._account, line=line, place=place, text=text, at=self._clock()
        )
        await self._database.run(work)
        self._taken(None)


def _is_name(sender: str) -> bool:
    """Whether a sender's id can be part of a userId."""
    return 0 < len(sender) <= ID_LIMIT - 50 and "\0" not in sender and sender.isprintable()


def _id(message: str) -> str:
    """A platform's id of a message as it is kept; one that cannot be kept so by its digest."""
    if len(message) <= ID_LIMIT and message.isprintable():
        return message
    return hashlib.sha256(message.encode("utf-8", "replace")).hexdigest()


def _content(text: str, luggage: Luggage) -> str:
    """The text, and the names of what came with it."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return "\n".join(line for line in [text.strip(), *luggage.lines] if line)
