"""Telegram, by its Bot API (https://core.telegram.org/bots/api): messages are polled for, never pushed.

An update is confirmed by asking for those after it, so it is confirmed when it was taken and not before.
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
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar, cast

import httpx
from pydantic import AfterValidator, Field, SecretStr
from telegram import Bot, LinkPreviewOptions, Message, ReplyParameters, Update, User
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

from torana.connectors import markup
from torana.connectors.abreast import abreast
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

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which Telegram holds a poll that has nothing to tell, and for any other answer.
_POLL: Final = 25
_PATIENCE: Final = 30.0
_DOWNLOAD: Final = 300.0
_SETTLE: Final = 10.0
_CHUNK: Final = 65_536
_UPDATES: Final = ("message", "channel_post")
#: The request was not sent.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_MEDIA = {"image": "image/jpeg", "video": "video/mp4", "voice": "audio/ogg", "file": "application/octet-stream"}


def _token(token: SecretStr) -> SecretStr:
    """As @BotFather writes them; anything else could lead the request to another address."""
    text = token.get_secret_value().strip()
    if not re.fullmatch(r"\d+:[\w-]+", text, re.ASCII):
        raise ValueError("a bot's token looks like 123456789:AAE…, a number, a colon and letters")
    return SecretStr(text)


class TelegramSettings(ConnectorSettings):
    """What Telegram needs: a bot's token."""

    token: Annotated[SecretStr, AfterValidator(_token)] = Field(
        description="The bot's token, as @BotFather gave it."
    )
    api_url: Annotated[str, AfterValidator(lambda url: url.rstrip("/"))] = Field(
        default="https://api.telegram.org",
        pattern=r"^https?://[^\s{}]+$",
        description="Address of the Bot API, where you run its server yourself.",
    )


class _File(Protocol):
    """What all of Telegram's files have."""

    file_id: str
    file_size: int | None


class _Failed(Exception):
    """The Bot API's own answer to a call that it did not carry out."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(str(answer.get("description") or "no reason given"))
        self.code = int(answer.get("error_code") or 0)
        parameters = cast("Mapping[str, Any]", answer.get("parameters") or {})
        self.seconds: float | None = parameters.get("retry_after")
        self.moved: int | None = parameters.get("migrate_to_chat_id")


class _Request(HTTPXRequest):
    """The library's requests, with the Bot API's errors as they are: the library forgets their codes."""

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """The answer to a call. Raises ``_Failed``, or ``TelegramError`` where it is none of the Bot API's.

        An update that cannot be read is emptied: it would hold back all those after it, for ever.
        """
        try:
            answer: Any = json.loads(payload.decode(errors="replace"))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise TelegramError("this is no answer of the Bot API")
        known = cast("dict[str, Any]", answer)
        if not known.get("ok"):
            raise _Failed(known)
        if isinstance(known["result"], list):
            known["result"] = [_readable(update) for update in cast("list[dict[str, Any]]", known["result"])]
        return known


def _readable(update: dict[str, Any]) -> dict[str, Any]:
    try:
        Update.de_json(update, None)
    except Exception as error:  # noqa: BLE001 - whatever the library trips over
        fields = {"update": update["update_id"], "error": type(error).__name__}
        log.warning("telegram_update_unreadable", extra=fields)
        return {"update_id": update["update_id"]}
    return update


def _units(text: str) -> int:
    """Length in UTF-16 code units, as Telegram counts; it leaves the tags out, so this is no less."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


