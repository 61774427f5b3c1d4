"""Matrix, with matrix-nio: any homeserver, in rooms with and without end-to-end encryption.

The homeserver remembers for us how far we have listened: the token of ``/sync`` is put into the account's own
data after everything before it was heard, and is where the next run begins.
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
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote, unquote

import nio
from aiohttp import ClientError, ClientResponse
from nio.crypto.attachments import decrypt_attachment
from pydantic import Field, SecretStr, model_validator

from torana.connectors.base import (
    Abilities,
    Attachment,
    Connector,
    ConnectorSettings,
    Ears,
    Heard,
    Part,
    Place,
    Refused,
    Sender,
    TooLarge,
    TryLater,
    Unsure,
)
from torana.connectors.markup import html

_log = logging.getLogger(__name__)
# It writes whole answers at DEBUG, a login's with the token.
logging.getLogger("nio.responses").setLevel(logging.INFO)

#: Seconds for a call, and for a file and the first answer, which has the state of all rooms.
_TIMEOUT, _LONG_TIMEOUT = 30, 300
#: Milliseconds for which the homeserver keeps a poll open in which nothing happens.
_POLL = 30_000

#: Of what came while nobody listened, or faster than polls: so many events of a room, and none that is older.
_MOST_EVENTS, _OLDEST = 500, 24 * 60 * 60
#: How many messages wait for their keys, and how long; and how many invitations wait.
_MOST_WAITING, _KEY_PATIENCE = 1_000, 300

_SINCE = "torana.since"
_NOTHING: dict[str, Any] = {"types": []}
_FILTER: dict[str, Any] = {"presence": _NOTHING, "account_data": _NOTHING} | {
    "room": {"timeline": {"limit": 50}, "ephemeral": _NOTHING, "account_data": _NOTHING}
    # Names of those who speak, always: the homeserver thinks that we remember them from the last run.
    | {"state": {"lazy_load_members": True, "include_redundant_members": True}}
}

_FILE_ADDRESS = re.compile(r"mxc://([A-Za-z0-9.:\[\]-]{1,255})/([A-Za-z0-9_-]{1,255})")
_FILES: Mapping[str, Literal["image", "file", "video"]] = {
    "m.image": "image",
    "m.file": "file",
    "m.audio": "file",
    "m.video": "video",
}
_HEARD = {"m.text", "m.notice", "m.emote", *_FILES}

#: What older clients write before a reply: the message that is answered, as a quotation.
_QUOTED = re.compile(r"\A(?:>[^\n]*\n)+\n?")
_QUOTED_HTML = re.compile(r"<mx-reply>.*?</mx-reply>", re.DOTALL)

_LINK = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)

_q = partial(quote, safe="")
R = TypeVar("R")


class MatrixSettings(ConnectorSettings):
    """What the settings say of an account on a homeserver: its token, or its password."""

    homeserver: str = Field(
        pattern=r"^https?://\S+$", description="The homeserver's address, such as `https://matrix.example.org`."
    )
    user: str = Field(pattern=r"^@[^:\s]+:\S+$", description="The account's id, such as `@torana:example.org`.")
    access_token: SecretStr | None = Field(default=None, description="The account's token; or `password`.")
    password: SecretStr | None = Field(default=None, description="The account's password; or `access_token`.")
    device: str = Field(
        default="TORANA", min_length=1, description="The device's id with `password`; a token has one already."
    )
    store: Path | None = Field(
        default=None, description="A directory for keys; without it encrypted rooms are left alone."
    )
    join: Literal["invited", "never"] = Field(default="invited", description="Whether to accept invitations.")
    most_rooms: int = Field(default=200, ge=1, description="In so many rooms, no more are accepted.")

    @model_validator(mode="after")
    def _one_credential(self) -> MatrixSettings:
        if (self.access_token is None) == (self.password is None):
            raise ValueError("give either access_token or password")
        return self


class _Client(nio.AsyncClient):
    """nio's client, where errors are errors and nothing more."""

    async def parse_body(self, transport_response: ClientResponse) -> dict[Any, Any]:
        """As ``AsyncClient``; what lies in front of a homeserver has no words of Matrix for its errors."""
        body = await super().parse_body(transport_response)
        wordless = transport_response.status >= 400 and "errcode" not in body
        return {"errcode": "", "error": "no answer of Matrix"} if wordless else body

    async def receive_response(self, response: nio.Response) -> None:
        """As ``AsyncClient``; that takes the refusal of a key for a logout."""
        if not isinstance(response, nio.ErrorResponse):
            await super().receive_response(response)


