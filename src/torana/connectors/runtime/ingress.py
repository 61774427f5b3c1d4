"""Ingress: check the sender and limits of an incoming message, and accept it as a turn."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from shlex import quote
from typing import Any

from torana.connectors.base import (
    Connector,
    ConnectorSettings,
    IncomingMessage,
    OutcomeUnknown,
    RetryLater,
    TakesCalls,
)
from torana.connectors.registry import Account
from torana.connectors.runtime.addressing import channel_of, dump_place
from torana.connectors.runtime.attachments import AttachmentFetcher, MessageFiles
from torana.connectors.runtime.chat_order import ChatOrder, LocalOrder, SharedOrder
from torana.errors import Draining, GatewayError, Overloaded, RateLimited, StoreUnavailable
from torana.limits.rates import MessageRates
from torana.message_files import shown_name
from torana.messages import CONTENT_LIMIT, GATEWAY_OWNER, ID_LIMIT, FileKind, Inbound, Turn, utc_now
from torana.people.pairing import Pairing
from torana.store.engine.database import Connection, Database
from torana.store.rows import deliveries
from torana.store.rows import sessions as session_rows
from torana.store.rows.senders import Asker
from torana.turns import Turns

#: The period in which a session's turns are counted, to detect two programs that answer each other.
_LOOP = timedelta(minutes=10)

#: Maximum assumed difference between the platform's clock and the gateway's. A message that comes later may be
#: from before a question that it seems to answer.
_SKEW = timedelta(seconds=1)

#: Maximum number of senders whose refused messages without a notice are remembered.
_UNNOTIFIED = 10_000

#: Seconds between attempts to store a message; the platform waits meanwhile.
_PAUSES = (0.2, 1.0, 5.0)

_log = logging.getLogger(__name__)


class _Rejected(Exception):
    """The message is rejected; the sender receives the text of this error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The checks for incoming messages of all accounts; each connection has an ``Ingress`` that uses them.

    ``rates`` are those of the gateway; ``takes`` are the kinds of files that the model accepts.
    """

    turns: Turns
    rates: MessageRates
    pairing: Pairing
    database: Database
    clock: Callable[[], datetime] = utc_now
    takes: frozenset[FileKind] = frozenset()

    def ingress(
        self, account: Account, connector: Connector[Any], *, taken: Callable[[Turn | None], None]
    ) -> Ingress:
        """Return the ingress of a connection; ``taken`` receives a new turn, or None for a notice."""
        is_shared = isinstance(connector, TakesCalls) and self.database.replica is not None
        shared = SharedOrder(database=self.database, account=account.name, clock=self.clock)
        return Ingress(
            admission=self,
            account=account.name,
            kind=account.kind if connector.global_ids else account.name,
            settings=connector.settings,
            order=shared if is_shared else LocalOrder(),
            taken=taken,
        )


class Ingress:
    """The ingress of one account. An accepted message is stored when ``hear`` returns."""

    def __init__(
        self,
        *,
        admission: Admission,
        account: str,
        kind: str,
        settings: ConnectorSettings,
        order: ChatOrder,
        taken: Callable[[Turn | None], None],
    ) -> None:
        """``kind`` is the prefix of the senders' user ids; ``taken`` is as for ``Admission.ingress``."""
        self._account = account
        self._kind = kind
        self._settings = settings
        self._turns = admission.turns
        self._rates = admission.rates
        self._pairing = admission.pairing
        self._database = admission.database
        self._clock = admission.clock
        self._taken = taken
        self._files = AttachmentFetcher(account=account, settings=settings, takes=admission.takes)
        self._order = order
        #: The shortest delay of a message so far.
        self._lag = _SKEW
        self._from_senders = admission.rates.of_senders(account, settings.per_minute)
        #: Limits the gateway's own notices to one sender.
        self._notices = MessageRates(per_user=3, overall=60)
        #: The latest senders, each with a channel, that got no notice of a refused message, because of the
        #: limit. The message may have been a no, so their next yes approves nothing.
        self._unnotified: dict[tuple[str, str], None] = {}
        #: Limits the questions to the platform whether a reply is one to this account.
        self._questions = MessageRates(per_user=20, overall=120)

    async def hear(self, heard: IncomingMessage) -> None:
        """Accept or reject a message; if it cannot be stored, try again.

        While the gateway stops, this does not return: the platform repeats the message after the next start,
        and replies still go out until the end.
        """
        if not (heard.addressed or heard.replies_to_us) or not _is_name(heard.sender.id):
            return
        heard = replace(heard, said_at=self._said_at(heard))
        message_files = self._files.see(heard.attachments)
        try:
            # Earlier messages of the chat come first, even if their files take longer.
            async with self._order.hold(heard.place.chat):
                await self._hear_until_stored(heard, message_files)
        except Draining:
            await asyncio.Event().wait()

    async def _hear_until_stored(self, heard: IncomingMessage, message_files: MessageFiles) -> None:
        pauses = iter(_PAUSES)
        while True:
            try:
                return await self._hear(heard, message_files)
            except (Overloaded, StoreUnavailable) as error:
                _log.warning("message_waits_for_store", extra={"reason": error.detail})
            await asyncio.sleep(next(pauses, _PAUSES[-1]))

    def _said_at(self, heard: IncomingMessage) -> datetime:
        """Return a message's time by this machine's clock, corrected by the shortest delay so far."""
        now = self._clock()
        if heard.said_at is None or heard.said_at > now:
            return now
        self._lag = min(self._lag, now - heard.said_at)
        return heard.said_at + self._lag

    async def paired_ids(self, most: int) -> Sequence[str]:
        """Return the ids of up to ``most`` paired senders, the latest first."""
        return await self._pairing.approved_ids(self._kind, most)

    async def _hear(self, heard: IncomingMessage, message_files: MessageFiles) -> None:
        if heard.sender.automatic and not self._settings.bots:
            return
        if not _content(heard.text, message_files):
            return
        user = await self._user(heard)
        if (
            user is None
            or await self._turns.reader.find_by_platform_message(self._account, _id(heard.id)) is not None
        ):
            return
        if not await self._is_for_us(heard):
            return
        try:
            async with self._from_senders.count(heard.sender.id):
                await self._check_bounds(heard, message_files)
                await self._files.fetch(message_files, sender=heard.sender.id)
                async with self._rates.count(user) as message:
                    submitted = await self._turns.submit(
                        self._inbound(heard, user, message_files), rates=message.statuses
                    )
        except (RateLimited, _Rejected) as error:
            await self._notify(heard, str(error))
            return
        self._unnotified.pop(self._speaker(heard), None)
        if submitted.new:
            self._taken(submitted.turn)

    async def _is_for_us(self, heard: IncomingMessage) -> bool:
        """Return whether a message is addressed to the account; false if the platform does not say so in time.

        Each sender may cause a limited number of questions to the platform.
        """
        if not heard.addressed:
            try:
                await self._questions.take(heard.sender.id)
            except RateLimited as error:
                _log.warning("reply_not_attributed", extra={"reason": str(error)})
                return False
        for pause in (0.0, *_PAUSES):
            await asyncio.sleep(pause)
            try:
                return await heard.is_for_us()
            except (RetryLater, OutcomeUnknown) as error:
                _log.warning("reply_not_attributed", extra={"reason": str(error)})
        return False

    async def _user(self, heard: IncomingMessage) -> str | None:
        """Return the sender's user id; None if the sender may not talk. May start a pairing."""
        sender = heard.sender.id
        named = self._settings.users.get(sender)
        if not heard.direct and not {"*", heard.place.chat} & set(self._settings.rooms):
            return None
        known = await self._pairing.find_sender(self._kind, sender)
        if known is not None and known.state == "denied":
            return None
        if known is not None and known.state == "approved":
            return named or known.user
        if {"*", sender} & set(self._settings.allow):
            return named or f"{self._kind}:{sender}"
        if heard.direct and self._settings.pairing:
            await self._pair(heard)
        return None

    async def _pair(self, heard: IncomingMessage) -> None:
        asker = Asker(
            kind=self._kind,
            sender=heard.sender.id,
            account=self._account,
            place=dump_place(heard.place),
            name=shown_name(heard.sender.name),
        )

        def notify(connection: Connection, code: str) -> None:
            text = (
                "You are not approved yet. Give this code to the operator of this gateway; it is valid for one "
                f"hour:\n\n`{code}`\n\nThe operator approves you with `torana pair approve {code}`."
            )
            self._add_notice(connection, heard, text)

        if await self._pairing.ask(asker, notify=notify) is not None:
            approve = f"torana pair approve {quote(f'{self._kind}:{heard.sender.id}')}"
            _log.info("pairing_requested", extra={"account": self._account, "approve": approve})
            self._taken(None)

    async def _check_bounds(self, heard: IncomingMessage, message_files: MessageFiles) -> None:
        if len(_content(heard.text, message_files)) > CONTENT_LIMIT:
            raise _Rejected(f"Your message is longer than {CONTENT_LIMIT:,} characters. Send a shorter one.")
        most = self._settings.per_session
        if not most:
            return
        channel = channel_of(self._account, heard.place)
        work = partial(session_rows.nth_newest, owner=GATEWAY_OWNER, channel=channel, number=most)
        at = await self._database.read(work)
        # A time far in the future was written by a clock that was ahead; it must not pause the chat.
        if at is not None and abs(self._clock() - at) < _LOOP:
            _log.warning("session_paused_for_turns", extra={"account": self._account, "limit": most})
            raise _Rejected(
                f"This conversation has more than {most} turns in ten minutes and is paused. Try again later."
            )

    def _inbound(self, heard: IncomingMessage, user: str, message_files: MessageFiles) -> Inbound:
        return Inbound(
            owner=GATEWAY_OWNER,
            principal=f"connector:{self._account}",
            content=_content(heard.text, message_files),
            channel=channel_of(self._account, heard.place),
            user=user[:ID_LIMIT],
            on_busy=self._settings.on_busy,
            account=self._account,
            message=_id(heard.id),
            place=dump_place(heard.place),
            said_at=heard.said_at,
            in_reply_to=heard.in_reply_to and _id(heard.in_reply_to),
            files=message_files.files,
            may_approve=self._speaker(heard) not in self._unnotified,
        )

    def _speaker(self, heard: IncomingMessage) -> tuple[str, str]:
        return heard.sender.id, channel_of(self._account, heard.place)

    async def _notify(self, heard: IncomingMessage, text: str) -> None:
        """Send the sender a notice, within the limit for notices."""
        try:
            await self._notices.take(heard.sender.id)
        except GatewayError:
            self._unnotified[self._speaker(heard)] = None
            if len(self._unnotified) > _UNNOTIFIED:
                del self._unnotified[next(iter(self._unnotified))]
            return
        await self._database.run(partial(self._add_notice, heard=heard, text=text))
        self._taken(None)

    def _add_notice(self, connection: Connection, heard: IncomingMessage, text: str) -> None:
        line, place = channel_of(self._account, heard.place), dump_place(heard.place)
        deliveries.add_notice(connection, self._account, line, place, text=text, at=self._clock())


def _is_name(sender: str) -> bool:
    """Return whether a sender's id can be part of a userId."""
    return 0 < len(sender) <= ID_LIMIT - 50 and "\0" not in sender and sender.isprintable()


def _id(message: str) -> str:
    """Return the id under which a message is stored: the platform's id, or its digest if that is too long."""
    if len(message) <= ID_LIMIT and message.isprintable():
        return message
    return hashlib.sha256(message.encode("utf-8", "replace")).hexdigest()


def _content(text: str, message_files: MessageFiles) -> str:
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return "\n".join(line for line in [text.strip(), *message_files.lines] if line)
