"""Slack, by Socket Mode: events come over a WebSocket that we open, so Slack needs no way in.

The Web API is the SDK's. Its Socket Mode client is not used: it connects again for ever by itself, closes the
old connection before it opens the new one, and keeps to itself what a listener raises.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, Field, SecretStr, ValidationError
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from torana.connectors.abreast import Hear, abreast
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
from torana.connectors.markup import slack
from torana.connectors.times import time_of

#: Seconds for a call, for a connection's hello, and for a file.
_PATIENCE = 30.0
_GREETING = 30.0
_FILE_PATIENCE = 120.0
#: A sender's name is worth this many seconds, as Slack wants its acknowledgement within three.
_NAME_PATIENCE = 1.5
_NAMES = 1_000
#: After so many silent seconds the connection is probed, and dead after half as many more.
_PROBE = 10.0
#: How long a connection is listened to after Slack announced its end.
_DRAIN = 60.0
#: How far back, in seconds and in pages of messages, a part is looked for.
_LOOK_BACK = 86_400.0
_PAGES = 5
_PAGE = 200
#: The type of the metadata in which a part's key is kept.
_MARK = "torana_part"

#: What is said to people; every other subtype tells of a change, a visitor or a setting.
_SAID = frozenset({"", "file_share", "thread_broadcast", "me_message", "bot_message"})
#: Reasons of a "disconnect" that only mean: come back by another connection.
_RENEWALS = frozenset({"warning", "refresh_requested"})
_CREDENTIALS = frozenset({"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"})
_LATER = frozenset(
    {"ratelimited", "rate_limited", "service_unavailable", "team_added_to_org", "request_timeout"}
)
#: "Some aspect of the operation may have succeeded", as the reference says of both.
_UNSURE = frozenset({"internal_error", "fatal_error"})

_Kind = Literal["image", "file", "voice", "video"]
_KINDS: Mapping[str, _Kind] = {"image": "image", "audio": "voice", "video": "video"}
_ENTITY = re.compile(r"<([^<>|]*)(?:\|([^<>]*))?>")


class SlackSettings(ConnectorSettings):
    """What the settings say of Slack."""

    bot_token: SecretStr = Field(description="The token of the app in the workspace, `xoxb-…`.")
    app_token: SecretStr = Field(
        description="The token of the app itself, `xapp-…`, with the scope `connections:write`."
    )
    api_url: str = Field(default="https://slack.com/api/", description="Where the Web API is.")


class _File(BaseModel):
    name: str | None = None
    mimetype: str | None = None
    size: int | None = None
    subtype: str | None = None
    url_private_download: str | None = None


class _Event(BaseModel):
    type: str
    subtype: str | None = None
    channel: str = ""
    channel_type: str | None = None
    user: str | None = None
    username: str | None = None
    bot_id: str | None = None
    text: str | None = None
    ts: str = ""
    thread_ts: str | None = None
    parent_user_id: str | None = None
    files: Sequence[_File] | None = None


class _Envelope(BaseModel):
    type: str = ""
    envelope_id: str | None = None
    reason: str | None = None
    payload: Mapping[str, Any] | None = None


class Slack(Connector[SlackSettings]):
    """An app in a workspace. Ids are Slack's: ``U…`` people, ``D…`` and ``C…`` chats, ``chat:ts`` messages."""

    Settings = SlackSettings
    abilities = Abilities(
        length=4_000,
        repeat="readable",
        render=slack,
        edits=True,
        edit_every=3.0,
        threads=True,
        pace=3.0,
        quiet=60.0,
    )

    def __init__(self, settings: SlackSettings) -> None:
        super().__init__(settings)
        #: The SDK's client, whose parameters have no types. It holds the session for everything else.
        self._web: Any = None
        self._user = ""
        self._bot = ""
        self._names: dict[str, str] = {}
        self._doubt = asyncio.Event()

    @property
    def credentials(self) -> str:
        """The app's token: two listeners with one would share its events between them."""
        return self.settings.app_token.get_secret_value()

    async def run(self, ears: Ears) -> None:
        """Listen; one connection follows another as Slack renews them, and no event is lost between them."""
        ended: Exception | None = None
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_PATIENCE, sock_connect=10)
        ) as session:
            self._web = AsyncWebClient(
                token=self.settings.bot_token.get_secret_value(),
                base_url=self.settings.api_url,
                session=session,
                # By default a post is sent again when the connection breaks, and may be shown twice.
                retry_handlers=[],
                # It would write what people say at the level of debugging.
                logger=logging.Logger("slack_sdk", logging.CRITICAL),  # noqa: LOG001 - a logger of no tree
            )
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._listen(ears, tasks))
                    tasks.create_task(self._doubting())
            except ExceptionGroup as group:
                ended = group.exceptions[0]
            finally:
                self._web = None
        if ended is not None:
            raise ended

    @property
    def _client(self) -> Any:
        if self._web is None:
            raise TryLater("not connected to Slack")
        return self._web

    async def _listen(self, ears: Ears, tasks: asyncio.TaskGroup) -> None:
        """One connection, to its end; where Slack announces that, another one is opened before it comes."""
        await self._introduce()
        socket = await self._connect()
        patience = asyncio.timeout(_GREETING)
        renewed = False
        try:
            async with socket, patience, abreast(ears) as hear:
                async for frame in socket:
                    ears.alive()
                    if frame.type is aiohttp.WSMsgType.PING:
                        await _write(socket.pong(frame.data))
                    if frame.type is not aiohttp.WSMsgType.TEXT:
                        continue
                    envelope = _envelope(frame.data)
                    if envelope.type == "hello":
                        patience.reschedule(None)
                        ears.ready()
                    elif envelope.type == "disconnect" and not renewed:
                        _check_reason(envelope.reason)
                        renewed = True
                        patience.reschedule(asyncio.get_running_loop().time() + _DRAIN)
                        tasks.create_task(self._listen(ears, tasks))
                    elif envelope.envelope_id:
                        await self._take(hear, envelope, partial(_acknowledge, socket, envelope))
        except TimeoutError:
            if not patience.expired():
                raise
        if not renewed:
            raise ConnectionError("the connection to Slack ended, or Slack did not say hello")

    async def _connect(self) -> aiohttp.ClientWebSocketResponse[Literal[True]]:
        token = self.settings.app_token.get_secret_value()
        answer = await self._call("apps_connections_open", app_token=token)
        session: aiohttp.ClientSession = self._client.session
        try:
            return await session.ws_connect(
                str(answer.get("url")),
                # Its pings, and Slack's own, are answered in `_listen`, where every answer is a sign of life.
                heartbeat=_PROBE,
                autoping=False,
                proxy=self._client.proxy,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),  # pyright: ignore[reportCallIssue]
            )
        except aiohttp.ClientError as error:
            # Its text has the address, in which there is a secret.
            raise ConnectionError(f"Slack's WebSocket was not opened: {type(error).__name__}") from None

    async def _introduce(self) -> None:
        """Ask who we are; with each connection, as a token may be revoked while the last one is open."""
        who = await self._call("auth_test")
        self._user, self._bot = str(who.get("user_id")), str(who.get("bot_id") or "")
        if not self._bot:
            raise Refused("bot_token is not the token of a bot; such begin with xoxb-")
        self._names[self._user] = _line(who.get("user"))

    async def _doubting(self) -> None:
        """Whenever a call is told that the token is no good, see whether ``run`` has to end."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            await self._introduce()

    async def _take(self, hear: Hear, envelope: _Envelope, taken: Callable[[], Awaitable[None]]) -> None:
        """Hear what was said; what is no message, and what we said ourselves, is Slack's to forget."""
        event = _message(envelope)
        if event and event.user != self._user and event.bot_id != self._bot:
            await hear(await self._heard(event), taken)
        else:
            await taken()

    async def _heard(self, event: _Event) -> Heard:
        sender = event.user or event.bot_id or ""
        raw = event.text or ""
        direct = event.channel_type == "im"
        mentioned = f"<@{self._user}>" in raw or f"<@{self._user}|" in raw
        return Heard(
            id=f"{event.channel}:{event.ts}",
            sender=Sender(
                id=sender,
                name=await self._name(event),
                automatic=bool(event.bot_id) or sender == "USLACKBOT",
            ),
            place=Place(chat=event.channel, thread=event.thread_ts if event.thread_ts != event.ts else None),
            text=self._plain(raw),
            direct=direct,
            addressed=direct or mentioned or event.parent_user_id == self._user,
            attachments=[self._attachment(file) for file in event.files or ()],
            said_at=time_of(event.ts),
        )

    async def _name(self, event: _Event) -> str:
        """What the sender is called; nothing where Slack does not tell, or not soon."""
        if event.user is None:
            return _line(event.username)
        if event.user not in self._names:
            name = ""
            with suppress(Refused, TryLater, Unsure, TimeoutError):
                async with asyncio.timeout(_NAME_PATIENCE):
                    user = _at(await self._call("users_info", user=event.user), "user")
                name = _line(
                    _at(user, "profile", "display_name") or _at(user, "real_name") or _at(user, "name")
                )
            if len(self._names) >= _NAMES:
                self._names = {self._user: self._names[self._user]}
            self._names[event.user] = name
        return self._names[event.user]

    def _plain(self, raw: str) -> str:
        """Slack's text as people read it, without a mention of ours at its beginning."""
        text = re.sub(rf"^(?:\s*<@{re.escape(self._user)}(?:\|[^<>]*)?>[\s,:]*)+", "", raw)
        text = _ENTITY.sub(self._entity, text)
        return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")

    def _entity(self, found: re.Match[str]) -> str:
        """What stands in angle brackets: somebody, a channel, a group called, or a link."""
        target, label = found[1], found[2] or ""
        match target[:1]:
            case "@":
                return f"@{label or self._names.get(target[1:]) or target[1:]}"
            case "#":
                return f"#{label or target[1:]}"
            case "!":
                return label or f"@{target[1:].partition('^')[0]}"
            case _:
                bare = re.sub(r"^(https?://|mailto:|tel:)", "", target)
                return (
                    f"{label} ({target})"
                    if label not in ("", target, bare, bare.rstrip("/"))
                    else label or target
                )

    def _attachment(self, file: _File) -> Attachment:
        media_type = file.mimetype or "application/octet-stream"
        return Attachment(
            kind="voice" if file.subtype == "slack_audio" else _KINDS.get(media_type.partition("/")[0], "file"),
            name=file.name or "",
            media_type=media_type,
            size=file.size,
            fetch=partial(self._fetch, file) if self._is_slacks(file.url_private_download) else None,
        )

    def _is_slacks(self, url: str | None) -> bool:
        """Whether the token may be shown there: to the API's own host and its ``files.``, and to no other."""
        with suppress(ValueError):
            there, api = urlsplit(url or ""), urlsplit(self.settings.api_url)
            same = (there.scheme, there.port) == (api.scheme, api.port)
            return same and there.hostname in (api.hostname, f"files.{api.hostname}")
        return False

    async def _fetch(self, file: _File, limit: int) -> bytes:
        """The bytes of a file, at most ``limit``."""
        if (file.size or 0) > limit:
            raise TooLarge(f"the file has {file.size} bytes")
        session: aiohttp.ClientSession = self._client.session
        token = self.settings.bot_token.get_secret_value()
        try:
            async with session.get(
                str(file.url_private_download),
                headers={"Authorization": f"Bearer {token}"},
                allow_redirects=False,
                proxy=self._client.proxy,
                timeout=aiohttp.ClientTimeout(total=_FILE_PATIENCE, sock_read=_PATIENCE),
            ) as answer:
                _check_file(answer, file, limit)
                data = bytearray()
                async for chunk in answer.content.iter_chunked(65_536):
                    data += chunk
                    if len(data) > limit:
                        raise TooLarge(f"the file has more than {limit} bytes")
                return bytes(data)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TryLater(f"the file did not come: {type(error).__name__}") from None

    async def send(self, part: Part) -> str:
        """Post or change a message. Its metadata has the part's key, which ``find`` looks for."""
        chat = part.place.chat
        message: dict[str, object] = {
            "channel": chat,
            "text": part.text,
            "parse": "none",
            "link_names": False,
            "metadata": {"event_type": _MARK, "event_payload": {"key": part.key}},
        }
        if part.edits is not None:
            chat, _, ts = part.edits.rpartition(":")
            await self._call("chat_update", **message | {"channel": chat, "ts": ts})
            return part.edits
        answer = await self._call(
            "chat_postMessage", **message, thread_ts=part.place.thread, unfurl_links=False, unfurl_media=False
        )
        return f"{answer.get('channel') or chat}:{answer.get('ts')}"

    async def find(self, part: Part) -> str | None:
        """Look for the part's key in the last day's messages of its place, at most a thousand of them."""
        place, cursor = part.place, None
        name = "conversations_replies" if place.thread else "conversations_history"
        where = {"channel": place.chat} | ({"ts": place.thread} if place.thread else {})
        where["oldest"] = f"{time.time() - _LOOK_BACK:.6f}"
        for _ in range(_PAGES):
            try:
                page = await self._call(name, **where, limit=_PAGE, cursor=cursor, include_all_metadata=True)
            except Unsure as error:  # there was nothing to be done but to read
                raise TryLater(str(error)) from None
            for message in page.get("messages") or ():
                # Others' metadata may say whatever it likes.
                if _at(message, "user") == self._user and _key(message) == part.key:
                    return f"{place.chat}:{_at(message, 'ts')}"
            cursor = _at(page, "response_metadata", "next_cursor")
            if not cursor:
                break
        return None

    async def _call(self, name: str, **arguments: object) -> Mapping[str, Any]:
        """Call a method of the API by its name in the SDK; what goes wrong is told as a connector tells it."""
        method = getattr(self._client, name)
        try:
            answer = await method(**arguments)
        except SlackApiError as error:
            raise self._failure(name, cast("Any", error.response)) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise TryLater(f"Slack cannot be reached: {type(error).__name__}") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unsure(f"Slack did not answer {name.replace('_', '.')}: {type(error).__name__}") from None
        return cast("Mapping[str, Any]", answer.data)

    def _failure(self, name: str, answer: Any) -> Exception:
        """What an answer without success means; where it is a page, the SDK hands on aiohttp's own."""
        status: int = getattr(answer, "status_code", None) or answer.status
        code = str(_at(getattr(answer, "data", None), "error") or "")
        told = f"Slack answered {name.replace('_', '.')} with {code or status}"
        if status == HTTPStatus.TOO_MANY_REQUESTS or code in _LATER:
            return TryLater(told, seconds=_seconds(answer.headers.get("Retry-After")))
        if not code or code in _UNSURE or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Unsure(told)
        if code in _CREDENTIALS and name != "auth_test":
            self._doubt.set()
        return Refused(told)