class Telegram(Connector[TelegramSettings]):
    """A bot on Telegram."""

    Settings = TelegramSettings
    global_ids = True
    abilities = Abilities(
        length=4096,
        repeat="blind",
        measure=_units,
        render=markup.telegram,
        edits=True,
        edit_every=3.0,  # a group takes 20 messages a minute
        typing_every=4.5,  # it is shown for 5 seconds
        threads=True,
        pace=25.0,
        quiet=90.0,
    )

    def __init__(self, settings: TelegramSettings) -> None:
        super().__init__(settings)
        self._secret = settings.token.get_secret_value()
        self._calls = 0
        self._ending = False
        self._idle = asyncio.Event()
        self._idle.set()
        context = httpx.create_ssl_context()
        self._request = _Request(
            connection_pool_size=64,
            read_timeout=_PATIENCE,
            write_timeout=_PATIENCE,
            connect_timeout=_PATIENCE,
            pool_timeout=_PATIENCE,
            httpx_kwargs={"verify": context},
        )
        self._bot = Bot(
            self._secret,
            base_url=f"{settings.api_url}/bot",
            base_file_url=f"{settings.api_url}/file/bot",
            request=self._request,
            get_updates_request=self._request,
        )
        self._downloads = httpx.AsyncClient(verify=context, timeout=_PATIENCE)

    @property
    def credentials(self) -> str:
        """The bot's id, which is the token's first half and no secret."""
        return self._secret.partition(":")[0]

    async def run(self, ears: Ears) -> None:
        """As ``Connector``. A webhook is deleted: while there is one Telegram answers no poll."""
        async with self._request, self._downloads:
            try:
                await self._listen(ears)
            finally:
                await self._settle()

    async def _listen(self, ears: Ears) -> None:
        me = await self._asked(self._bot.get_me())
        await self._asked(self._bot.delete_webhook())
        updates = await self._asked(self._poll(None, wait=0))
        ears.ready()
        offset: int | None = None
        while True:
            ears.alive()
            async with abreast(ears) as hear:  # the next poll tells Telegram that all of them were taken
                for update in sorted(updates, key=lambda update: update.update_id):
                    if heard := self._heard(update, me):
                        await hear(heard)
                    offset = update.update_id + 1
            updates = await self._asked(self._poll(offset, wait=_POLL))

    async def _poll(self, offset: int | None, *, wait: int) -> Sequence[Update]:
        return await self._bot.get_updates(
            offset=offset, timeout=wait, allowed_updates=_UPDATES, read_timeout=_PATIENCE
        )

    async def _asked(self, call: Awaitable[T]) -> T:
        """The answer to a call of ``run``."""
        try:
            async with asyncio.timeout(_POLL + _PATIENCE):
                return await call
        except (_Failed, TelegramError, TimeoutError) as error:
            raise self._end(error) from None  # what led to it may quote the token

    def _end(self, error: Exception) -> Exception:
        """Why ``run`` ends."""
        told = self._told(error)
        match error:
            case _Failed(code=401 | 404):
                return Refused(f"Telegram does not know the bot's token ({told}): ask @BotFather for its token")
            case _Failed(code=409):
                return ConnectionError(
                    f"another program receives this bot's messages ({told}): stop it, or make a bot of its own"
                )
            case _Failed(code=429):
                return TryLater(told, seconds=error.seconds)
            case _:
                return ConnectionError(told)

    @contextmanager
    def _under_way(self) -> Generator[None]:
        """Something that is done over the connections, which are not closed meanwhile."""
        if self._ending:
            raise TryLater("the connection has ended")
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _settle(self) -> None:
        """Let what is under way come to its end, for a while: cut off, nobody would know what became of it."""
        self._ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE):
                await self._idle.wait()

    async def send(self, part: Part) -> str:
        """As ``Connector``."""
        try:
            with self._under_way():
                async with asyncio.timeout(2 * _PATIENCE):
                    return await self._deliver(part)
        except (_Failed, TelegramError, TimeoutError) as error:
            raise self._verdict(error) from None  # what led to it may quote the token

    async def typing(self, place: Place) -> None:
        """As ``Connector``."""
        with suppress(Exception), self._under_way():
            await self._bot.send_chat_action(
                chat_id=int(place.chat),
                action="typing",
                message_thread_id=int(place.thread) if place.thread else None,
            )

    async def _deliver(self, part: Part) -> str:
        """Show a part; a group that has moved is followed, and markup that is refused is taken off."""
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
        # For a preview Telegram calls the link's address, with all that a model was talked into putting there.
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

    def _verdict(self, error: Exception) -> Exception:
        """What became of a call about a message or a file."""
        told = self._told(error)
        match error:
            case _Failed(code=429):
                return TryLater(told, seconds=error.seconds)
            case _Failed(code=401 | 404):  # the token's fault and not the message's; `run` hears of it too
                return TryLater(told)
            case _Failed(code=code) if 400 <= code < 500:
                return Refused(told)
            case TelegramError(__cause__=cause) if isinstance(cause, _UNSENT):
                return TryLater(told)
            case _:
                return Unsure(told)

    def _told(self, error: Exception) -> str:
        """What an error says, in a line without the token."""
        name = type(error).__name__
        told = f"{error.code} {error}" if isinstance(error, _Failed) else f"{name}: {error}"
        return _line(told.replace(self._secret, "…"), 300)

    def _heard(self, update: Update, me: User) -> Heard | None:
        """What an update tells, or None where it is no message of somebody's."""
        message = update.message or update.channel_post
        if message is None or (message.from_user is not None and message.from_user.id == me.id):
            return None
        text = message.text or message.caption or ""
        attachments = tuple(self._attachments(message))
        if not text and not attachments:
            return None
        direct = message.chat.type == message.chat.PRIVATE
        topic = message.message_thread_id if message.is_topic_message else None
        return Heard(
            id=f"{me.id}:{message.chat.id}:{message.message_id}",  # each bot counts by itself in private chats
            sender=_sender(message),
            place=Place(
                chat=str(message.chat.id),
                thread=str(topic) if topic else None,
                reply_to={} if direct else {"message": str(message.message_id)},
            ),
            text=_without_mention(text, me),
            direct=direct,
            addressed=direct or _mentioned(message, me) or _answers(message, me),
            attachments=attachments,
            said_at=message.date,
        )

    def _attachments(self, message: Message) -> Iterator[Attachment]:
        """What came with a message; an animation comes as a document too, and is told once."""
        if message.sticker:
            yield Attachment(kind="image", name=f"sticker {_line(message.sticker.emoji or '', 20)}".strip())
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

    def _attachment(self, kind: Literal["image", "file", "voice", "video"], *files: _File) -> Attachment:
        """An attachment that Telegram keeps in several sizes, the largest last."""
        return Attachment(
            kind=kind,
            name=_line(str(getattr(files[-1], "file_name", None) or ""), 200),
            media_type=_line(str(getattr(files[-1], "mime_type", None) or _MEDIA[kind])),
            size=files[-1].file_size,
            fetch=partial(self._fetch, files),
        )

    async def _fetch(self, files: Sequence[_File], limit: int) -> bytes:
        """The bytes of the largest that is allowed."""
        allowed = [file for file in files if (file.file_size or 0) <= limit]
        if not allowed:
            raise TooLarge(f"the file is larger than {limit} bytes")
        try:
            with self._under_way():
                async with asyncio.timeout(_DOWNLOAD):
                    found = await self._bot.get_file(allowed[-1].file_id)
                    return await self._download(found.file_path or "", limit)
        except (_Failed, TelegramError, TimeoutError, httpx.HTTPError) as error:
            if "file is too big" in str(error):
                raise TooLarge("Telegram lets bots fetch 20 MB at most") from None
            raise self._verdict(error) from None

    async def _download(self, url: str, limit: int) -> bytes:
        # A server in its local mode names files on its own disk; the library leaves one that is on ours, too.
        if not url.startswith(self._bot.base_file_url):
            raise Refused("the Bot API server runs in local mode, which keeps files to itself")
        whole = bytearray()
        plain = {"Accept-Encoding": "identity"}
        async with self._downloads.stream("GET", url, headers=plain) as response:
            if not response.is_success:
                fault = Refused if response.is_client_error else Unsure
                raise fault(f"Telegram answered {response.status_code} when it was asked for a file")
            if int(response.headers.get("Content-Length", 0)) > limit:
                raise TooLarge(f"the file is larger than {limit} bytes")
            async for chunk in response.aiter_raw(_CHUNK):
                whole += chunk
                if len(whole) > limit:
                    raise TooLarge(f"the file is larger than {limit} bytes")
        return bytes(whole)


