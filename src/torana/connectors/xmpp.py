"""XMPP (Jabber): one account on one server, through slixmpp.

The server is told that a message was taken (XEP-0198) after it was, and keeps it for the next connection if it
never hears so. A connection is used once: slixmpp's own reconnecting is off.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import re
from collections import deque
from contextlib import suppress
from hashlib import sha256
from itertools import count
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pydantic import Field, SecretStr, field_validator, model_validator
from slixmpp import JID, ClientXMPP, InvalidJID, Iq, Message, Presence
from slixmpp.exceptions import IqError, IqTimeout, PresenceError
from slixmpp.stanza import StreamFeatures
from slixmpp.xmlstream.stanzabase import StanzaBase
from slixmpp.xmlstream.xmlstream import NotConnectedError

from torana.connectors.base import (
    Abilities,
    Attachment,
    Connector,
    ConnectorSettings,
    Ears,
    Heard,
    Ids,
    Part,
    Place,
    Refused,
    Sender,
    TryLater,
    Unsure,
)

log = logging.getLogger(__name__)

#: Seconds for the network, between two probes, and probes between two looks at the rooms.
TIMEOUT = 30.0
PROBE = 40.0
ROOM_PROBES = 8

#: Messages that may wait to be taken before nothing more is read.
_BACKLOG = 100
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PLUGINS = ("xep_0045", "xep_0085", "xep_0198", "xep_0199", "xep_0203", "xep_0308")
#: What XML cannot hold.
_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: What makes of a message something else: a change of an earlier one, a reaction, an invitation, a copy.
_NO_MESSAGE = (
    "{urn:xmpp:message-correct:0}replace",
    "{urn:xmpp:reactions:0}reactions",
    "{urn:xmpp:message-retract:0}retract",
    "{urn:xmpp:message-retract:1}retract",
    "{urn:xmpp:fasten:0}apply-to",
    "{urn:xmpp:carbons:2}received",
    "{urn:xmpp:carbons:2}sent",
    "{urn:xmpp:mam:2}result",
    "{jabber:x:conference}x",
    "{http://jabber.org/protocol/muc#user}x/{http://jabber.org/protocol/muc#user}invite",
)
_DELAY = "{urn:xmpp:delay}delay"
#: What a room that is asked whether we are in it answers though we are (XEP-0410).
_THERE = ("", "service-unavailable", "feature-not-implemented", "item-not-found", "remote-server-timeout")


class XmppSettings(ConnectorSettings):
    """An account on an XMPP server."""

    jid: str = Field(
        pattern=r"^[^@/\s]+@[^@/\s]+(/\S+)?$",
        description="The account's address, such as `torana@example.org`.",
    )
    password: SecretStr = Field(description="The account's password.")
    host: str = Field(default="", description="The server's name, where it is not found by the address.")
    port: int = Field(default=5222, ge=1, le=65_535, description="The server's port, if `host` is given.")
    tls: Literal["starttls", "direct", "none"] = Field(
        default="starttls",
        description="How the connection is encrypted; `none` only to this machine (`host` is 127.0.0.1).",
    )
    join: Ids = Field(
        default=(), description="Addresses of the rooms to be in, such as `room@rooms.example.org`."
    )
    nick: str = Field(default="torana", min_length=1, max_length=60, description="The name to have in rooms.")

    @field_validator("jid")
    @classmethod
    def _address(cls, jid: str) -> str:
        return JID(jid).full

    @field_validator("join")
    @classmethod
    def _rooms(cls, rooms: tuple[str, ...]) -> tuple[str, ...]:
        if any(not JID(room).user or JID(room).resource for room in rooms):
            raise ValueError("a room has an address such as room@rooms.example.org")
        return tuple(JID(room).bare for room in rooms)

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.tls == "none" and self.host not in _LOOPBACK:
            raise ValueError('tls = "none" is for a server on this machine: host must be 127.0.0.1')
        return self


class Xmpp(Connector[XmppSettings]):
    """An account on an XMPP server."""

    Settings = XmppSettings
    abilities = Abilities(
        length=10_000, repeat="blind", edits=True, edit_every=5.0, typing_every=20.0, pace=2.0, quiet=120.0
    )

    def __init__(self, settings: XmppSettings) -> None:
        super().__init__(settings)
        self._rooms = set(settings.join)
        self._joined: set[str] = set()
        self._closed: dict[str, str] = {}
        self._client: _Client | None = None
        self._negotiated = asyncio.Event()
        self._inbox: asyncio.Queue[Heard | Exception] = asyncio.Queue()
        #: Stanzas that the server counts, and the numbers of those in the inbox.
        self._received = 0
        self._untaken: deque[int] = deque()
        #: What becomes of a message that was sent, by its id.
        self._sent: dict[str, asyncio.Future[None]] = {}

    @property
    def credentials(self) -> str:
        """The account's address."""
        return JID(self.settings.jid).bare

    async def run(self, ears: Ears) -> None:
        """As ``Connector``: ready when every room was entered, or is closed to us, which is logged."""
        client = self._client = _Client(self.settings)
        self._listen(client, ears)
        attending: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(2 * TIMEOUT) as deadline:
                client.connect(*((self.settings.host, self.settings.port) if self.settings.host else ()))
                attending = asyncio.create_task(self._attend(client, ears, deadline))
                while True:
                    heard = await self._inbox.get()
                    if isinstance(heard, Exception):
                        raise heard
                    await ears.hear(heard)
                    self._take(client)
        finally:
            self._client = None
            for answer in self._sent.values():
                _fail(answer, Unsure("the connection has ended"))
            if attending is not None:
                attending.cancel()
            await client.close()

    async def send(self, part: Part) -> str:
        """As ``Connector``: our own server, or the room, has taken it; what bounces later is logged."""
        client = self._client
        if client is None:
            raise TryLater("there is no connection")
        message = self._message(client, part)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent[message["id"]] = answer
        waits: set[asyncio.Future[Any]] = {answer}
        try:
            message.send()
            if message["type"] == "chat":  # a room tells it to all, the server answers what comes behind
                waits.add(client.plugin["xep_0199"].send_ping(JID(client.boundjid.host), timeout=TIMEOUT))
            await asyncio.wait(waits, timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
            elif not any(_answered(wait) for wait in waits):
                raise Unsure("the server did not answer")
        finally:
            del self._sent[message["id"]]
            for wait in waits:
                wait.cancel()
        return part.edits or message["id"]

    async def typing(self, place: Place) -> None:
        """As ``Connector``, in direct chats."""
        if self._client is not None and place.chat not in self._rooms:
            message = self._client.make_message(JID(place.chat), mtype="chat")
            message["chat_state"] = "composing"
            message.send()

    def _message(self, client: _Client, part: Part) -> Message:
        chat = part.place.chat
        if chat in self._closed:
            raise Refused(f"{chat} is closed to us: {self._closed[chat]}")
        if chat in self._rooms - self._joined:
            raise TryLater(f"we are not in {chat}")
        try:
            to = JID(chat)
        except InvalidJID as error:
            raise Refused("this is no address") from error
        kind = "groupchat" if chat in self._rooms else "chat"
        message = client.make_message(to, _ILLEGAL.sub("", part.text), mtype=kind)
        message["id"] = uuid4().hex if part.edits else part.key
        if part.edits:
            message["replace"]["id"] = part.edits
        if kind == "chat":
            message["chat_state"] = "active"
        return message

    def _listen(self, client: _Client, ears: Ears) -> None:
        """Everything that happens goes through here, in its order; the first fault ends the connection."""

        def fail(error: Exception) -> None:
            self._inbox.put_nowait(error)

        def incoming(stanza: StanzaBase) -> StanzaBase:
            ears.alive()
            self._receive(client, stanza)
            return stanza

        client.add_filter("in", incoming)
        client.add_event_handler("stream_negotiated", lambda _: self._negotiated.set())
        client.add_event_handler("message_error", self._on_returned)
        client.add_event_handler("failed_auth", lambda answer: client.refusals.append(answer["condition"]))
        client.add_event_handler("failed_all_auth", lambda _: fail(client.refusal()))
        client.add_event_handler("ssl_invalid_chain", lambda error: fail(ConnectionError(f"TLS: {error}")))
        client.add_event_handler("connection_failed", lambda error: client.faults.append(str(error)))
        client.add_event_handler("reconnect_delay", lambda _: fail(ConnectionError("; ".join(client.faults))))
        client.add_event_handler("stream_error", lambda error: fail(_stream_fault(error["condition"])))
        client.add_event_handler(
            "disconnected", lambda why: fail(ConnectionError(f"the connection ended: {why}"))
        )
        for room in self._rooms:
            client.add_event_handler(f"muc::{room}::self-presence", self._on_own_presence)

    def _receive(self, client: _Client, stanza: StanzaBase) -> None:
        counted = client.plugin["xep_0198"].enabled_in and isinstance(stanza, (Message, Presence, Iq))
        self._received += counted
        heard = None
        if isinstance(stanza, Message):
            try:
                heard = self._heard(client, stanza)
            except Exception:
                # It would come again and again: what cannot be read is nobody's message.
                log.exception("xmpp_message_unreadable")
        if heard is not None:
            self._inbox.put_nowait(heard)
            self._untaken.append(self._received)
            if len(self._untaken) > _BACKLOG and client.transport is not None:
                client.transport.pause_reading()
        self._count(client)

    def _take(self, client: _Client) -> None:
        """Tell the server that the oldest message was taken."""
        self._untaken.popleft()
        self._count(client)
        if client.transport is not None:
            client.transport.resume_reading()
            if client.plugin["xep_0198"].enabled_in:
                client.plugin["xep_0198"].send_ack()

    def _count(self, client: _Client) -> None:
        """What slixmpp answers when the server asks how far we are: up to the first message that is not taken."""
        handled = self._untaken[0] - 1 if self._untaken else self._received
        client.plugin["xep_0198"].handled = handled % 2**32

    async def _attend(self, client: _Client, ears: Ears, deadline: asyncio.Timeout) -> None:
        """Enter, and then see that the server and the rooms are still there."""
        try:
            await self._negotiated.wait()
            client.send_presence()
            await asyncio.gather(*(self._enter(client, room) for room in self._rooms))
            await self._ping(client, client.boundjid.host)
            deadline.reschedule(None)
            ears.ready()
            for beat in count(1):
                await asyncio.sleep(PROBE)
                await self._ping(client, client.boundjid.host)
                everywhere = beat % ROOM_PROBES == 0
                rooms = self._rooms if everywhere else self._rooms - self._joined - self._closed.keys()
                await asyncio.gather(*(self._look_after(client, room) for room in rooms))
        except Exception as error:  # noqa: BLE001 - whatever it is, the one who listens ends with it
            self._inbox.put_nowait(error)

    async def _ping(self, client: _Client, to: str) -> str:
        """What is wrong there, if something is; no answer ends the connection if it is the server."""
        try:
            await client.plugin["xep_0199"].send_ping(JID(to), timeout=TIMEOUT)
        except IqError as error:
            return error.condition
        except IqTimeout as error:
            if to == client.boundjid.host:
                raise TimeoutError("the server does not answer") from error
            return "remote-server-timeout"
        return ""

    async def _look_after(self, client: _Client, room: str) -> None:
        if room in self._joined and await self._ping(client, f"{room}/{client.nick_in(room)}") in _THERE:
            return
        await self._enter(client, room)

    async def _enter(self, client: _Client, room: str) -> None:
        why = ""
        for nick in (self.settings.nick, f"{self.settings.nick}_"):
            try:
                await client.plugin["xep_0045"].join_muc_wait(JID(room), nick, maxstanzas=0, timeout=TIMEOUT)
            except PresenceError as error:
                why = error.format()
                if error.condition == "conflict":
                    continue
                if error.etype != "wait":
                    self._closed[room] = why
            except TimeoutError:
                why = "no answer"
            else:
                self._joined.add(room)
                self._closed.pop(room, None)
                return
            break
        self._joined.discard(room)
        log.warning("xmpp_room_closed", extra={"room": room, "why": why})

    def _on_own_presence(self, presence: Presence) -> None:
        room = presence["from"].bare
        if presence["type"] == "unavailable" and 303 not in presence["muc"]["status_codes"]:  # 303: a new nick
            self._joined.discard(room)
            log.warning(
                "xmpp_room_left", extra={"room": room, "codes": sorted(presence["muc"]["status_codes"])}
            )

    def _on_returned(self, message: Message) -> None:
        """A message of ours came back as an error."""
        condition, room = message["error"]["condition"], message["from"].bare
        why = _ILLEGAL.sub("", f"{condition}: {message['error']['text']}")[:200]
        lost = room in self._rooms and condition == "not-acceptable"  # the room does not know us any more
        if lost:
            self._joined.discard(room)
        answer = self._sent.get(message["id"])
        if answer is None:
            log.warning("xmpp_message_returned", extra={"chat": room, "why": why})
        else:
            _fail(answer, TryLater(why) if lost or message["error"]["type"] == "wait" else Refused(why))

    def _heard(self, client: _Client, message: Message) -> Heard | None:
        """The message, or None where nobody said something to us."""
        sender: JID = message["from"]
        body = _ILLEGAL.sub("", message["body"]).strip()
        if message["type"] in ("error", "headline") or sender.bare == client.boundjid.bare or not body:
            return None
        in_room, direct = sender.bare in self._rooms, message["type"] != "groupchat"
        if not direct and sender.resource == client.nick_in(sender.bare):
            self._on_own_message(message["id"])
            return None
        if any(message.xml.find(path) is not None for path in _NO_MESSAGE):
            return None
        # Rooms say nothing themselves that were for us, and what is old there was said to others.
        if (in_room and not sender.resource) or (not direct and (not in_room or _has(message, _DELAY))):
            return None
        who = client.real(sender) if in_room else sender.bare
        text, addressed = body, direct
        if not direct:
            text, addressed = self._addressed(message, body, client.nick_in(sender.bare))
        return Heard(
            id=_identity(message, who),
            sender=Sender(id=who, name=sender.resource if in_room else sender.user),
            place=Place(chat=sender.full if in_room and direct else sender.bare),
            text=text,
            direct=direct,
            addressed=addressed,
            attachments=_attachments(message),
        )

    def _on_own_message(self, name: str) -> None:
        answer = self._sent.get(name)
        if answer is not None and not answer.done():
            answer.set_result(None)

    @staticmethod
    def _addressed(message: Message, body: str, nick: str) -> tuple[str, bool]:
        """The text without a mention at its beginning, and whether it is meant for us."""
        name = rf"(?<!\w){re.escape(nick)}(?!\w)"
        reply = message.xml.find("{urn:xmpp:reply:0}reply")
        to = "" if reply is None else reply.get("to", "")
        text = re.sub(rf"^@?{name}\s*[:,]?\s*", "", body, flags=re.IGNORECASE)
        mentioned = re.search(name, body, re.IGNORECASE) is not None
        return text, mentioned or to == f"{message['from'].bare}/{nick}"


class _Client(ClientXMPP):
    """slixmpp's client for one connection, which leaves nothing behind."""

    def __init__(self, settings: XmppSettings) -> None:
        jid = JID(settings.jid)
        if not jid.resource:
            # Always the same: a new connection ends an old one of ours that the server takes for alive.
            jid.resource = "torana"
        plain = settings.tls == "none"
        login = {"unencrypted_plain": plain, "unencrypted_scram": plain}
        super().__init__(jid, settings.password.get_secret_value(), {"feature_mechanisms": login})
        self.enable_plaintext = plain
        self.enable_starttls = settings.tls == "starttls" or (not plain and not settings.host)
        self.enable_direct_tls = settings.tls == "direct" or (not plain and not settings.host)
        self.max_redirects = -1
        self.roster.auto_subscribe = False
        for plugin in _PLUGINS:
            self.register_plugin(plugin)
        # What is not taken goes to whoever logs in next, which is another object than this.
        self.plugin["xep_0198"].allow_resume = False
        self.refusals: list[str] = []
        self.faults: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def refusal(self) -> Exception:
        """Why nobody is let in."""
        if "temporary-auth-failure" in self.refusals:
            return ConnectionError("the server cannot check passwords at present")
        why = ", ".join(self.refusals) or "it offers no login that is safe"
        return Refused(f"{self.boundjid.host} refuses {self.boundjid.bare}: {why}")

    def nick_in(self, room: str) -> str:
        """The name that we have there."""
        return self.plugin["xep_0045"].our_nicks[None].get(JID(room), "")

    def real(self, occupant: JID) -> str:
        """Who somebody in a room is, if the room tells it, or else what they are called there."""
        jid = self.plugin["xep_0045"].get_jid_property(JID(occupant.bare), occupant.resource, "jid")
        return JID(jid).bare if jid else occupant.full

    async def close(self) -> None:
        """End the stream, and all tasks of the library's for it."""
        self.cancel_connection_attempt()
        with suppress(TimeoutError, NotConnectedError):
            async with asyncio.timeout(2):
                await self.disconnect(wait=1)
        self.abort()
        await asyncio.sleep(0)
        for name in list(self.scheduled_events):
            self.cancel_schedule(name)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def send_raw(self, data: str | bytes) -> None:
        """As the library does it, without a line in the log: passwords go through here."""
        if self.transport is None:
            raise NotConnectedError
        self.transport.write(data.encode() if isinstance(data, str) else data)

    async def run_filters(self) -> None:
        """As the library, as a task that ``close`` ends."""
        self._hold()
        await super().run_filters()

    async def _connect_loop(self) -> asyncio.Future[Any] | None:
        self._hold()
        return await super()._connect_loop()

    async def _handle_stream_features(self, features: StreamFeatures) -> bool | None:
        self._hold()
        return await super()._handle_stream_features(features)

    def _hold(self) -> None:
        if task := asyncio.current_task():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _has(message: Message, path: str) -> bool:
    return message.xml.find(path) is not None


def _identity(message: Message, who: str) -> str:
    """The same for a message that its sender, or the server, sends again; ids are unique only for their sender."""
    name = message["id"]
    if not name:
        return uuid4().hex
    return sha256("\0".join((who, name, message["body"])).encode()).hexdigest()[:32]


def _attachments(message: Message) -> list[Attachment]:
    """Files are addresses, of which the name is told; nothing is fetched from where anybody likes."""
    urls = [x.findtext("{jabber:x:oob}url") or "" for x in message.xml.findall("{jabber:x:oob}x")[:20]]
    return [_attachment(url) for url in urls if url]


def _attachment(url: str) -> Attachment:
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    kinds: dict[str, Literal["image", "voice", "video"]] = {
        "image": "image",
        "audio": "voice",
        "video": "video",
    }
    return Attachment(kind=kinds.get(media_type.partition("/")[0], "file"), name=name, media_type=media_type)


def _fail(answer: asyncio.Future[None], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _answered(wait: asyncio.Future[Any]) -> bool:
    """An error is an answer too: the server was there, and what was sent before had arrived."""
    return wait.done() and not isinstance(wait.exception(), IqTimeout)


def _stream_fault(condition: str) -> Exception:
    if condition == "host-unknown":
        return Refused("the server does not know the account's domain")
    if condition == "conflict":
        return ConnectionError("somebody else has logged in as the same account and resource")
    return ConnectionError(f"the server ends the connection: {condition}")