def _envelope(data: str) -> _Envelope:
    """What came, or nothing of a known type where it cannot be read."""
    try:
        return _Envelope.model_validate_json(data)
    except ValidationError:
        return _Envelope()


def _message(envelope: _Envelope) -> _Event | None:
    """What somebody said; an "app_mention" is the twin of a "message", and is left aside."""
    told = (envelope.payload or {}).get("event")
    if not isinstance(told, Mapping) or cast("Mapping[str, object]", told).get("type") != "message":
        return None
    try:
        event = _Event.model_validate(told)
    except ValidationError:
        logging.getLogger(__name__).warning("A message of Slack's cannot be read and was left aside.")
        return None
    said = (event.subtype or "") in _SAID and (event.text or event.files)
    return event if said and event.channel and event.ts and (event.user or event.bot_id) else None


def _check_reason(reason: str | None) -> None:
    if reason == "link_disabled":
        raise Refused("Socket Mode is switched off in the settings of the Slack app")
    if reason not in _RENEWALS:
        raise ConnectionError(f"Slack ended the connection: {reason}")


def _check_file(answer: aiohttp.ClientResponse, file: _File, limit: int) -> None:
    """Raise where the answer is no file, or one that is too large."""
    told = f"Slack answered with {answer.status} in place of the file"
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise TryLater(told, seconds=_seconds(answer.headers.get("Retry-After")))
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise TryLater(told)
    if answer.status != HTTPStatus.OK:
        raise Refused(told)
    if answer.content_type == "text/html" and file.mimetype != "text/html":
        raise Refused("Slack answered with a page in place of the file; the app needs the scope files:read")
    if (answer.content_length or 0) > limit:
        raise TooLarge(f"the file has {answer.content_length} bytes")


async def _acknowledge(socket: aiohttp.ClientWebSocketResponse[Literal[True]], envelope: _Envelope) -> None:
    await _write(socket.send_json({"envelope_id": envelope.envelope_id}))


async def _write(writing: Coroutine[Any, Any, None]) -> None:
    """Write where that is possible; a connection that ended is noticed by its reader."""
    with suppress(aiohttp.ClientError, ConnectionError):
        await writing


def _at(data: object, *path: str) -> Any:
    """What stands there in an answer, or None."""
    for name in path:
        data = cast("Mapping[str, object]", data).get(name) if isinstance(data, Mapping) else None
    return data


def _key(message: object) -> object:
    """The key of the part that a message is, where it is one."""
    return (
        _at(message, "metadata", "event_payload", "key")
        if _at(message, "metadata", "event_type") == _MARK
        else None
    )


def _seconds(header: str | None) -> float | None:
    return float(header) if header and header.isdecimal() else None


def _line(name: object) -> str:
    """A name as one line, in which nothing turns the text around it."""
    return " ".join("".join(one if one.isprintable() else " " for one in str(name or "")).split())