def _sender(message: Message) -> Sender:
    """Who said it. Where a chat speaks, as a channel or anonymous administrators do, its user is a dummy."""
    user, chat = message.from_user, message.sender_chat
    if user is None or chat is not None:
        chat = chat or message.chat
        forwarded = bool(message.is_automatic_forward)
        return Sender(id=str(chat.id), name=_line(chat.title or chat.username or ""), automatic=forwarded)
    return Sender(id=str(user.id), name=_line(user.full_name), automatic=user.is_bot)


def _mentioned(message: Message, me: User) -> bool:
    """Whether ``@bot`` or ``/command@bot`` is in it, where Telegram found them: it counts in UTF-16."""
    text = (message.text or message.caption or "").encode("utf-16-le", "surrogatepass")
    name = f"@{me.username}".lower()
    for one in message.entities or message.caption_entities:
        if one.type in {"mention", "bot_command"}:
            said = text[2 * one.offset : 2 * (one.offset + one.length)].decode("utf-16-le", "replace").lower()
            if said.endswith(name):
                return True
    return False


def _answers(message: Message, me: User) -> bool:
    """Whether it is a reply to us; whatever is said in a topic "replies" to the topic's beginning."""
    reply = message.reply_to_message
    if reply is None or reply.from_user is None or reply.forum_topic_created is not None:
        return False
    return reply.from_user.id == me.id


def _without_mention(text: str, me: User) -> str:
    """``@bot hello`` is "hello", and ``/new@bot`` is "/new"."""
    name = re.escape(me.username or "")
    mention = rf"\s*(?:@{name}(?!\w)[\s,:]*|(/\w+)@{name}(?!\w))"
    return re.sub(rf"\A{mention}", lambda found: found[1] or "", text, flags=re.IGNORECASE)


def _line(text: str, limit: int = 100) -> str:
    """One line of what can be seen: a name may hold line ends and marks that turn the writing round."""
    seen = "".join(character if character.isprintable() else " " for character in text[: 4 * limit])
    return " ".join(seen.split())[:limit]
