"""Slack, in Socket Mode: the connector opens a WebSocket for events, so the gateway needs no public address.

The SDK is used for the Web API. Its Socket Mode client is not used: it reconnects for ever by itself, closes
the old connection before it opens the new one, and hides the errors of listeners.
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

from torana.characters import one_line
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
    TooLarge,
    attachment_kind,
    collect,
)
from torana.connectors.transport.concurrency import Hear, concurrently
from torana.connectors.transport.http import seconds
from torana.connectors.transport.markup import slack
from torana.connectors.transport.parsing import time_of

#: Timeouts, in seconds, for a call, for a connection's hello, and for a file.
_CALL_TIMEOUT = 30.0
_GREETING = 30.0
_FILE_TIMEOUT = 120.0
#: Timeout, in seconds, for a sender's name: Slack expects an acknowledgement within three seconds.
_NAME_TIMEOUT = 1.5
_NAMES = 1_000
#: Seconds of silence before the connection is probed. It counts as dead if half of this time passes without a
#: response.
_PROBE = 10.0
#: Seconds for which a connection is read after Slack announced its end.
_DRAIN = 60.0
#: Limits of the search for a part: its age in seconds, pages, and messages of a page.
_LOOK_BACK = 86_400.0
_PAGES = 5
_PAGE = 200
#: The type of the metadata that contains a part's key.
_MARK = "torana_part"

#: Subtypes of messages from a person or bot; the others report changes of messages, members or settings.
_MESSAGE_SUBTYPES = frozenset({"", "file_share", "thread_broadcast", "me_message", "bot_message"})
#: Reasons of a "disconnect" that only request a new connection.
_RENEWALS = frozenset({"warning", "refresh_requested"})
#: The calls that check the credentials.
_CREDENTIAL_CHECKS = frozenset({"auth_test", "apps_connections_open"})
_CREDENTIALS = frozenset({"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"})
_RETRIED_ERRORS = frozenset(
    {"ratelimited", "rate_limited", "service_unavailable", "team_added_to_org", "request_timeout"}
)
#: Errors after which the operation may have succeeded partly, according to Slack's reference.
_UNCERTAIN_ERRORS = frozenset({"internal_error", "fatal_error"})

_ENTITY = re.compile(r"<([^<>|]*)(?:\|([^<>]*))?>")


class SlackSettings(ConnectorSettings):
    """The settings of a Slack app."""

    bot_token: SecretStr = Field(description="The app's bot token in the workspace, `xoxb-…`.")
    app_token: SecretStr = Field(
        description="The app-level token, `xapp-…`, with the scope `connections:write`."
    )
    api_url: str = Field(default="https://slack.com/api/", description="The base URL of the Web API.")


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
    abilities = Capabilities(
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
        #: The SDK's client, whose parameters are untyped. Its session is used for all other requests.
        self._web: Any = None
        self._user = ""
        self._team = ""
        self._bot = ""
        self._names: dict[str, str] = {}
        self._doubt = asyncio.Event()

    @property
    def credentials(self) -> str:
        """Return the app-level token: Slack would distribute events among listeners with the same token."""
        return self.settings.app_token.get_secret_value()

    @property
    def link(self) -> str | None:
        return f"slack://user?team={self._team}&id={self._user}" if self._team else None

    async def run(self, sink: MessageSink) -> None:
        """Listen; when Slack renews a connection, no event is lost."""
        ended: Exception | None = None
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_CALL_TIMEOUT, sock_connect=10)
        ) as session:
            self._web = AsyncWebClient(
                token=self.settings.bot_token.get_secret_value(),
                base_url=self.settings.api_url,
                session=session,
                # By default the SDK repeats a post after a broken connection, which may show it twice.
                retry_handlers=[],
                # The SDK logs messages of users at DEBUG.
                logger=logging.Logger("slack_sdk", logging.CRITICAL),  # noqa: LOG001 - outside the tree
            )
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._listen(sink, tasks))
                    tasks.create_task(self._checking_token())
            except ExceptionGroup as group:
                ended = group.exceptions[0]
            finally:
                self._web = None
        if ended is not None:
            raise ended

    @property
    def _client(self) -> Any:
        if self._web is None:
            raise RetryLater("not connected to Slack")
        return self._web

    async def _listen(self, sink: MessageSink, tasks: asyncio.TaskGroup) -> None:
        """Run one connection to its end; if Slack announces the end, open another connection first."""
        await self._fetch_identity()
        socket = await self._connect()
        patience = asyncio.timeout(_GREETING)
        renewed = False
        try:
            async with socket, patience, concurrently(sink) as hear:
                async for frame in socket:
                    sink.alive()
                    if frame.type is aiohttp.WSMsgType.PING:
                        await _write(socket.pong(frame.data))
                    if frame.type is not aiohttp.WSMsgType.TEXT:
                        continue
                    envelope = _envelope(frame.data)
                    if envelope.type == "hello":
                        patience.reschedule(None)
                        sink.ready()
                    elif envelope.type == "disconnect" and not renewed:
                        _check_reason(envelope.reason)
                        renewed = True
                        patience.reschedule(asyncio.get_running_loop().time() + _DRAIN)
                        tasks.create_task(self._listen(sink, tasks))
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
                # `_listen` answers pings itself, so that every frame counts as a sign of life.
                heartbeat=_PROBE,
                autoping=False,
                proxy=self._client.proxy,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),  # pyright: ignore[reportCallIssue]
            )
        except aiohttp.ClientError as error:
            # The error's text contains the URL, which contains a secret.
            raise ConnectionError(f"cannot open Slack's WebSocket: {type(error).__name__}") from None

    async def _fetch_identity(self) -> None:
        """Request the bot's identity, for each connection: a token may have been revoked meanwhile."""
        who = await self._call("auth_test")
        self._user, self._bot = str(who.get("user_id")), str(who.get("bot_id") or "")
        self._team = str(who.get("team_id") or "")
        if not self._bot:
            raise PermanentError("bot_token is not a bot token; bot tokens begin with xoxb-")
        self._names[self._user] = one_line(str(who.get("user") or ""))

    async def _checking_token(self) -> None:
        """After a call with an invalid token, check the token; an error ends ``run``."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            await self._fetch_identity()

    async def _take(self, hear: Hear, envelope: _Envelope, taken: Callable[[], Awaitable[None]]) -> None:
        """Process a message; acknowledge other events and the bot's own messages at once."""
        event = _message(envelope)
        if event and event.user != self._user and event.bot_id != self._bot:
            await hear(await self._parse_event(event), taken)
        else:
            await taken()

    async def _parse_event(self, event: _Event) -> IncomingMessage:
        sender = event.user or event.bot_id or ""
        raw = event.text or ""
        direct = event.channel_type == "im"
        mentioned = f"<@{self._user}>" in raw or f"<@{self._user}|" in raw
        return IncomingMessage(
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
        """Return the sender's name; empty if Slack does not return it in time."""
        if event.user is None:
            return one_line(event.username or "")
        if event.user not in self._names:
            name = ""
            with suppress(PermanentError, RetryLater, OutcomeUnknown, TimeoutError):
                async with asyncio.timeout(_NAME_TIMEOUT):
                    user = _at(await self._call("users_info", user=event.user), "user")
                named = _at(user, "profile", "display_name") or _at(user, "real_name") or _at(user, "name")
                name = one_line(str(named or ""))
            if len(self._names) >= _NAMES:
                self._names = {self._user: self._names[self._user]}
            self._names[event.user] = name
        return self._names[event.user]

    def _plain(self, raw: str) -> str:
        """Convert Slack's text to plain text, without a leading mention of the bot."""
        text = re.sub(rf"^(?:\s*<@{re.escape(self._user)}(?:\|[^<>]*)?>[\s,:]*)+", "", raw)
        text = _ENTITY.sub(self._entity, text)
        return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")

    def _entity(self, found: re.Match[str]) -> str:
        """Return the text for a reference in angle brackets: a user, a channel, a group or a link."""
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
        is_slacks = _is_slack_url(file.url_private_download, self.settings.api_url)
        return Attachment(
            kind="voice" if file.subtype == "slack_audio" else attachment_kind(media_type),
            name=file.name or "",
            media_type=media_type,
            size=file.size,
            fetch=partial(self._fetch, file) if is_slacks else None,
        )

    async def _fetch(self, file: _File, limit: int) -> bytes:
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
                timeout=aiohttp.ClientTimeout(total=_FILE_TIMEOUT, sock_read=_CALL_TIMEOUT),
            ) as answer:
                _check_file(answer, file)
                size = answer.content_length or 0
                return await collect(answer.content.iter_chunked(65_536), limit, announced=size)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RetryLater(f"the file could not be fetched: {type(error).__name__}") from None

    async def send(self, part: Part) -> str:
        """Post or edit a message. Its metadata contains the part's key, for ``find``."""
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
        """Search the part's key in the last day's messages of its place, at most a thousand."""
        place, cursor = part.place, None
        name = "conversations_replies" if place.thread else "conversations_history"
        where = {"channel": place.chat} | ({"ts": place.thread} if place.thread else {})
        where["oldest"] = f"{time.time() - _LOOK_BACK:.6f}"
        for _ in range(_PAGES):
            try:
                page = await self._call(name, **where, limit=_PAGE, cursor=cursor, include_all_metadata=True)
            except OutcomeUnknown as error:  # reading has no side effects
                raise RetryLater(str(error)) from None
            for message in page.get("messages") or ():
                # The metadata of other users' messages is not trusted.
                if _at(message, "user") == self._user and _key(message) == part.key:
                    return f"{place.chat}:{_at(message, 'ts')}"
            cursor = _at(page, "response_metadata", "next_cursor")
            if not cursor:
                break
        return None

    async def _call(self, name: str, **arguments: object) -> Mapping[str, Any]:
        """Call a method of the API by its name in the SDK. Raises connector errors."""
        method = getattr(self._client, name)
        try:
            answer = await method(**arguments)
        except SlackApiError as error:
            raise self._failure(name, cast("Any", error.response)) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise RetryLater(f"cannot connect to Slack: {type(error).__name__}") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OutcomeUnknown(
                f"Slack did not answer {name.replace('_', '.')}: {type(error).__name__}"
            ) from None
        return cast("Mapping[str, Any]", answer.data)

    def _failure(self, name: str, answer: Any) -> Exception:
        """Return the error for a response: the SDK's object, or aiohttp's if the body is not valid JSON."""
        status: int = getattr(answer, "status_code", None) or answer.status
        code = str(_at(getattr(answer, "data", None), "error") or "")
        reason = f"Slack answered {name.replace('_', '.')} with {code or status}"
        if status == HTTPStatus.TOO_MANY_REQUESTS or code in _RETRIED_ERRORS:
            return RetryLater(reason, seconds=seconds(answer.headers.get("Retry-After")))
        if not code or code in _UNCERTAIN_ERRORS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return OutcomeUnknown(reason)
        if code in _CREDENTIALS and name not in _CREDENTIAL_CHECKS:
            self._doubt.set()
            return RetryLater(reason)  # the credentials are at fault, not the call
        return PermanentError(reason)


