"""XMPP (Jabber): one account on one server, through slixmpp.

A message is acknowledged to the server (XEP-0198) after it is stored; the server keeps unacknowledged messages
for the next connection. Each object makes one connection: slixmpp's own reconnecting is off.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4
from xml.etree import ElementTree as ET

from slixmpp import JID, InvalidJID, Iq, Message, Presence
from slixmpp.exceptions import IqError, IqTimeout
from slixmpp.xmlstream.stanzabase import StanzaBase

from torana.connectors.base import (
    Attachment,
    Capabilities,
    Connector,
    IncomingMessage,
    MessageSink,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
    attachment_kind,
)
from torana.connectors.platforms.xmpp.client import TIMEOUT, XmppClient, XmppSettings
from torana.connectors.platforms.xmpp.room import MUC_USER, XmppRoom
from torana.connectors.transport.concurrency import concurrently

log = logging.getLogger(__name__)

#: Probe interval in seconds, and the number of probes between two checks of the rooms.
PROBE = 40.0
ROOM_PROBES = 8

#: Maximum number of unprocessed messages; above it the connection is not read.
_BACKLOG = 100
#: Characters that XML cannot contain.
_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACE = "{urn:xmpp:message-correct:0}replace"
#: Elements of stanzas that are no new message: corrections, reactions, retractions, copies, invitations.
_NO_MESSAGE = (
    _REPLACE,
    "{urn:xmpp:reactions:0}reactions",
    "{urn:xmpp:message-retract:0}retract",
    "{urn:xmpp:message-retract:1}retract",
    "{urn:xmpp:fasten:0}apply-to",
    "{urn:xmpp:carbons:2}received",
    "{urn:xmpp:carbons:2}sent",
    "{urn:xmpp:mam:2}result",
    "{jabber:x:conference}x",
    f"{MUC_USER}x/{MUC_USER}invite",
)
#: Answers to a self-ping that mean that the account is still in the room (XEP-0410).
_STILL_JOINED = (
    "",
    "service-unavailable",
    "feature-not-implemented",
    "item-not-found",
    "remote-server-timeout",
)


class Xmpp(Connector[XmppSettings]):
    """An account on an XMPP server."""

    Settings = XmppSettings
    global_ids = True
    abilities = Capabilities(
        length=10_000, repeat="blind", edits=True, edit_every=5.0, typing_every=20.0, pace=2.0, quiet=120.0
    )

    def __init__(self, settings: XmppSettings) -> None:
        super().__init__(settings)
        self._rooms = {room: XmppRoom(room, settings.nick) for room in settings.join}
        self._client: XmppClient | None = None
        self._negotiated = asyncio.Event()
        self._inbox: asyncio.Queue[tuple[IncomingMessage, int] | Exception] = asyncio.Queue()
        #: Stanzas that the server counts, and the numbers of those in the inbox.
        self._received = 0
        self._untaken: deque[int] = deque()
        #: The outcomes of messages in progress, by message id.
        self._sent: dict[str, asyncio.Future[None]] = {}

    @property
    def credentials(self) -> str:
        return JID(self.settings.jid).bare

    @property
    def link(self) -> str | None:
        return f"xmpp:{quote(self.credentials, safe='@')}"

    async def run(self, sink: MessageSink) -> None:
        """Connect and listen; ready when each room is joined, or its refusal is logged."""
        client = self._client = XmppClient(self.settings)
        self._listen(client, sink)
        attending: asyncio.Task[None] | None = None
        deadline = asyncio.timeout(2 * TIMEOUT)
        try:
            async with deadline:
                client.open()
                attending = asyncio.create_task(self._maintain_rooms(client, sink, deadline))
                async with concurrently(sink) as hear:
                    while True:
                        item = await self._inbox.get()
                        if isinstance(item, Exception):
                            raise item
                        heard, number = item
                        await hear(heard, partial(self._take, client, number))
        except TimeoutError as error:
            if deadline.expired():
                raise ConnectionError(f"the login took more than {2 * TIMEOUT:g} s") from error
            raise
        finally:
            self._client = None
            for answer in self._sent.values():
                _fail(answer, OutcomeUnknown("the connection has ended"))
            if attending is not None:
                attending.cancel()
            await client.close()

    async def send(self, part: Part) -> str:
        """Send a part; return after the server or the room has accepted it. A later bounce is logged."""
        client = self._client
        if client is None:
            raise RetryLater("there is no connection")
        message = self._message(client, part)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent[message["id"]] = answer
        waits: set[asyncio.Future[Any]] = {answer}
        try:
            message.send()
            if message["type"] == "chat":  # a room echoes the message instead
                waits.add(client.ping(client.boundjid.host))
            await asyncio.wait(waits, timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
            elif not any(_is_answered(wait) for wait in waits):
                raise OutcomeUnknown("the server did not answer")
        finally:
            del self._sent[message["id"]]
            for wait in waits:
                wait.cancel()
        return part.edits or message["id"]

    async def confirm(self, part: Part) -> str | None:
        """Return the part's id, which is its key. A client that does not know it shows an edit as a message."""
        return part.key

    async def typing(self, place: Place) -> None:
        if self._client is not None and place.chat not in self._rooms:
            self._check_recipient(place)
            message = self._client.make_message(JID(place.chat), mtype="chat")
            message["chat_state"] = "composing"
            message.send()

    def _check_recipient(self, place: Place) -> None:
        """Raise an error if the nick of a private chat in a room does not belong to its user at the moment."""
        if place.thread is None:
            return
        to = JID(place.chat)
        room = self._rooms.get(to.bare)
        if room is not None and not room.is_in:
            raise RetryLater(f"not in {room.address} at the moment")
        if room is None or room.people.get(to.resource) != place.thread:
            raise PermanentError("the user has left the room, or has another nick")

    def _message(self, client: XmppClient, part: Part) -> Message:
        self._check_recipient(part.place)
        room = self._rooms.get(part.place.chat)
        if room is not None and room.closed:
            raise PermanentError(f"cannot join {room.address}: {room.closed}")
        if room is not None and not room.is_in:
            raise RetryLater(f"not in {room.address} at the moment")
        try:
            to = JID(part.place.chat)
        except InvalidJID as error:
            raise PermanentError("the place is not an address") from error
        if not to.domain:  # the server would deliver it to the account itself
            raise PermanentError("the place is not an address")
        message = client.make_message(to, _ILLEGAL.sub("", part.text), mtype="groupchat" if room else "chat")
        message["id"] = uuid4().hex if part.edits else part.key
        if part.edits:
            ET.SubElement(message.xml, _REPLACE, id=part.edits)
        if room is None:
            message["chat_state"] = "active"
        return message

    def _listen(self, client: XmppClient, sink: MessageSink) -> None:
        """Register the handlers of all events; the first error ends the connection."""

        def fail(error: Exception) -> None:
            self._inbox.put_nowait(error)

        def incoming(stanza: StanzaBase) -> StanzaBase | None:
            sink.alive()
            self._receive(client, stanza)
            # slixmpp would remember each sender of a presence for ever.
            return None if isinstance(stanza, Presence) else stanza

        def on(event: str, handler: Callable[[Any], None]) -> None:
            client.add_event_handler(event, handler)

        client.add_filter("in", incoming)
        on("stream_negotiated", lambda _: self._negotiated.set())
        on("message_error", self._on_bounce)
        on("failed_auth", lambda answer: client.refusals.append(answer["condition"]))
        on("failed_all_auth", lambda _: fail(client.refusal()))
        on("ssl_invalid_chain", lambda error: fail(ConnectionError(f"TLS: {error}")))
        on("connection_failed", lambda error: client.faults.append(str(error)))
        on("reconnect_delay", lambda _: fail(ConnectionError("; ".join(client.faults))))
        on("stream_error", lambda error: fail(_stream_fault(error["condition"])))
        on("disconnected", lambda why: fail(ConnectionError(f"the connection ended: {why}")))

    def _receive(self, client: XmppClient, stanza: StanzaBase) -> None:
        counted = client.plugin["xep_0198"].enabled_in and isinstance(stanza, (Message, Presence, Iq))
        self._received += counted
        heard = None
        try:
            if isinstance(stanza, Message):
                heard = self._parse_message(client, stanza)
            elif isinstance(stanza, Presence):
                self._on_presence(client, stanza)
        except Exception:
            # Acknowledge and drop an unreadable stanza: the server would repeat it for ever.
            log.exception("xmpp_stanza_unreadable")
        if heard is not None:
            self._inbox.put_nowait((heard, self._received))
            self._untaken.append(self._received)
            if len(self._untaken) > _BACKLOG and client.transport is not None:
                client.transport.pause_reading()
        self._count(client)

    async def _take(self, client: XmppClient, number: int) -> None:
        """Mark a message as processed, and acknowledge all messages before the first unprocessed one."""
        self._untaken.remove(number)
        self._count(client)
        if client.plugin["xep_0198"].enabled_in:
            client.plugin["xep_0198"].send_ack()
        # Reading resumes only when all messages are processed: otherwise each message would admit a whole
        # buffer of new ones.
        if not self._untaken and client.transport is not None:
            client.transport.resume_reading()

    def _count(self, client: XmppClient) -> None:
        """Set the number of stanzas that slixmpp acknowledges: those before the first unprocessed message."""
        handled = self._untaken[0] - 1 if self._untaken else self._received
        client.plugin["xep_0198"].handled = handled % 2**32

    async def _maintain_rooms(self, client: XmppClient, sink: MessageSink, deadline: asyncio.Timeout) -> None:
        """Join the rooms, and then check the server and the rooms regularly."""
        try:
            await self._negotiated.wait()
            client.send_presence()
            await asyncio.gather(*(self._enter(client, room) for room in self._rooms.values()))
            await self._ping(client, client.boundjid.host)
            deadline.reschedule(None)
            sink.ready()
            for beat in count(1):
                await asyncio.sleep(PROBE)
                await self._ping(client, client.boundjid.host)
                for room in self._rooms.values():
                    if beat % ROOM_PROBES == 0 or not (room.is_in or room.closed):
                        await self._look_after(client, room)
        except Exception as error:  # noqa: BLE001 - ``run`` raises it
            self._inbox.put_nowait(error)

    async def _ping(self, client: XmppClient, to: str) -> str:
        """Return the error of a ping, or an empty text; no response from the server ends the connection."""
        try:
            await client.ping(to)
        except IqError as error:
            return error.condition
        except IqTimeout as error:
            if to == client.boundjid.host:
                raise TimeoutError("the server does not answer") from error
            return "remote-server-timeout"
        return ""

    async def _look_after(self, client: XmppClient, room: XmppRoom) -> None:
        if room.is_in and await self._ping(client, f"{room.address}/{room.nick}") in _STILL_JOINED:
            return
        await self._enter(client, room)

    async def _enter(self, client: XmppClient, room: XmppRoom) -> None:
        why = await room.enter(client, self.settings.nick)
        if why == "conflict":
            why = await room.enter(client, f"{self.settings.nick}_")
        if why:
            log.warning("xmpp_room_closed", extra={"room": room.address, "reason": why})

    def _on_presence(self, client: XmppClient, presence: Presence) -> None:
        sender: JID = presence["from"]
        if room := self._rooms.get(sender.bare):
            room.take(presence)
        elif presence["type"] == "subscribe":  # presence is public; some servers require it for messages
            client.send_presence(pto=sender.bare, ptype="subscribed")

    def _on_bounce(self, message: Message) -> None:
        condition, chat = message["error"]["condition"], message["from"].bare
        why = _ILLEGAL.sub("", f"{condition}: {message['error']['text']}")[:200]
        later = message["error"]["type"] == "wait"
        if condition == "not-acceptable" and chat in self._rooms:  # the room has removed the account
            self._rooms[chat].is_in, later = False, True
        answer = self._sent.get(message["id"])
        if answer is None:
            log.warning("xmpp_message_returned", extra={"chat": chat, "reason": why})
        else:
            _fail(answer, RetryLater(why) if later else PermanentError(why))

    def _parse_message(self, client: XmppClient, message: Message) -> IncomingMessage | None:
        """Parse a message; None for stanzas that contain no message for the account."""
        sender: JID = message["from"]
        body = _ILLEGAL.sub("", message["body"]).strip()
        if message["type"] in ("error", "headline") or sender.bare == client.boundjid.bare or not body:
            return None
        room, direct = self._rooms.get(sender.bare), message["type"] != "groupchat"
        if room is not None and not direct and sender.resource == room.nick:
            answer = self._sent.get(message["id"])
            if answer is not None and not answer.done():
                answer.set_result(None)
            return None
        if any(message.xml.find(path) is not None for path in _NO_MESSAGE):
            return None
        # A room's own messages and its history are not for the account.
        if (room is not None and not sender.resource) or (
            not direct and (room is None or message.get_plugin("delay", check=True))
        ):
            return None
        who = sender.bare if room is None else room.people.get(sender.resource) or sender.full
        text, addressed = (body, True) if direct or room is None else _split_mention(message, body, room)
        return IncomingMessage(
            id=_identity(message, who, archive=client.boundjid.bare if direct else sender.bare),
            sender=Sender(id=who, name=sender.user if room is None else sender.resource),
            place=Place(chat=sender.bare) if room is None or not direct else _private_place(sender, who),
            text=text,
            direct=direct,
            addressed=addressed,
            attachments=_attachments(message),
            said_at=_said_at(message),
        )


