"""Telegram, through its Bot API (https://core.telegram.org/bots/api), with long polling.

A poll confirms all earlier updates, so an update is confirmed after it is processed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from html import unescape
from typing import Annotated, Any, Final, Protocol, TypeVar, cast

import httpx
import httpx2
from pydantic import AfterValidator, Field, SecretStr
from telegram import Bot, LinkPreviewOptions, Message, ReplyParameters, Update, User
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

from torana.characters import one_line
from torana.connectors.base import (
    ELSEWHERE,
    Attachment,
    AttachmentKind,
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
    collect,
)
from torana.connectors.transport import markup
from torana.connectors.transport.concurrency import concurrently
from torana.connectors.transport.parsing import parse_alone
from torana.connectors.transport.splitting import utf16_length
from torana.web.cookies import refuse_cookies

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which Telegram holds an empty poll, and timeouts for other calls, downloads and the shutdown.
_POLL: Final = 25
_CALL_TIMEOUT: Final = 30.0
_DOWNLOAD: Final = 300.0
_SETTLE: Final = 10.0
_UPDATES: Final = ("message", "channel_post")
#: The request was not sent: errors of the HTTP client of python-telegram-bot, which is httpx.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_MEDIA = {"image": "image/jpeg", "video": "video/mp4", "voice": "audio/ogg", "file": "application/octet-stream"}


def _token(token: SecretStr) -> SecretStr:
    """Validate the form of a token: another form could lead the request to another address."""
    text = token.get_secret_value().strip()
    if not re.fullmatch(r"\d+:[\w-]+", text, re.ASCII):
        raise ValueError("a bot token looks like 123456789:AAE…: a number, a colon and letters")
    return SecretStr(text)


class TelegramSettings(ConnectorSettings):
    """The settings of a Telegram bot."""

    token: Annotated[SecretStr, AfterValidator(_token)] = Field(description="The bot's token, from @BotFather.")
    api_url: Annotated[str, AfterValidator(lambda url: url.rstrip("/"))] = Field(
        default="https://api.telegram.org",
        pattern=r"^https?://[^\s{}]+$",
        description="Base URL of the Bot API, for a Bot API server of your own.",
    )


class _File(Protocol):
    """The common fields of Telegram's files."""

    file_id: str
    file_size: int | None