def _envelope(data: str) -> _Envelope:
    """Return the parsed envelope; an unreadable one has no known type."""
    try:
        return _Envelope.model_validate_json(data)
    except ValidationError:
        return _Envelope()


def _message(envelope: _Envelope) -> _Event | None:
    """Return the message of an envelope; an "app_mention" duplicates a "message" and is ignored."""
    data = (envelope.payload or {}).get("event")
    if not isinstance(data, Mapping) or cast("Mapping[str, object]", data).get("type") != "message":
        return None
    try:
        event = _Event.model_validate(data)
    except ValidationError:
        logging.getLogger(__name__).warning("slack_message_unreadable")
        return None
    has_content = (event.subtype or "") in _MESSAGE_SUBTYPES and (event.text or event.files)
    return event if has_content and event.channel and event.ts and (event.user or event.bot_id) else None


def _check_reason(reason: str | None) -> None:
    if reason == "link_disabled":
        raise PermanentError("Socket Mode is disabled: enable it in the settings of the Slack app")
    if reason not in _RENEWALS:
        raise ConnectionError(f"Slack ended the connection: {reason}")


def _check_file(answer: aiohttp.ClientResponse, file: _File) -> None:
    reason = f"Slack answered {answer.status} for the file"
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise RetryLater(reason, seconds=seconds(answer.headers.get("Retry-After")))
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise RetryLater(reason)
    if answer.status != HTTPStatus.OK:
        raise PermanentError(reason)
    if answer.content_type == "text/html" and file.mimetype != "text/html":
        raise PermanentError(
            "Slack answered with a page instead of the file; the app needs the scope files:read"
        )


async def _acknowledge(socket: aiohttp.ClientWebSocketResponse[Literal[True]], envelope: _Envelope) -> None:
    await _write(socket.send_json({"envelope_id": envelope.envelope_id}))


async def _write(writing: Coroutine[Any, Any, None]) -> None:
    """Write a frame; ignore a closed connection, which the reader handles."""
    with suppress(aiohttp.ClientError, ConnectionError):
        await writing


def _at(data: object, *path: str) -> Any:
    for name in path:
        data = cast("Mapping[str, object]", data).get(name) if isinstance(data, Mapping) else None
    return data


def _key(message: object) -> object:
    return (
        _at(message, "metadata", "event_payload", "key")
        if _at(message, "metadata", "event_type") == _MARK
        else None
    )


def _is_slack_url(url: str | None, api_url: str) -> bool:
    """Return whether the token may be sent there: only to the API's host and its ``files.`` host."""
    with suppress(ValueError):
        target, api = urlsplit(url or ""), urlsplit(api_url)
        same = (target.scheme, target.port) == (api.scheme, api.port)
        return same and target.hostname in (api.hostname, f"files.{api.hostname}")
    return False
