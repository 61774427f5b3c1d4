"""Matrix, with matrix-nio: any homeserver, in rooms with and without end-to-end encryption.

The homeserver stores the position in the event stream: the token of ``/sync`` is written to the account's data
after all earlier events are processed, and the next run begins there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote

import nio
from nio.crypto.attachments import decrypt_attachment
from pydantic import Field, SecretStr, model_validator

from torana.connectors.base import (
    Attachment,
    Capabilities,
    Connector,
    ConnectorSettings,
    IncomingMessage,
    MessageSink,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
)
from torana.connectors.platforms.matrix.client import Homeserver, quoted
from torana.connectors.platforms.matrix.position import PolledMessages, SyncPosition
from torana.connectors.transport.concurrency import concurrently
from torana.connectors.transport.http import as_object, text_at
from torana.connectors.transport.markup import html
from torana.connectors.transport.parsing import time_of

_log = logging.getLogger(__name__)

#: Seconds for which the homeserver keeps a poll without events open.
_POLL = 30
#: Limits for missed events: the number for each room, and the maximum age in seconds.
_MOST_EVENTS, _OLDEST = 500, 24 * 60 * 60
#: Maximum number of messages that wait for keys (and of invitations), and how long they wait, in seconds.
_MOST_WAITING, _KEY_TIMEOUT = 200, 300

_EMPTY_FILTER: dict[str, Any] = {"types": []}
_FILTER: dict[str, Any] = {"presence": _EMPTY_FILTER, "account_data": _EMPTY_FILTER} | {
    "room": {"timeline": {"limit": 10}, "ephemeral": _EMPTY_FILTER, "account_data": _EMPTY_FILTER}
    # Always include senders' names: the homeserver would omit the names that it sent in an earlier run.
    | {"state": {"lazy_load_members": True, "include_redundant_members": True}}
}

#: Ids and file URLs in events come from senders, and may be malformed.
_EVENT_ID = re.compile(r"\$[!-~]{1,254}")
_FILE_ADDRESS = re.compile(r"mxc://([A-Za-z0-9.:\[\]-]{1,255})/([A-Za-z0-9_-]{1,255})")
_FILES: Mapping[str, Literal["image", "file", "video"]] = {
    "m.image": "image",
    "m.file": "file",
    "m.audio": "file",
    "m.video": "video",
}
_MESSAGE_TYPES = {"m.text", "m.notice", "m.emote", *_FILES}

#: The quotation of the original message, which older clients write before a reply.
_QUOTED = re.compile(r"\A(?:>[^\n]*\n)+\n?")
_QUOTED_HTML = re.compile(r"\A\s*<mx-reply>.*?</mx-reply>", re.DOTALL)

_LINK = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)


class MatrixSettings(ConnectorSettings):
    """The settings of an account on a homeserver: its token, or its password."""

    homeserver: str = Field(
        pattern=r"^https?://\S+$", description="The homeserver's address, such as `https://matrix.example.org`."
    )
    user: str = Field(pattern=r"^@[^:\s]+:\S+$", description="The account's id, such as `@torana:example.org`.")
    access_token: SecretStr | None = Field(default=None, description="The account's token, or set `password`.")
    password: SecretStr | None = Field(default=None, description="The password, or set `access_token`.")
    device: str = Field(
        default="TORANA", min_length=1, description="The device id with `password`; a token has its own."
    )
    encryption: bool = Field(
        default=False, description="Whether to read and write in encrypted rooms; otherwise they are ignored."
    )
    store: Path | None = Field(
        default=None,
        description="The directory with encryption keys of an earlier version, which are copied once.",
    )
    join: Literal["invited", "never"] = Field(default="invited", description="Whether to accept invitations.")
    most_rooms: int = Field(default=200, ge=1, description="Maximum number of joined rooms.")

    @model_validator(mode="after")
    def _one_credential(self) -> MatrixSettings:
        if (self.access_token is None) == (self.password is None):
            raise ValueError("set either access_token or password")
        return self


class Matrix(Connector[MatrixSettings]):
    """One account on one homeserver, on one device."""

    Settings = MatrixSettings
    global_ids = True
    abilities = Capabilities(
        # An event has at most 65,536 bytes: the text as HTML and as plain text, in base64 if it is encrypted.
        # The size is that of JSON in ASCII, with "é" as six bytes.
        length=20_000,
        measure=lambda text: len(json.dumps(text)),
        repeat="keyed",
        render=html,
        edits=True,
        # By default, Synapse accepts a burst of ten messages or edits, and then one in five seconds.
        edit_every=5.0,
        pace=1.0,
        typing_every=20.0,
        threads=True,
    )

    def __init__(self, settings: MatrixSettings) -> None:
        super().__init__(settings)
        self._home = Homeserver(
            address=settings.homeserver.rstrip("/"),
            user=settings.user,
            device=settings.device,
        )
        self._name = ""
        #: The account's direct rooms (`m.direct`), and rooms with a typing indicator.
        self._direct: set[str] = set()
        self._typing: set[str] = set()
        self._invitations: asyncio.Queue[str] = asyncio.Queue(_MOST_WAITING)
        #: Messages without keys yet, and the time until which they wait.
        self._unread: dict[str, tuple[nio.MegolmEvent, float]] = {}
        self._warned: set[str] = set()

    @property
    def credentials(self) -> str:
        """Return the account's id: the account has one sync token, so only one process may use it."""
        return self.settings.user

    @property
    def link(self) -> str | None:
        return f"https://matrix.to/#/{quoted(self.settings.user)}"

    async def run(self, sink: MessageSink) -> None:
        password, token = self.settings.password, self.settings.access_token
        joining = asyncio.create_task(self._join())
        try:
            await self._home.log_in(
                password=password.get_secret_value() if password else None,
                token=token.get_secret_value() if token else None,
            )
            if self.settings.encryption or self.settings.store:
                await self._home.open_keys(sink, self.settings.store)
            await self._listen(sink)
        finally:
            joining.cancel()
            try:
                await asyncio.wait([joining])
            finally:  # also after a second cancellation
                await self._home.leave()

    async def _listen(self, sink: MessageSink) -> None:
        home = self._home
        self._name = text_at(await home.call("GET", f"/profile/{quoted(home.user_id)}"), "displayname")
        direct = await home.call("GET", home.account_data_path("m.direct"))
        lists = [cast("list[object]", rooms) for rooms in direct.values() if isinstance(rooms, list)]
        self._direct = {room for rooms in lists for room in rooms if isinstance(room, str)}
        position = SyncPosition(home)
        since = await position.load()
        response = await home.poll(_FILTER, since)
        await home.exchange_keys()
        sink.ready()
        if not since:  # messages before the first run are not for the agent
            response.rooms.join.clear()
            await position.store(response.next_batch)
        async with concurrently(sink) as hear:  # a slow message delays only its own chat
            while True:
                async with position.poll(hear) as messages:
                    await self._take(response, since, sink, messages)
                since = response.next_batch
                response = await home.poll(_FILTER, since, wait=_POLL)
                sink.alive()
                await home.exchange_keys()

    async def _take(
        self, response: nio.SyncResponse, since: str, sink: MessageSink, messages: PolledMessages
    ) -> None:
        """Begin to process the events of a poll."""
        home = self._home
        self._accept_invitations(response.rooms.invite)
        for room_id in response.rooms.leave:
            home.rooms.pop(room_id, None)
        others = False
        for room_id, info in response.rooms.join.items():
            events = await self._events(room_id, info, since, sink)
            for event in events:
                await self._hear(home.rooms[room_id], event, messages)
            await _leave_if_alone(home, home.rooms[room_id], events)
            others = others or any(event.sender != home.user_id for event in events)
        await self._retry_decryption(messages, keys=bool(response.to_device_events))
        if others and not self._unread:
            messages.keep(response.next_batch)

    async def _events(
        self, room_id: str, info: nio.RoomInfo, since: str, sink: MessageSink
    ) -> Sequence[nio.Event]:
        """Return the events of a room since the last poll; of a new room, since the invitation."""
        events = _well_formed(info)
        came = "join" in _memberships(events, self._home.user_id)
        if info.timeline.limited and info.timeline.prev_batch:
            end = None if came else since
            events = await self._before(room_id, info.timeline.prev_batch, end, sink) + events
        if came:
            memberships = _memberships(events, self._home.user_id)
            beginning = "invite" if "invite" in memberships else "join"
            events = events[len(events) - memberships[::-1].index(beginning) :]
        oldest = (time.time() - _OLDEST) * 1000
        fresh = [event for event in events[-_MOST_EVENTS:] if event.server_timestamp > oldest]
        if len(fresh) < len(events):
            _log.warning("matrix_events_skipped", extra={"room": room_id, "events": len(events) - len(fresh)})
        return fresh

    async def _before(self, room_id: str, start: str, end: str | None, sink: MessageSink) -> list[nio.Event]:
        """Return the events that a poll omitted, back to ``end`` or the invitation, oldest first."""
        found: list[nio.Event] = []
        while start and len(found) < _MOST_EVENTS:
            try:
                page = await self._home.earlier(room_id, start, end)
            except PermanentError as e:
                _log.warning("matrix_room_not_readable", extra={"room": room_id, "reason": str(e)})
                break
            sink.alive()
            events = _well_formed(page)
            found += events
            invited = end is None and "invite" in _memberships(events, self._home.user_id)
            start = "" if invited or not page.chunk else page.end or ""
        return found[::-1]

    def _accept_invitations(self, rooms: Iterable[str]) -> None:
        for room_id in rooms:
            if self.settings.join == "invited" and not self._invitations.full():
                self._invitations.put_nowait(room_id)

    async def _join(self) -> None:
        """Join rooms one after another, in a separate task: on slow servers a join takes minutes."""
        while True:
            room_id = await self._invitations.get()
            if len(self._home.rooms) >= self.settings.most_rooms:
                _log.warning("matrix_too_many_rooms", extra={"room": room_id})
                continue
            try:
                await self._home.join(room_id)
            except RetryLater as e:
                await asyncio.sleep(e.seconds or _POLL)
                self._accept_invitations([room_id])
            except Exception as e:  # noqa: BLE001 - a failure must not affect other rooms
                _log.warning("matrix_join_failed", extra={"room": room_id, "reason": str(e)})

    async def _is_direct(self, room: nio.MatrixRoom) -> bool:
        counts = room.summary
        if counts is None or None in (counts.joined_member_count, counts.invited_member_count):
            answer = await self._home.call("GET", f"/rooms/{quoted(room.room_id)}/members?not_membership=leave")
            kinds = [as_object(one.get("content")).get("membership") for one in answer.get("chunk", ())]
            room.summary = nio.RoomSummary(kinds.count("invite"), kinds.count("join"), [])
        return room.room_id in self._direct or room.member_count == 2

    async def _hear(self, room: nio.MatrixRoom, event: nio.Event, messages: PolledMessages) -> None:
        if event.sender == self._home.user_id:
            return
        if room.encrypted and self._home.olm is None:
            if room.room_id not in self._warned:
                self._warned.add(room.room_id)
                _log.warning(
                    "matrix_room_is_encrypted", extra={"room": room.room_id, "cure": "set `encryption`"}
                )
        elif isinstance(event, nio.MegolmEvent):
            event.room_id = room.room_id
            if len(self._unread) < _MOST_WAITING:
                self._unread[event.event_id] = (event, time.monotonic() + _KEY_TIMEOUT)
        elif isinstance(event, nio.RoomMessage) and (heard := await self._parse_event(room, event)):
            await messages.hear(heard)

    async def _retry_decryption(self, messages: PolledMessages, *, keys: bool) -> None:
        """Process messages whose keys have arrived, and drop messages that have waited too long."""
        for event_id, (event, until) in list(self._unread.items()):
            room = self._home.rooms.get(event.room_id)
            if room is None or time.monotonic() > until:
                _log.warning("matrix_key_missing", extra={"room": event.room_id, "event": event_id})
            elif keys:
                try:
                    readable = cast("nio.Event", self._home.decrypt_event(event))
                except nio.EncryptionError:
                    continue
                await self._hear(room, readable, messages)
            else:
                continue
            del self._unread[event_id]

    async def _parse_event(self, room: nio.MatrixRoom, event: nio.RoomMessage) -> IncomingMessage | None:
        content = as_object(event.source.get("content"))
        kind = text_at(content, "msgtype")
        relation = as_object(content.get("m.relates_to"))
        if kind not in _MESSAGE_TYPES or relation.get("rel_type") == "m.replace":
            return None
        thread = _event_id(relation.get("event_id")) if relation.get("rel_type") == "m.thread" else ""
        answered = _event_id(as_object(relation.get("m.in_reply_to")).get("event_id"))
        mentioned, text = _without_mention(
            content, _words(content, kind, reply=bool(answered)), user=self._home.user_id, name=self._name
        )
        direct = await self._is_direct(room)
        chosen = answered
        if thread and relation.get("is_falling_back") is True:
            chosen, answered = "", thread  # the reply is a fallback for clients without threads
        name = room.user_name(event.sender) or event.sender
        return IncomingMessage(
            id=event.event_id,
            sender=Sender(id=event.sender, name=name, automatic=kind == "m.notice"),
            place=Place(
                chat=room.room_id,
                thread=thread or None,
                reply_to={} if direct and not thread else {"event": event.event_id},
            ),
            text=text,
            direct=direct,
            addressed=direct or mentioned,
            replies_to_us=partial(self._is_ours, room, parent) if (parent := answered or thread) else None,
            attachments=[self._attachment(content, kind)] if kind in _FILES else [],
            said_at=time_of(event.server_timestamp, per_second=1_000),
            in_reply_to=chosen or None,
        )

    async def _is_ours(self, room: nio.MatrixRoom, event_id: str) -> bool:
        try:
            event = await self._home.call("GET", f"/rooms/{quoted(room.room_id)}/event/{quoted(event_id)}")
        except PermanentError:
            return False
        return event.get("sender") == self._home.user_id

    def _attachment(self, content: Mapping[str, Any], kind: str) -> Attachment:
        info = as_object(content.get("info"))
        size = info.get("size")
        return Attachment(
            kind="voice" if "org.matrix.msc3245.voice" in content else _FILES[kind],
            name=text_at(content, "filename") or text_at(content, "body"),
            media_type=text_at(info, "mimetype") or "application/octet-stream",
            size=size if isinstance(size, int) else None,
            fetch=partial(self._fetch, content),
        )

    async def _fetch(self, content: Mapping[str, Any], limit: int) -> bytes:
        secret = as_object(content.get("file"))
        address = _FILE_ADDRESS.fullmatch(text_at(secret if secret.get("url") else content, "url"))
        if address is None:
            raise PermanentError("the file has no address")
        data = await self._home.fetch(address[1], address[2], limit)
        return _decrypt(data, secret) if secret else data

    async def send(self, part: Part) -> str:
        chat = part.place.chat
        room = self._home.rooms.get(chat)
        if room is None:
            raise PermanentError("the account is not in the room")
        if room.encrypted and self._home.olm is None:
            raise PermanentError("the room is encrypted, and `encryption` is not set")
        sent = await self._home.send_event(room, _content(part), key=_transaction(part))
        if chat in self._typing:
            await self.typing(part.place, shown=False)
        return sent

    async def typing(self, place: Place, *, shown: bool = True) -> None:
        """Show or hide the typing indicator; a message does not hide it."""
        (self._typing.add if shown else self._typing.discard)(place.chat)
        with suppress(PermanentError, RetryLater, OutcomeUnknown, TimeoutError):
            async with asyncio.timeout(5):
                await self._home.room_typing(place.chat, shown, 30_000)