class Matrix(Connector[MatrixSettings]):
    """One account on one homeserver, on one device."""

    Settings = MatrixSettings
    abilities = Abilities(
        # An event has at most 65,536 bytes: the text as HTML and once more plain, and base64 where it is
        # encrypted. Counted as it is written then, with "é" as six bytes.
        length=20_000,
        measure=lambda text: len(json.dumps(text)),
        repeat="keyed",
        render=html,
        edits=True,
        # Synapse takes ten messages at once and then one in five seconds, edits too, unless told otherwise.
        edit_every=5.0,
        pace=1.0,
        typing_every=20.0,
        threads=True,
    )

    def __init__(self, settings: MatrixSettings) -> None:
        super().__init__(settings)
        # nio would try again by itself, for ever.
        config = nio.AsyncClientConfig(max_limit_exceeded=0, max_timeouts=0, request_timeout=_TIMEOUT)
        home, store = settings.homeserver.rstrip("/"), str(settings.store or "")
        self._client = _Client(home, settings.user, settings.device, store, config)
        self._connected = False
        self._name = ""
        #: The rooms that the account itself calls direct, and those that are shown that we type.
        self._direct: set[str] = set()
        self._typing: set[str] = set()
        self._invitations: asyncio.Queue[str] = asyncio.Queue(_MOST_WAITING)
        #: Messages whose keys have not come yet, and when they are given up.
        self._unread: dict[str, tuple[nio.MegolmEvent, float]] = {}
        self._warned: set[str] = set()
        self._keys = asyncio.Lock()

    @property
    def credentials(self) -> str:
        """As ``Connector``: the account, whose data has one token."""
        return self.settings.user

    async def run(self, ears: Ears) -> None:
        """As ``Connector``."""
        joining = asyncio.create_task(self._join())
        try:
            await self._log_in()
            await self._listen(ears)
        finally:
            self._connected = False
            joining.cancel()
            try:
                await asyncio.wait([joining])
            finally:  # cancelled once more, too
                await self._client.close()
                if self._client.store is not None:
                    self._client.store.database.close()

    async def _log_in(self) -> None:
        settings, client = self.settings, self._client
        if settings.store is not None:
            settings.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        if settings.password is not None:
            password = settings.password.get_secret_value()
            _checked(await client.login(password, device_name="Torana"), nio.LoginResponse)
        elif settings.access_token is not None:
            client.access_token, client.device_id = settings.access_token.get_secret_value(), ""
            who = await client.whoami()  # from which the client takes user and device
            if isinstance(who, nio.WhoamiError) and who.status_code == "M_UNKNOWN_TOKEN":
                raise Refused("the access token is not known to the homeserver, or not any more")
            _checked(who, nio.WhoamiResponse)
            if settings.store is not None and client.device_id:
                client.load_store()
        if client.user_id != settings.user:
            raise Refused(f"the credentials are those of {client.user_id}, not of {settings.user}")
        if settings.store is not None and client.olm is None:
            raise Refused("the access token belongs to no device, and keys belong to devices")

    async def _listen(self, ears: Ears) -> None:
        client = self._client
        self._name = _text((await self._call("GET", f"/profile/{_q(client.user_id)}")).get("displayname"))
        direct = await self._call("GET", self._data("m.direct"))
        self._direct = {room for rooms in direct.values() for room in rooms}
        since = _text((await self._call("GET", self._data(_SINCE))).get("token"))
        async with asyncio.timeout(_LONG_TIMEOUT):
            first = await client.sync(0, _FILTER, since, full_state=True if since else None)
        response = _checked(first, nio.SyncResponse)
        await self._exchange_keys()
        self._connected = True
        ears.ready()
        if not since:  # what was said before we ever listened was not said to us
            response.rooms.join.clear()
            await self._write_down(response.next_batch)
        while True:
            await self._take(response, since, ears)
            since = response.next_batch
            response = _checked(await client.sync(_POLL, _FILTER, since), nio.SyncResponse)
            ears.alive()
            await self._exchange_keys()

    async def _take(self, response: nio.SyncResponse, since: str, ears: Ears) -> None:
        """Hear all that a poll brought, and only then have the homeserver remember that."""
        client = self._client
        self._be_invited(response.rooms.invite)
        for room_id in response.rooms.leave:
            client.rooms.pop(room_id, None)
        others = False
        for room_id, info in response.rooms.join.items():
            events = await self._events(room_id, info, since)
            for event in events:
                await self._hear(client.rooms[room_id], event, ears)
            others = others or any(event.sender != client.user_id for event in events)
        await self._read_again(ears, keys=bool(response.to_device_events))
        if others and not self._unread:
            await self._write_down(response.next_batch)

    async def _write_down(self, since: str) -> None:
        """Have the homeserver remember that all before was heard; else it is told again, with the same ids."""
        try:
            await self._call("PUT", self._data(_SINCE), {"token": since})
        except (Refused, TryLater, Unsure) as e:
            _log.warning("matrix_since_not_kept", extra={"reason": str(e)})

    async def _events(self, room_id: str, info: nio.RoomInfo, since: str) -> Sequence[nio.Event]:
        """What was said in a room since then; in one that is new to us, since we were invited."""
        events = _well_formed(info)
        came = "join" in _memberships(events, self._client.user_id)
        if info.timeline.limited and info.timeline.prev_batch:
            events = await self._before(room_id, info.timeline.prev_batch, None if came else since) + events
        if came:
            memberships = _memberships(events, self._client.user_id)
            beginning = "invite" if "invite" in memberships else "join"
            events = events[len(events) - memberships[::-1].index(beginning) :]
        oldest = (time.time() - _OLDEST) * 1000
        fresh = [event for event in events[-_MOST_EVENTS:] if event.server_timestamp > oldest]
        if len(fresh) < len(events):
            _log.warning("matrix_events_left_out", extra={"room": room_id, "events": len(events) - len(fresh)})
        return fresh

    async def _before(self, room_id: str, start: str, end: str | None) -> list[nio.Event]:
        """What a poll left out, back to ``end`` or our invitation, as far as we look; the oldest first."""
        found: list[nio.Event] = []
        while start and len(found) < _MOST_EVENTS:
            try:
                page = await self._client.room_messages(room_id, start, end, limit=100)
                page = _checked(page, nio.RoomMessagesResponse)
            except Refused as e:
                _log.warning("matrix_room_not_readable", extra={"room": room_id, "reason": str(e)})
                break
            events = _well_formed(page)
            found += events
            invited = end is None and "invite" in _memberships(events, self._client.user_id)
            start = "" if invited or not page.chunk else page.end or ""
        return found[::-1]

    def _be_invited(self, rooms: Iterable[str]) -> None:
        for room_id in rooms:
            if self.settings.join == "invited" and not self._invitations.full():
                self._invitations.put_nowait(room_id)

    async def _join(self) -> None:
        """Join rooms one after another, beside the listening: on slow servers it takes minutes."""
        while True:
            room_id = await self._invitations.get()
            if len(self._client.rooms) >= self.settings.most_rooms:
                _log.warning("matrix_too_many_rooms", extra={"room": room_id})
                continue
            try:
                _checked(await self._client.join(room_id), nio.JoinResponse)
            except TryLater as e:
                await asyncio.sleep(e.seconds or _TIMEOUT)
                self._be_invited([room_id])
            except (Refused, Unsure, ClientError, TimeoutError) as e:
                _log.warning("matrix_join_failed", extra={"room": room_id, "reason": str(e)})

    async def _is_direct(self, room: nio.MatrixRoom) -> bool:
        counts = room.summary
        if counts is None or None in (counts.joined_member_count, counts.invited_member_count):
            answer = await self._call("GET", f"/rooms/{_q(room.room_id)}/members?not_membership=leave")
            kinds = [_mapping(one.get("content")).get("membership") for one in answer.get("chunk", ())]
            room.summary = nio.RoomSummary(kinds.count("invite"), kinds.count("join"), [])
        return room.room_id in self._direct or room.member_count == 2

    async def _hear(self, room: nio.MatrixRoom, event: nio.Event, ears: Ears) -> None:
        if event.sender == self._client.user_id:
            return
        if room.encrypted and self._client.olm is None:
            if room.room_id not in self._warned:
                self._warned.add(room.room_id)
                _log.warning("matrix_room_is_encrypted", extra={"room": room.room_id, "cure": "set `store`"})
        elif isinstance(event, nio.MegolmEvent):
            event.room_id = room.room_id
            if len(self._unread) < _MOST_WAITING:
                self._unread[event.event_id] = (event, time.monotonic() + _KEY_PATIENCE)
        elif isinstance(event, nio.RoomMessage) and (heard := await self._heard(room, event)):
            await ears.hear(heard)

    async def _read_again(self, ears: Ears, *, keys: bool) -> None:
        """Hear the messages whose keys have come, and give up those whose keys do not come."""
        for event_id, (event, until) in list(self._unread.items()):
            room = self._client.rooms.get(event.room_id)
            if room is None or time.monotonic() > until:
                _log.warning("matrix_key_missing", extra={"room": event.room_id, "event": event_id})
            elif keys:
                try:
                    readable = cast("nio.Event", self._client.decrypt_event(event))
                except nio.EncryptionError:
                    continue
                await self._hear(room, readable, ears)
            else:
                continue
            del self._unread[event_id]

    async def _heard(self, room: nio.MatrixRoom, event: nio.RoomMessage) -> Heard | None:
        content = _mapping(event.source.get("content"))
        kind = _text(content.get("msgtype"))
        relation = _mapping(content.get("m.relates_to"))
        if kind not in _HEARD or relation.get("rel_type") == "m.replace":
            return None
        thread = _text(relation.get("event_id")) if relation.get("rel_type") == "m.thread" else ""
        answered = _text(_mapping(relation.get("m.in_reply_to")).get("event_id"))
        mentioned, text = self._without_mention(content, _words(content, kind, reply=bool(answered)))
        direct = await self._is_direct(room)
        if thread and relation.get("is_falling_back") is True:
            answered = thread  # the reply is for clients that know no threads
        name = room.user_name(event.sender) or event.sender
        return Heard(
            id=event.event_id,
            sender=Sender(id=event.sender, name=name, automatic=kind == "m.notice"),
            place=Place(
                chat=room.room_id,
                thread=thread or None,
                reply_to={} if direct and not thread else {"event": event.event_id},
            ),
            text=text,
            direct=direct,
            addressed=direct or mentioned or await self._is_ours(room, answered or thread),
            attachments=[self._attachment(content, kind)] if kind in _FILES else [],
        )

    def _without_mention(self, content: Mapping[str, Any], text: str) -> tuple[bool, str]:
        """Whether the account is mentioned, and the text without that at its beginning."""
        user = self._client.user_id
        names = f"{re.escape(user)}|@?{re.escape(self._name)}" if self._name else re.escape(user)
        whole = re.escape(user) + r"(?![\w-]|[.:]\w)"
        shown = unquote(_QUOTED_HTML.sub("", _text(content.get("formatted_body"))))
        places = (text, shown, str(content.get("m.mentions")))
        named = re.match(rf"\s*(?:{names})[:,](?=\s|\Z)", text, re.IGNORECASE) is not None
        mentioned = named or any(re.search(whole, place) for place in places)
        if mentioned:
            text = re.sub(rf"\A\s*(?:{names})[:,]?(?=\s|\Z)\s*", "", text, flags=re.IGNORECASE)
        return mentioned, text

    async def _is_ours(self, room: nio.MatrixRoom, event_id: str) -> bool:
        path = f"/rooms/{_q(room.room_id)}/event/{_q(event_id)}"
        return bool(event_id) and (await self._call("GET", path)).get("sender") == self._client.user_id

    def _attachment(self, content: Mapping[str, Any], kind: str) -> Attachment:
        info = _mapping(content.get("info"))
        size = info.get("size")
        return Attachment(
            kind="voice" if "org.matrix.msc3245.voice" in content else _FILES[kind],
            name=_text(content.get("filename")) or _text(content.get("body")),
            media_type=_text(info.get("mimetype")) or "application/octet-stream",
            size=size if isinstance(size, int) else None,
            fetch=partial(self._fetch, content),
        )

    async def _fetch(self, content: Mapping[str, Any], limit: int) -> bytes:
        secret = _mapping(content.get("file"))
        address = _FILE_ADDRESS.fullmatch(_text(secret.get("url") or content.get("url")))
        if address is None:
            raise Refused("the file has no address")
        self._assure_connection()
        path = f"/_matrix/client/v1/media/download/{_q(address[1])}/{address[2]}"
        headers = {"Authorization": f"Bearer {self._client.access_token}"}
        async with await self._client.send("GET", path, None, headers, timeout=_LONG_TIMEOUT) as response:
            if response.status != 200:
                raise _fault(response.status, response.headers, await self._client.parse_body(response))
            if (response.content_length or 0) > limit:
                raise TooLarge(f"the file has {response.content_length} bytes")
            data = bytearray()
            async for chunk in response.content.iter_chunked(65_536):
                data += chunk
                if len(data) > limit:
                    raise TooLarge(f"the file has more than {limit} bytes")
        return _decrypted(bytes(data), secret) if secret else bytes(data)

    async def send(self, part: Part) -> str:
        """As ``Connector``."""
        self._assure_connection()
        chat = part.place.chat
        room = self._client.rooms.get(chat)
        if room is None or (room.encrypted and self._client.olm is None):
            raise Refused("the account is not in the room, or the room is encrypted and `store` is not set")
        try:
            if room.encrypted:
                await self._share_key(room)
            message = self._client.room_send(chat, "m.room.message", _content(part), _transaction(part), True)
            sent = _checked(await message, nio.RoomSendResponse)
        except (ClientError, TimeoutError) as e:
            raise Unsure(f"the homeserver did not answer ({type(e).__name__})") from e
        if chat in self._typing:
            await self.typing(part.place, shown=False)
        return sent.event_id

    async def typing(self, place: Place, *, shown: bool = True) -> None:
        """As ``Connector``; not ``shown`` it is no longer shown, which a message does not do by itself."""
        (self._typing.add if shown else self._typing.discard)(place.chat)
        with suppress(TryLater, ClientError, TimeoutError):
            self._assure_connection()
            async with asyncio.timeout(5):
                await self._client.room_typing(place.chat, shown, 30_000)

    def _assure_connection(self) -> None:
        if not self._connected:  # nio would open it again, and nobody would close it
            raise TryLater("not connected")

    async def _exchange_keys(self) -> None:
        """What a device has to tell others and to ask of them, so that all can read."""
        client = self._client
        async with self._keys:
            try:
                if client.should_upload_keys:
                    _checked(await client.keys_upload(), nio.KeysUploadResponse)
                if client.should_query_keys:
                    _checked(await client.keys_query(), nio.KeysQueryResponse)
                if client.should_claim_keys:
                    claimed = await client.keys_claim({**client.get_users_for_key_claiming()})
                    _checked(claimed, nio.KeysClaimResponse)
            except (Refused, TryLater, Unsure) as e:
                _log.warning("matrix_keys_not_exchanged", extra={"reason": str(e)})
            await client.send_to_device_messages()

    async def _share_key(self, room: nio.MatrixRoom) -> None:
        """Give the room's devices the key of what is written next.

        nio would do so as it sends, and take it for done when it was not: nobody could read the message.
        """
        client = self._client
        async with self._keys:
            if not room.members_synced:
                _checked(await client.joined_members(room.room_id), nio.JoinedMembersResponse)
            if client.should_query_keys:
                _checked(await client.keys_query(), nio.KeysQueryResponse)
            if client.olm is None or not client.olm.should_share_group_session(room.room_id):
                return
            if missing := client.get_missing_sessions(room.room_id):
                _checked(await client.keys_claim({**missing}), nio.KeysClaimResponse)
            try:
                answer = await client.share_group_session(room.room_id, ignore_unverified_devices=True)
            finally:
                # nio leaves it there where it failed early, and the next message would wait for it for ever.
                client.sharing_session.pop(room.room_id, None)
            shared = cast("set[object]", _checked(answer, nio.ShareGroupSessionResponse).users_shared_with)
            devices = [one for user in room.users for one in client.device_store.active_user_devices(user)]
            others = [one.curve25519 for one in devices if one.id != client.device_id]
            if not shared and any(client.olm.session_store.get(key) for key in others):
                client.invalidate_outbound_session(room.room_id)
                raise TryLater("the room's devices did not get the key")

    def _data(self, kind: str) -> str:
        return f"/user/{_q(self._client.user_id)}/account_data/{kind}"

    async def _call(self, method: str, path: str, body: object = None) -> Mapping[str, Any]:
        """A call that nio has not; what is asked for and cannot be had is empty."""
        headers = {"Authorization": f"Bearer {self._client.access_token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        async with await self._client.send(method, f"/_matrix/client/v3{path}", data, headers) as response:
            answer = await self._client.parse_body(response)
        if response.status == 200:
            return answer
        if method == "GET" and response.status in {403, 404}:
            return {}
        raise _fault(response.status, response.headers, answer)


def _well_formed(of: nio.RoomInfo | nio.RoomMessagesResponse) -> list[nio.Event]:
    events = cast("list[object]", of.timeline.events if isinstance(of, nio.RoomInfo) else of.chunk)
    return [event for event in events if isinstance(event, nio.Event)]


def _memberships(events: Sequence[nio.Event], user: str) -> list[str | None]:
    """What each event made of the account's own membership, if it changed that."""
    own = {
        event.event_id: event.membership
        for event in events
        if isinstance(event, nio.RoomMemberEvent) and event.state_key == user
        if event.membership != event.prev_membership
    }
    return [own.get(event.event_id) for event in events]


def _mapping(value: object) -> Mapping[str, Any]:
    """What anybody may have written into an event, where it is an object."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(content: Mapping[str, Any], kind: str, *, reply: bool) -> str:
    """What was said; with a file its caption."""
    body = _text(content.get("body"))
    if kind in _FILES and _text(content.get("filename")) in {"", body}:
        return ""
    return _QUOTED.sub("", body) if reply else body


def _content(part: Part) -> dict[str, Any]:
    """The event of a part. Its empty mentions keep whatever the text says from calling anybody."""
    body = _plain(part.text)
    content: dict[str, Any] = {
        "msgtype": "m.text",  # of an m.notice, as bots might write, clients do not notify people
        "body": body,
        "format": "org.matrix.custom.html",
        "formatted_body": part.text,
        "m.mentions": {},
    }
    answered = part.place.reply_to.get("event")
    if part.edits:
        return {
            "msgtype": "m.text",
            "body": f"* {body[:200]}",  # for clients that know no edits; the whole might make it too long
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
    """By this the homeserver knows a message again. Edits of the same part differ in their texts."""
    return f"{part.key}-{hashlib.sha256(part.text.encode()).hexdigest()[:16]}" if part.edits else part.key


def _plain(markup: str) -> str:
    """Our own HTML as text."""
    text = re.sub(r"<br>|</?(?:blockquote|pre)>", "\n", markup)
    text = _LINK.sub(lambda link: link[2] if link[1] == link[2] else f"{link[2]} ({link[1]})", text)
    return unescape(re.sub(r"</?\w+>", "", text)).strip("\n")


def _decrypted(data: bytes, secret: Mapping[str, Any]) -> bytes:
    try:
        return decrypt_attachment(data, secret["key"]["k"], secret["hashes"]["sha256"], secret["iv"])
    except (nio.EncryptionError, LookupError, TypeError, ValueError) as e:
        raise Refused("the file cannot be decrypted") from e


def _checked(answer: object, kind: type[R]) -> R:
    """Nio's answer, which is of this kind; what the homeserver has against it is raised."""
    if isinstance(answer, kind):
        return answer
    error = cast("nio.ErrorResponse", answer)
    told = {"errcode": error.status_code, "error": error.message, "retry_after_ms": error.retry_after_ms}
    response = cast("ClientResponse", error.transport_response)
    raise _fault(response.status, response.headers, told)


def _fault(status: int, headers: Mapping[str, str], answer: Mapping[str, Any]) -> Exception:
    """What an answer other than 200 means."""
    code = _text(answer.get("errcode"))
    told = f"the homeserver answered {status}: {code} {_text(answer.get('error'))[:200]}"
    if status == 429 or code == "M_LIMIT_EXCEEDED":
        wait, header = answer.get("retry_after_ms"), headers.get("Retry-After", "")
        seconds = float(header) if header.isdecimal() else None
        return TryLater(told, seconds=wait / 1000 if isinstance(wait, int) else seconds)
    if status >= 500:
        return Unsure(told)
    # These pass; and what lies in front of a homeserver knows no codes.
    if not code or status == 401 or code in {"M_RESOURCE_LIMIT_EXCEEDED", "M_CONSENT_NOT_GIVEN"}:
        return TryLater(told)
    return Refused(told)