class _Failed(Exception):
    """The Bot API's error response."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(str(answer.get("description") or "no reason given"))
        self.code = int(answer.get("error_code") or 0)
        parameters = cast("Mapping[str, Any]", answer.get("parameters") or {})
        self.seconds: float | None = parameters.get("retry_after")
        self.moved: int | None = parameters.get("migrate_to_chat_id")


class _Request(HTTPXRequest):
    """The library's requests, with the Bot API's error codes, which the library drops."""

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """Parse a response. Raises ``_Failed``, or ``TelegramError`` if it is not from the Bot API.

        An unreadable update becomes empty: otherwise it would block all later updates for ever.
        """
        try:
            answer: Any = json.loads(payload.decode(errors="replace"))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise TelegramError("the response is not from the Bot API")
        known = cast("dict[str, Any]", answer)
        if not known.get("ok"):
            raise _Failed(known)
        if isinstance(known["result"], list):
            known["result"] = [_readable(update) for update in cast("list[dict[str, Any]]", known["result"])]
        return known


def _readable(update: dict[str, Any]) -> dict[str, Any]:
    try:
        Update.de_json(update, None)
    except Exception as error:  # noqa: BLE001 - the library raises many kinds
        fields = {"update": update["update_id"], "error": type(error).__name__}
        log.warning("telegram_update_unreadable", extra=fields)
        return {"update_id": update["update_id"]}
    return update


class Telegram(Connector[TelegramSettings]):
    """A bot on Telegram."""

    Settings = TelegramSettings
    global_ids = True
    abilities = Capabilities(
        length=4096,
        repeat="blind",
        measure=utf16_length,  # Telegram does not count tags
        render=markup.telegram,
        edits=True,
        edit_every=3.0,  # a group accepts 20 messages a minute
        typing_every=4.5,  # Telegram shows it for 5 seconds
        threads=True,
        pace=25.0,
        quiet=90.0,
    )

    def __init__(self, settings: TelegramSettings) -> None:
        super().__init__(settings)
        self._secret = settings.token.get_secret_value()
        self._calls = 0
        self._ending = False
        self._username: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        context = httpx2.create_ssl_context()
        self._request = _Request(
            connection_pool_size=64,
            read_timeout=_CALL_TIMEOUT,
            write_timeout=_CALL_TIMEOUT,
            connect_timeout=_CALL_TIMEOUT,
            pool_timeout=_CALL_TIMEOUT,
            httpx_kwargs={"verify": context, "cookies": refuse_cookies()},
        )
        self._bot = Bot(
            self._secret,
            base_url=f"{settings.api_url}/bot",
            base_file_url=f"{settings.api_url}/file/bot",
            request=self._request,
            get_updates_request=self._request,
        )
        self._downloads = httpx2.AsyncClient(verify=context, timeout=_CALL_TIMEOUT, cookies=refuse_cookies())

    @property
    def credentials(self) -> str:
        """Return the bot's id, the first half of the token, which is not secret."""
        return self._secret.partition(":")[0]

    @property
    def link(self) -> str | None:
        return self._username and f"https://t.me/{self._username}"

    async def run(self, sink: MessageSink) -> None:
        """Connect and listen. A webhook is deleted first: Telegram answers no poll while a webhook is set."""
        async with self._request, self._downloads:
            try:
                await self._listen(sink)
            finally:
                await self._settle()

    async def _listen(self, sink: MessageSink) -> None:
        me = await self._call(self._bot.get_me())
        self._username = me.username
        await self._call(self._bot.delete_webhook())
        updates = await self._call(self._poll(None, wait=0))
        sink.ready()
        offset: int | None = None
        while True:
            sink.alive()
            async with concurrently(sink) as hear:  # the next poll confirms all updates
                for update in sorted(updates, key=lambda update: update.update_id):
                    if heard := parse_alone(self._parse_update, update, me):
                        await hear(heard)
                    offset = update.update_id + 1
            updates = await self._call(self._poll(offset, wait=_POLL))

    async def _poll(self, offset: int | None, *, wait: int) -> Sequence[Update]:
        return await self._bot.get_updates(
            offset=offset, timeout=wait, allowed_updates=_UPDATES, read_timeout=_CALL_TIMEOUT
        )

    async def _call(self, call: Awaitable[T]) -> T:
        """Make a call for ``run``, which ends with the call's error."""
        try:
            async with asyncio.timeout(_POLL + _CALL_TIMEOUT):
                return await call
        except (_Failed, TelegramError, TimeoutError) as error:
            raise self._end(error) from None  # the original error may quote the token

    def _end(self, error: Exception) -> Exception:
        reason = _describe_error(error, self._secret)
        match error:
            case _Failed(code=401 | 404):
                return PermanentError(f"Telegram rejects the bot token ({reason}): get it from @BotFather")
            case _Failed(code=409):
                return ConnectionError(
                    f"another program receives this bot's messages ({reason}): stop it, or create another bot"
                )
            case _Failed(code=429):
                return RetryLater(reason, seconds=error.seconds)
            case _:
                return ConnectionError(reason)

    @contextmanager
    def _counting_calls(self) -> Generator[None]:
        """Count a call in progress, so that the connections stay open."""
        if self._ending:
            raise RetryLater("the connection has ended")
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _settle(self) -> None:
        """Wait some seconds for calls in progress; the outcome of a cancelled call would be unknown."""
        self._ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE):
                await self._idle.wait()

    async def send(self, part: Part) -> str:
        try:
            with self._counting_calls():
                async with asyncio.timeout(2 * _CALL_TIMEOUT):
                    return await self._deliver(part)
        except (_Failed, TelegramError, TimeoutError) as error:
            raise self._connector_error(error) from None  # the original error may quote the token

    async def typing(self, place: Place) -> None:
        with suppress(Exception), self._counting_calls():
            await self._bot.send_chat_action(
                chat_id=int(place.chat),
                action="typing",
                message_thread_id=int(place.thread) if place.thread else None,
            )

    async def _deliver(self, part: Part) -> str:
        """Send a part; follow a group that has moved, and remove markup that Telegram refuses."""
        chat, text, mode = int(part.place.chat), part.text, "HTML"
        for _ in range(2):
            try:
                return await self._show(part, chat, text, mode)
            except _Failed as failed:
                if part.edits and "message is not modified" in str(failed):
                    return part.edits
                if failed.moved:
                    chat = failed.moved
                elif "can't parse entities" in str(failed):
                    text, mode = unescape(re.sub(r"<[^>]*>", "", text)), None
                else:
                    raise
        return await self._show(part, chat, text, mode)

    async def _show(self, part: Part, chat: int, text: str, mode: str | None) -> str:
        # For a link preview, Telegram requests the URL. A manipulated model could put private data into it.
        preview = LinkPreviewOptions(is_disabled=True)
        if part.edits:
            await self._bot.edit_message_text(
                text,
                chat_id=chat,
                message_id=int(part.edits),
                parse_mode=mode,
                link_preview_options=preview,
            )
            return part.edits
        answered = part.place.reply_to.get("message") if part.number == 0 else None
        shown = await self._bot.send_message(
            chat,
            text,
            parse_mode=mode,
            link_preview_options=preview,
            message_thread_id=int(part.place.thread) if part.place.thread else None,
            reply_parameters=(
                ReplyParameters(int(answered), allow_sending_without_reply=True) if answered else None
            ),
        )
        return str(shown.message_id)

    def _connector_error(self, error: Exception) -> Exception:
        """Return the connector error for a failed call about a message or a file."""
        reason = _describe_error(error, self._secret)
        match error:
            case _Failed(code=429):
                return RetryLater(reason, seconds=error.seconds)
            case _Failed(code=401 | 404):  # about the token, not the message; `run` gets the error too
                return RetryLater(reason)
            case _Failed(code=code) if 400 <= code < 500:
                return PermanentError(reason)
            case TelegramError(__cause__=cause) if isinstance(cause, _UNSENT):
                return RetryLater(reason)
            case _:
                return OutcomeUnknown(reason)

    def _parse_update(self, update: Update, me: User) -> IncomingMessage | None:
        """Return the message of an update, or None for an update that is no message of a user."""
        message = update.message or update.channel_post
        if message is None or (message.from_user is not None and message.from_user.id == me.id):
            return None
        text = message.text or message.caption or ""
        attachments = tuple(self._attachments(message))
        if not text and not attachments:
            return None
        direct = message.chat.type == message.chat.PRIVATE
        topic = message.message_thread_id if message.is_topic_message else None
        return IncomingMessage(
            id=f"{me.id}:{message.chat.id}:{message.message_id}",  # another bot may have the same ids
            sender=_sender(message),
            place=Place(
                chat=str(message.chat.id),
                thread=str(topic) if topic else None,
                reply_to={} if direct else {"message": str(message.message_id)},
            ),
            text=_without_mention(text, me),
            direct=direct,
            addressed=direct or _is_mentioned(message, me) or _answers(message, me),
            attachments=attachments,
            said_at=message.date,
            in_reply_to=_replied_message(message),
        )

    def _attachments(self, message: Message) -> Iterator[Attachment]:
        """Yield the files of a message; an animation is also a document, and is returned once."""
        if message.sticker:
            yield Attachment(kind="image", name=f"sticker {one_line(message.sticker.emoji or '', 20)}".strip())
        if message.photo:
            yield self._attachment("image", *sorted(message.photo, key=lambda size: size.width * size.height))
        if video := message.video or message.video_note or message.animation:
            yield self._attachment("video", video)
        elif document := message.document:
            picture = (document.mime_type or "").startswith("image/")
            yield self._attachment("image" if picture else "file", document)
        if message.voice:
            yield self._attachment("voice", message.voice)
        if message.audio:
            yield self._attachment("file", message.audio)

    def _attachment(self, kind: AttachmentKind, *files: _File) -> Attachment:
        """Return an attachment that Telegram has in several sizes, the largest last."""
        return Attachment(
            kind=kind,
            name=one_line(str(getattr(files[-1], "file_name", None) or ""), 200),
            media_type=one_line(str(getattr(files[-1], "mime_type", None) or _MEDIA[kind]), 100),
            size=files[-1].file_size,
            fetch=partial(self._fetch, files),
        )

    async def _fetch(self, files: Sequence[_File], limit: int) -> bytes:
        """Return the content of the largest size within the limit."""
        allowed = [file for file in files if (file.file_size or 0) <= limit]
        if not allowed:
            raise TooLarge(f"the file is larger than {limit} bytes")
        try:
            with self._counting_calls():
                async with asyncio.timeout(_DOWNLOAD):
                    found = await self._bot.get_file(allowed[-1].file_id)
                    return await self._download(found.file_path or "", limit)
        except (_Failed, TelegramError, TimeoutError, httpx2.HTTPError) as error:
            if "file is too big" in str(error):
                raise TooLarge("Telegram limits bots to files of 20 MB") from None
            raise self._connector_error(error) from None

    async def _download(self, url: str, limit: int) -> bytes:
        # A server in local mode returns paths on its disk, and the library keeps a path that exists here.
        if not url.startswith(self._bot.base_file_url):
            raise PermanentError("the Bot API server does not serve files in local mode; turn it off")
        plain = {"Accept-Encoding": "identity"}
        async with self._downloads.stream("GET", url, headers=plain) as response:
            if not response.is_success:
                fault = PermanentError if response.is_client_error else OutcomeUnknown
                raise fault(f"Telegram answered {response.status_code} for the file")
            announced = int(response.headers.get("Content-Length", 0))
            return await collect(response.aiter_raw(), limit, announced=announced)