async def _leave_if_alone(home: Homeserver, room: nio.MatrixRoom, events: Sequence[nio.Event]) -> None:
    """Leave a room without other members, so that it does not count towards ``most_rooms``."""
    left = any(isinstance(event, nio.RoomMemberEvent) and event.membership == "leave" for event in events)
    counts = room.summary
    if left and counts and (counts.joined_member_count, counts.invited_member_count) == (1, 0):
        with suppress(PermanentError, RetryLater, OutcomeUnknown):
            await home.room_leave(room.room_id)


def _well_formed(of: nio.RoomInfo | nio.RoomMessagesResponse) -> list[nio.Event]:
    events = cast("list[object]", of.timeline.events if isinstance(of, nio.RoomInfo) else of.chunk)
    return [event for event in events if isinstance(event, nio.Event)]


def _memberships(events: Sequence[nio.Event], user: str) -> list[str | None]:
    """Return the account's new membership for each event, or None if the event does not change it."""
    own = {
        event.event_id: event.membership
        for event in events
        if isinstance(event, nio.RoomMemberEvent) and event.state_key == user
        if event.membership != event.prev_membership
    }
    return [own.get(event.event_id) for event in events]


def _event_id(value: object) -> str:
    return value if isinstance(value, str) and _EVENT_ID.fullmatch(value) else ""