def _private_place(sender: JID, who: str) -> Place:
    """Return the place of a private chat in a room.

    Another user may have the nick later. The thread therefore names the user, if the room reveals addresses.
    """
    return Place(chat=sender.full, thread=None if who == sender.full else who)


def _said_at(message: Message) -> datetime | None:
    """Return the time of a delayed message (XEP-0203); None for a message without delay."""
    delay = message.get_plugin("delay", check=True)
    try:
        stamp: Any = None if delay is None else delay["stamp"]
        return stamp.astimezone(UTC) if stamp else None
    except (ValueError, OverflowError):
        return None


def _split_mention(message: Message, body: str, room: XmppRoom) -> tuple[str, bool]:
    """Return the text without a leading mention, and whether it addresses the account."""
    name = rf"(?<!\w){re.escape(room.nick)}(?!\w)"
    reply = message.xml.find("{urn:xmpp:reply:0}reply")
    replied = reply is not None and reply.get("to") == f"{room.address}/{room.nick}"
    text = re.sub(rf"^@?{name}\s*[:,]?\s*", "", body, flags=re.IGNORECASE)
    return text, replied or re.search(name, body, re.IGNORECASE) is not None


def _identity(message: Message, who: str, *, archive: str) -> str:
    """Return an id that is the same when the server or a client with origin ids repeats the message.

    Other clients may reuse ids on each connection (RFC 6120, 8.1.3), and a question may be asked twice in the
    same words; for these clients, the id in the ``archive`` (a room or the account) distinguishes the messages.
    """
    sender, origin = message["from"], message.get_plugin("origin_id", check=True)
    ids = message.xml.findall("{urn:xmpp:sid:0}stanza-id")
    kept = (one.get("id") for one in ids if one.get("by") == archive)
    if origin is not None and (vouched := origin["id"]):
        names = (sender.bare, vouched)
    else:
        names = (sender.full, message["id"], next(kept, None) or "")
        if not any(names[1:]):
            return uuid4().hex
    return sha256("\0".join((who, *names, message["body"])).encode()).hexdigest()[:32]


def _attachments(message: Message) -> list[Attachment]:
    """Return the files of a message, which are URLs. They are only named, as senders choose the URLs."""
    urls = [x.findtext("{jabber:x:oob}url") or "" for x in message.xml.findall("{jabber:x:oob}x")[:20]]
    return [_attachment(url) for url in urls if url]


def _attachment(url: str) -> Attachment:
    # An invalid URL gives no name.
    name = ""
    with suppress(ValueError):
        name = unquote(urlsplit(url).path).rpartition("/")[2]
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Attachment(kind=attachment_kind(media_type), name=name, media_type=media_type)


def _fail(answer: asyncio.Future[None], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _is_answered(wait: asyncio.Future[Any]) -> bool:
    """Return whether a response came; an error counts, as it shows that earlier stanzas arrived."""
    return wait.done() and not isinstance(wait.exception(), IqTimeout)


def _stream_fault(condition: str) -> Exception:
    if condition == "host-unknown":
        return PermanentError("the server does not know the account's domain")
    if condition == "conflict":
        return ConnectionError("another client has logged in with the same account and resource")
    return ConnectionError(f"the server ended the connection: {condition}")