def _sender(message: Message) -> Sender:
    """Return the sender. A channel or an anonymous administrator is a chat with a dummy user."""
    user, chat = message.from_user, message.sender_chat
    if user is None or chat is not None:
        chat = chat or message.chat
        forwarded = bool(message.is_automatic_forward)
        return Sender(
            id=str(chat.id), name=one_line(chat.title or chat.username or "", 100), automatic=forwarded
        )
    return Sender(id=str(user.id), name=one_line(user.full_name, 100), automatic=user.is_bot)


def _is_mentioned(message: Message, me: User) -> bool:
    """Return whether an entity is ``@bot`` or ``/command@bot``; Telegram counts positions in UTF-16 units."""
    text = (message.text or message.caption or "").encode("utf-16-le", "surrogatepass")
    name = f"@{me.username}".lower()
    for one in message.entities or message.caption_entities:
        if one.type in {"mention", "bot_command"}:
            mention = (
                text[2 * one.offset : 2 * (one.offset + one.length)].decode("utf-16-le", "replace").lower()
            )
            if mention.endswith(name):
                return True
    return False


def _answers(message: Message, me: User) -> bool:
    """Return whether the message replies to the bot."""
    reply = _reply(message)
    return reply is not None and reply.from_user is not None and reply.from_user.id == me.id


def _reply(message: Message) -> Message | None:
    """Return the message that this one replies to; messages of a topic "reply" to its first message."""
    reply = message.reply_to_message
    return None if reply is None or reply.forum_topic_created is not None else reply


def _replied_message(message: Message) -> str | None:
    if message.forward_origin or message.external_reply:
        return ELSEWHERE
    return str(reply.message_id) if (reply := _reply(message)) else None


def _without_mention(text: str, me: User) -> str:
    """Remove a leading mention: ``@bot hello`` becomes "hello", ``/new@bot`` becomes "/new"."""
    name = re.escape(me.username or "")
    mention = rf"\s*(?:@{name}(?!\w)[\s,:]*|(/\w+)@{name}(?!\w))"
    return re.sub(rf"\A{mention}", lambda found: found[1] or "", text, flags=re.IGNORECASE)


def _describe_error(error: Exception, secret: str) -> str:
    """Return the error's text in one line, without the token's secret part."""
    text = f"{error.code} {error}" if isinstance(error, _Failed) else f"{type(error).__name__}: {error}"
    return one_line(text.replace(secret, "…"), 300)