def _words(content: Mapping[str, Any], kind: str, *, reply: bool) -> str:
    body = text_at(content, "body")
    if kind in _FILES and text_at(content, "filename") in {"", body}:
        return ""
    return _QUOTED.sub("", body) if reply else body


def _content(part: Part) -> dict[str, Any]:
    """Return the event content of a part. Empty ``m.mentions`` prevents mentions."""
    body = _plain(part.text)
    content: dict[str, Any] = {
        "msgtype": "m.text",  # clients do not notify users of an m.notice
        "body": body,
        "format": "org.matrix.custom.html",
        "formatted_body": part.text,
        "m.mentions": {},
    }
    answered = part.place.reply_to.get("event")
    if part.edits:
        return {
            "msgtype": "m.text",
            "body": f"* {body[:200]}",  # for clients without edits; the whole text could exceed the limit
            "m.mentions": {},
            "m.new_content": content,
            "m.relates_to": {"rel_type": "m.replace", "event_id": part.edits},
        }
    if thread := part.place.thread:
        reply = {"is_falling_back": True, "m.in_reply_to": {"event_id": answered or thread}}
        content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread, **reply}
    elif answered and part.number == 0:
        content["m.relates_to"] = {"m.in_reply_to": {"event_id": answered}}
    return content


def _transaction(part: Part) -> str:
    """Return the transaction id, by which the homeserver detects repetition; edits differ by their text."""
    return f"{part.key}-{hashlib.sha256(part.text.encode()).hexdigest()[:16]}" if part.edits else part.key


def _plain(markup: str) -> str:
    """Convert the connector's own HTML to plain text."""
    text = re.sub(r"<br>|</?(?:blockquote|pre)>", "\n", markup)
    text = _LINK.sub(lambda link: link[2] if link[1] == link[2] else f"{link[2]} ({link[1]})", text)
    return unescape(re.sub(r"</?\w+>", "", text)).strip("\n")


def _decrypt(data: bytes, secret: Mapping[str, Any]) -> bytes:
    try:
        return decrypt_attachment(data, secret["key"]["k"], secret["hashes"]["sha256"], secret["iv"])
    except (nio.EncryptionError, LookupError, TypeError, ValueError) as e:
        raise PermanentError("the file cannot be decrypted") from e


def _without_mention(content: Mapping[str, Any], text: str, *, user: str, name: str) -> tuple[bool, str]:
    """Return whether the account is mentioned, and the text without a leading mention."""
    names = f"{re.escape(user)}|@?{re.escape(name)}" if name else re.escape(user)
    whole = re.escape(user) + r"(?![\w-]|[.:]\w)"
    shown = unquote(_QUOTED_HTML.sub("", text_at(content, "formatted_body")))
    places = (text, shown, str(content.get("m.mentions")))
    named = re.match(rf"\s*(?:{names})[:,](?=\s|\Z)", text, re.IGNORECASE) is not None
    mentioned = named or any(re.search(whole, place) for place in places)
    if mentioned:
        text = re.sub(rf"\A\s*(?:{names})[:,]?(?=\s|\Z)\s*", "", text, flags=re.IGNORECASE)
    return mentioned, text
